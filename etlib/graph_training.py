"""One fold of graph classification, for the Energy Transformer and for a baseline alike."""

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float, Int

from etlib.buckets import Batch, Encoded, encode
from etlib.data import tu
from etlib.data.csl import csl
from etlib.data.graphset import GraphSet, fill_features
from etlib.data.molecules import pains
from etlib.evaluation import Fold, Part, Score, chosen_epoch, folds, score
from etlib.gin import GINLearner
from etlib.graph_classifier import (
    GraphClassifier,
    GraphConfig,
    classification_loss,
    graph_block,
    predict,
)
from etlib.packing import GraphBatches, evaluation_batches
from etlib.released_graphs import N_OUTPUTS, ReleasedGraphClassifier
from etlib.training import TrainConfig, train

if TYPE_CHECKING:
    from etlib.chapters.graph_classification import Training


Model = Literal["et", "gin"]


@runtime_checkable
class Learner(Protocol):
    """A classifier at the start of its training on one fold."""

    def fit(self, after_epoch: Callable[[], None]) -> list[float]:
        """Train on the fold's `train`; the loss of each epoch's last batch."""

    def logits(self, part: Part) -> Float[np.ndarray, "graphs classes"]:
        """Predictions for a part of the fold, in its order."""

    def weights(self) -> Any:
        """A copy of everything that was learnt."""

    def restore(self, weights: Any) -> None:
        """Go back to these weights."""


class FoldResult(NamedTuple):
    """Scores at the chosen epoch (counted from 1), and what was seen on the way there."""

    test: Score
    train: Score
    validation: Score | None
    epoch: int
    losses: list[float]  # of each epoch's last training batch
    validations: list[Score]  # after each epoch; none where there is nothing to choose with
    seconds: float


def run_fold(learner: Learner, y: Int[np.ndarray, " graphs"], fold: Fold) -> FoldResult:
    """Train, choose the epoch on `validation`, and score `test` once with its weights.

    Without validation graphs the last epoch is scored.
    """
    start = time.perf_counter()
    validations: list[Score] = []
    kept: list[Any] = []

    def after_epoch() -> None:
        if len(fold.validation):
            validations.append(score(learner.logits("validation"), y[fold.validation]))
            if chosen_epoch(validations) == len(validations) - 1:
                kept[:] = [learner.weights()]

    losses = learner.fit(after_epoch)
    epoch = len(losses) - 1
    if kept:
        epoch = chosen_epoch(validations)
        learner.restore(kept[0])
    return FoldResult(
        test=score(learner.logits("test"), y[fold.test]),
        train=score(learner.logits("train"), y[fold.train]),
        validation=validations[epoch] if validations else None,
        epoch=epoch + 1,
        losses=losses,
        validations=validations,
        seconds=time.perf_counter() - start,
    )


