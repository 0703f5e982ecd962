"""Training the anomaly model: on a whole graph at each step, or on parts of it."""

from dataclasses import replace
from itertools import repeat
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from etlib.anomaly import AnomalyConfig, NodeAnomalyModel, NodeBatch, anomaly_loss, class_weights
from etlib.data.nodegraph import NodeGraph
from etlib.detection import Best, Split, standardised
from etlib.errors import UserError
from etlib.neighbours import Neighbours, neighbours
from etlib.subgraphs import SubgraphBatches
from etlib.training import Row, TrainConfig, data_mesh, train


def anomaly_training(n_epochs: int = 100, **changed) -> TrainConfig:
    """The optimiser of the released code: Adam at 1e-3, no decay, no clipping."""
    released = {"peak_lr": 1e-3, "end_lr": 1e-3, "b2": 0.999, "weight_decay": 0.0}
    return TrainConfig(n_epochs, **released | {"clip_norm": None} | changed)


class Fitted(NamedTuple):
    """A trained model, with the weights of the epoch that ranks the validation nodes best.

    scores:     probability of "anomaly" of every node of the graph, in evaluation mode.
    validation: the same of the validation nodes after each epoch.
    """

    model: NodeAnomalyModel
    scores: Float[np.ndarray, " N"]
    epoch: int  # from 1
    validation: Float[np.ndarray, "epochs validation"]
    rows: list[Row]


def tables(graph: NodeGraph, config: AnomalyConfig) -> tuple[Neighbours, ...]:
    """What the model attends over: one graph, or one for each relation.

    Raises UserError where relations are asked for and the graph has none.
    """
    edges = {"all": graph.edges}
    if config.relations == "maximum":
        if not graph.relations:
            raise UserError(f"{graph.name} has edges of one kind: take relations='joined'")
        edges = graph.relations
    with_self = config.block.self_attention
    return tuple(neighbours(graph.n_nodes, *e, with_self=with_self) for e in edges.values())


@nnx.jit
def probabilities(
    model: NodeAnomalyModel, x: Float[Array | np.ndarray, "N F"], graphs: tuple[Neighbours, ...]
) -> Float[Array, " N"]:
    """Probability of "anomaly" of every node, in evaluation mode."""
    return jax.nn.sigmoid(model(jnp.asarray(x), graphs))


def fit_anomaly(
    graph: NodeGraph,
    split: Split,
    config: AnomalyConfig,
    training: TrainConfig | None = None,
    *,
    seed: int = 0,
    parts: int = 1,
    progress: bool = False,
) -> Fitted:
    """Train on the nodes `split.train`; choose the epoch by average precision on validation.

    The features are standardised over all nodes, which takes no label. A step is an epoch, or
    with `parts` one of so many random parts (`etlib.subgraphs`), which need less memory;
    prediction always sees the whole graph. training: the released optimiser when None. The
    seed sets the initial weights, the dropout and the parts; runs that differ in seed or split
    alone share what was compiled.

    Raises UserError for features of another number than the configuration's, for training
    nodes without an anomaly or a normal node, or gradients to accumulate.
    """
    training = anomaly_training() if training is None else training
    if training.accumulate > 1:
        raise UserError("accumulate is more than 1, but a graph is not a batch to be cut in parts")
    if graph.x.shape[1] != config.n_features:
        raise UserError(
            f"{graph.name} has {graph.x.shape[1]} features, the model takes {config.n_features}"
        )
    x = standardised(graph.x)
    graphs = jax.tree.map(jnp.asarray, tables(graph, config))
    if parts > 1:
        batches = SubgraphBatches(x, graph, split.train, config, parts, seed)
    else:
        weights = class_weights(graph.labels, split.train)
        labels = np.maximum(graph.labels, 0)
        batches = repeat(NodeBatch(x, graphs, labels, weights, np.array([seed], np.int32)))
    model = NodeAnomalyModel(config, rngs=nnx.Rngs(seed))
    best = Best(graph.labels, split.validation)
    chosen, validation = None, []

    def evaluate(model: NodeAnomalyModel) -> dict[str, float]:
        nonlocal chosen
        scores = np.asarray(probabilities(model, x, graphs))
        validation.append(scores[split.validation])
        if best.offer(len(validation), scores):
            chosen = jax.tree.map(jnp.copy, nnx.state(model, nnx.Param))
        return {"validation_ap": best.value}

    rows = train(
        model,
        anomaly_loss,
        batches,
        replace(training, seed=0),
        evaluate=evaluate,
        evaluate_every=parts,
        log_every=parts,
        progress=progress,
        mesh=data_mesh(jax.devices()[:1]),
    )
    nnx.update(model, chosen)
    return Fitted(model, best.scores, best.epoch, np.stack(validation), rows)
