"""Node anomaly detection with an Energy Transformer (section 4 and Appendix C).

The features of a node become its token, by a linear map and a learned bias. A node attends to
its neighbours; one block takes T steps of x <- x - alpha dE/dg. The layer-normed token at step
1, which is the embedding, and that after the last of the T steps go side by side into a
perceptron, whose output is the logit of "anomaly". An anomaly is a node whose token is far from
every stored pattern, or that its neighbours do not pull as they pull others.

The text counts tokens from t = 1. That step 1 is the embedding, and not the token after one
update, is this module's reading: the released code joins the encoder's output to the last
token, and both of its published commands have T = 1. Facts about the released code
(zhuergou/Energy-Transformer-for-Graph-Anomaly-Detection, commit 958cb1d) come from reading it.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from etlib import energy as en
from etlib.block import BlockConfig, ETBlock
from etlib.errors import UserError
from etlib.neighbour_energy import energy_and_gradient
from etlib.neighbours import Neighbours

_ROWS = 2**16  # nodes at a time in what is done to each node by itself


def anomaly_block(**changed) -> BlockConfig:
    """The block in the sizes of the released command for Amazon at 1 % (width 64, one head,
    twice as many memories, T = 1); its initial deviations of weights are the released ones."""
    sizes = {
        "token_dim": 64,
        "n_heads": 1,
        "head_dim": 64,
        "n_memories": 128,
        "n_steps": 1,
        "alpha": 0.1,
        "attention_std": 0.01,
        "memory_std": 0.07,
    }
    return BlockConfig(**sizes | changed)


@dataclass(frozen=True)
class AnomalyConfig:
    """The model as the text has it; `released` gives the released code's variants.

    block:          `block.self_attention` lets a node attend to itself, as in the released
                    code; `block.learn_beta` learns beta, which the released code does as a
                    divisor of the scores.
    residual:       what a step adds its update to: the "token" (the text), or the "normalised"
                    token (released code).
    untied_last:    the last of the steps has a block of its own (released code, for T > 1).
    memory_dropout: share of the memories that a training step leaves out, node by node
                    (released code: 0.3).
    relations:      "joined", one graph of the edges of all kinds; or "maximum" (released code):
                    each kind of edge is descended by itself with the same block, and the last
                    token is the elementwise maximum over the kinds. The released code lets the
                    embedding take part in that maximum, instead of putting it beside it.
    readout:        "perceptron" on layer-normed tokens (the text), or "linear" on the tokens as
                    they are (released code).

    Of the released code there are not: the layer norm's scale of one number a feature, with
    which the descent of the energy is no longer guaranteed, and its clipping of the scores to
    [-5, 5], after which the update is no gradient.

    Raises UserError for a dropout that leaves no memory.
    """

    n_features: int
    block: BlockConfig = field(default_factory=anomaly_block)
    n_hidden: int = 64
    residual: Literal["token", "normalised"] = "token"
    untied_last: bool = False
    memory_dropout: float = 0.0
    relations: Literal["joined", "maximum"] = "joined"
    readout: Literal["perceptron", "linear"] = "perceptron"

    def __post_init__(self):
        if not 0 <= self.memory_dropout < 1:
            raise UserError(f"memory_dropout is {self.memory_dropout}: it is a share, below 1")


def released(n_features: int, **block) -> AnomalyConfig:
    """The model of the released code, as far as `AnomalyConfig` says."""
    return AnomalyConfig(
        n_features,
        anomaly_block(**{"alpha": 1.0, "self_attention": True} | block),
        residual="normalised",
        untied_last=True,
        memory_dropout=0.3,
        readout="linear",
    )


class NodeTrace(NamedTuple):
    """Energies and tokens of every node before each of the T steps and after the last."""

    attention: Float[Array, "T1 N"]  # the part of each node as a query
    hopfield: Float[Array, "T1 N"]
    tokens: Float[Array, "T1 N D"]

    @property
    def energy(self) -> Float[Array, "T1 N"]:
        return self.attention + self.hopfield


class NodeAnomalyModel(nnx.Module):
    """Embedding, one block (and `last`, where the last step is untied), and the readout."""

    def __init__(self, config: AnomalyConfig, *, rngs: nnx.Rngs):
        self.config = config
        D = config.block.token_dim
        self.embed = nnx.Linear(config.n_features, D, rngs=rngs)
        self.block = ETBlock(config.block, rngs=rngs)
        if config.untied_last:
            self.last = ETBlock(config.block, rngs=rngs)
        if config.readout == "perceptron":
            self.hidden = nnx.Linear(2 * D, config.n_hidden, rngs=rngs)
        width = config.n_hidden if config.readout == "perceptron" else 2 * D
        self.out = nnx.Linear(width, 1, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "N F"],
        graphs: tuple[Neighbours, ...],
        *,
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, " N"]:
        """Logits of "anomaly". graphs: one, or one for each relation. With a key as in training:
        memories drop out."""
        first = _by_rows(self.embed, x)
        last = [self.descend(first, graph, key=key)[0] for graph in graphs]
        return self.read(first, jnp.stack(last).max(axis=0))

    def read(self, first: Float[Array, "N D"], last: Float[Array, "N D"]) -> Float[Array, " N"]:
        """Logits from the tokens at step 1 and after the last step."""

        def readout(both):
            if self.config.readout == "linear":
                return self.out(jnp.concatenate(both, axis=-1))
            g = [self.block.norm(token) for token in both]
            return self.out(jax.nn.relu(self.hidden(jnp.concatenate(g, axis=-1))))

        return _by_rows(readout, (first, last))[:, 0]

    def descend(
        self,
        x: Float[Array, "N D"],
        graph: Neighbours,
        *,
        key: Key[Array, ""] | None = None,
        trace: bool = False,
    ) -> tuple[Float[Array, "N D"], NodeTrace | None]:
        """Tokens after T steps on one graph, and the trace of the nodes when asked for."""
        n_tied = self.config.block.n_steps - self.config.untied_last

        def step(x, t):
            dropout = None if key is None else jax.random.fold_in(key, t)
            return self._step(self.block, x, graph, dropout, trace)

        x, steps = jax.lax.scan(step, x, jnp.arange(n_tied))
        end = self.block
        if self.config.untied_last:
            end = self.last
            dropout = None if key is None else jax.random.fold_in(key, n_tied)
            x, step_n = self._step(end, x, graph, dropout, trace)
            steps = jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), steps, step_n)
        if not trace:
            return x, None
        _, after = self._step(end, x, graph, None, True)
        return x, NodeTrace(*jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), steps, after))

    def _step(self, block: ETBlock, x, graph: Neighbours, dropout, trace: bool):
        """One step, and (energies, tokens) before it if `trace`."""
        c = self.config.block
        g = block.norm(x)
        attention, gradient = energy_and_gradient(
            g, graph, block.Wk[...], block.Wq[...], block.inverse_temperature
        )
        gradient += self._memories_pull(block, g, dropout)
        base = x if self.config.residual == "token" else g
        after = base - c.alpha * gradient
        if not trace:
            return after, None

        def hopfield(g):
            return jax.vmap(lambda row: en.hopfield_energy(row[None], block.Xi[...], c.activation))(
                g
            )

        return after, (attention, _by_rows(hopfield, g), x)

    def _memories_pull(self, block: ETBlock, g, dropout) -> Float[Array, "N D"]:
        """dE_HN/dg, with memories left out, and the others scaled up, if dropout is a key."""
        c, Xi, rate = self.config.block, block.Xi[...], self.config.memory_dropout
        if dropout is None or rate == 0:
            return _by_rows(lambda g: en.hopfield_gradient(g, Xi, c.activation), g)
        kept = jax.random.bernoulli(dropout, 1 - rate, (len(g), c.n_memories))
        return -(c.activation.rate(g @ Xi.T) * kept / (1 - rate)) @ Xi


def _by_rows(function, rows):
    """function(rows), for a large number of rows a part at a time."""
    n = len(jax.tree.leaves(rows)[0])
    if n <= _ROWS:
        return function(rows)
    parts = -(-n // _ROWS)

    def cut(a):
        return jnp.pad(a, ((0, parts * _ROWS - n), (0, 0))).reshape(parts, _ROWS, -1)

    found = jax.lax.map(function, jax.tree.map(cut, rows))
    return found.reshape(parts * _ROWS, *found.shape[2:])[:n]


class NodeBatch(NamedTuple):
    """A graph, or a part of one, with what the loss needs of its nodes.

    weights: of each node in the loss: 0 where it has no label in training.
    seed:    of the dropout, beside the step.
    """

    x: Float[Array | np.ndarray, "N F"]
    graphs: tuple[Neighbours, ...]
    labels: Int[Array | np.ndarray, " N"]
    weights: Float[Array | np.ndarray, " N"]
    seed: Int[Array | np.ndarray, " 1"]


def class_weights(labels: Int[np.ndarray, " N"], train: Int[np.ndarray, " n"]):
    """Weights of all nodes: omega, normal to anomalous in `train`, for its anomalies, 1 for its
    normal nodes, 0 for the others.

    Raises UserError where `train` lacks one of the classes.
    """
    n_normal, n_anomalous = (int(np.sum(labels[train] == k)) for k in (0, 1))
    if n_normal == 0 or n_anomalous == 0 or n_normal + n_anomalous < len(train):
        raise UserError(
            f"the training nodes are {n_normal} normal, {n_anomalous} anomalous and "
            f"{len(train) - n_normal - n_anomalous} unlabelled ones: give at least one of the "
            f"first two kinds and none of the third, by a larger train_ratio or another seed"
        )
    weights = np.zeros(len(labels), np.float32)
    weights[train] = np.where(labels[train] == 1, n_normal / n_anomalous, 1.0)
    return weights


def anomaly_loss(model: NodeAnomalyModel, batch: NodeBatch, key: Key[Array, ""]):
    """The loss of `training.train`: the weighted mean of the cross-entropy over the nodes."""
    logits = model(batch.x, batch.graphs, key=jax.random.fold_in(key, batch.seed[0]))
    losses = optax.sigmoid_binary_cross_entropy(logits, batch.labels)
    total = jnp.maximum(batch.weights.sum(), 1e-9)
    return jnp.sum(batch.weights * losses) / total, {}