class ETLearner:
    """An Energy Transformer on one fold, trained as the released notebooks train it."""

    def __init__(
        self,
        p: "Training",
        config: GraphConfig,
        graphs: Sequence[Encoded],
        folds: Sequence[Fold],
        number: int,
        *,
        progress: bool = False,
    ):
        """Fold `number` of `folds`; they all compile once, for their batches share their shapes."""
        self.p, self.progress = p, progress
        kind = ReleasedGraphClassifier if p.variant == "released" else GraphClassifier
        self.model = kind(config, rngs=nnx.Rngs(p.seed))
        self.graphs, self.folds, self.number = graphs, folds, number
        self.batches: dict[Part, list[Batch]] = {}

    def fit(self, after_epoch: Callable[[], None]) -> list[float]:
        p, n_devices = self.p, len(jax.devices())
        graphs, packing = self.packing("train")
        batches = GraphBatches(graphs, p.batch, p.seed, multiple=n_devices, **packing)
        warmup = p.epochs / 6 if p.warmup_epochs is None else p.warmup_epochs

        def evaluate(_: nnx.Module) -> dict[str, float]:
            after_epoch()
            return {}

        rows = train(
            self.model,
            classification_loss,
            batches,
            TrainConfig(
                n_steps=p.epochs * batches.steps_per_epoch,
                warmup_steps=round(warmup * batches.steps_per_epoch),
                peak_lr=p.peak_lr,
                start_lr=p.peak_lr / 200,
                end_lr=p.peak_lr / 200,
                weight_decay=p.weight_decay,
                decay_all=True,
                centralize=True,
                clip_norm=None,
                seed=p.seed,
            ),
            evaluate=evaluate,
            evaluate_every=batches.steps_per_epoch,
            log_every=batches.steps_per_epoch,
            progress=self.progress,
        )
        return [row["loss"] for row in rows]

    def packing(self, part: Part) -> tuple[list[Encoded], dict[str, Any]]:
        """The graphs of a part, and how `packing.layout` is to lay them out."""
        of_folds = [[self.graphs[i] for i in getattr(fold, part)] for fold in self.folds]
        options: dict[str, Any] = {"alike": of_folds}
        if self.p.variant == "released":
            options["dense_tokens"] = None  # it joins all pairs: no list of edges holds them
        return of_folds[self.number], options

    def logits(self, part: Part) -> Float[np.ndarray, "graphs classes"]:
        if part not in self.batches:
            graphs, packing = self.packing(part)
            self.batches[part] = evaluation_batches(graphs, self.p.batch, **packing)
        return predict(self.model, self.batches[part])

    def weights(self) -> Any:
        # A copy: the next step gives the memory of these up.
        return jax.tree.map(jnp.copy, nnx.state(self.model, nnx.Param))

    def restore(self, weights: Any) -> None:
        nnx.update(self.model, weights)


def model_config(p: "Training", data: GraphSet) -> GraphConfig:
    """The model that the parameters of the chapter describe, for the graphs of a set."""
    return GraphConfig(
        n_features=data.n_features,
        n_classes=N_OUTPUTS if p.variant == "released" else data.n_classes,
        n_edge_features=max(data.n_edge_features, 1),
        k=p.n_eigenvectors,
        n_blocks=p.n_blocks,
        kernel=p.kernel,
        noise_std=p.noise_std,
        label_smoothing=p.label_smoothing,
        block=graph_block(
            token_dim=p.token_dim,
            n_heads=p.n_heads,
            head_dim=p.head_dim,
            n_memories=p.n_memories,
            n_steps=p.n_steps,
            alpha=p.alpha,
            attention_std=p.attention_std,
        ),
    )


class Task:
    """A data set with its folds, and what is computed once for all of them."""

    def __init__(self, p: "Training", data: GraphSet | None = None):
        """data: read as `p` says when not given."""
        self.p = p
        self.data = load(p) if data is None else data
        self.folds = folds(self.data.y, p.protocol, p.seed)

    @cached_property
    def encoded(self) -> list[Encoded]:
        k, with_cls = self.p.n_eigenvectors, self.p.variant == "released"
        found = encode(self.data.graphs, k, with_cls=with_cls)
        return [e._replace(encoding=np.float32(self.p.encoding_scale) * e.encoding) for e in found]

    def learner(self, model: Model, number: int, *, progress: bool = False) -> Learner:
        """A new classifier at the start of its training on fold `number`."""
        p, fold = self.p, self.folds[number]
        data = fill_features(self.data, fold.train, p.fallback)
        if model == "gin":
            return GINLearner(
                data.graphs, fold, data.n_classes, epochs=p.epochs, batch=p.batch, seed=p.seed
            )
        graphs = [e._replace(graph=g) for e, g in zip(self.encoded, data.graphs, strict=True)]
        return ETLearner(p, model_config(p, data), graphs, self.folds, number, progress=progress)

    def run(self, model: Model, number: int, *, progress: bool = False) -> FoldResult:
        """Train and score one fold."""
        learner = self.learner(model, number, progress=progress)
        return run_fold(learner, self.data.y, self.folds[number])


def load(p: "Training") -> GraphSet:
    """The data set that the parameters name."""
    if p.dataset == "csl":
        return csl()
    if p.dataset == "pains":
        return pains(p.n_molecules)
    return tu.load(p.dataset, download=p.download)
