"""The Energy Transformer for graphs with a class each (section 5 and Appendix D).

Node features are projected to tokens, a learned CLS token is put in front, a projection of
Laplacian eigenvectors is added. S blocks, each with its own layer norm, take T steps each. A
node attends to its neighbours, and CLS is everybody's neighbour; the logits are multiplied by

    A_hat = Conv2D(X X^T) * A'                                   (equation 25)

with A' the adjacency matrix, or the features of the edges, projected to one number a head.
A_hat is computed once, from the tokens before the first step, and is a constant in the energy:
the tokens descend at fixed A_hat. Its own parameters are trained like all others. The class
is read, linearly, from the CLS token after the last step.

The convolution slides over the matrix of all pairs of tokens, so that it reads the order in
which the nodes happen to be listed: renumber them, and A_hat is another one. `kernel=1` is the
variant without this dependence.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from etlib import edge_energy as ee
from etlib import energy as en
from etlib.block import BlockConfig, ETBlock, Trace, descend
from etlib.buckets import Batch, Bucket, EdgeBucket
from etlib.errors import UserError


def graph_block(**changed) -> BlockConfig:
    """The block of the released graph classifier; its beta, one per head, is learned."""
    released = {
        "token_dim": 128,
        "n_heads": 12,
        "head_dim": 64,
        "n_memories": 512,
        "n_steps": 1,
        "alpha": 0.1,
        "learn_beta": True,
    }
    return BlockConfig(**released | changed)


@dataclass(frozen=True)
class GraphConfig:
    """The classifier; the defaults are those of the released notebooks for TU sets.

    n_edge_features: 1 where the graphs have none: the adjacency matrix is then used.
    k:               eigenvectors of the Laplacian in the encoding; 0 for no encoding.
    kernel:          of the convolution: 3, or 1 for no dependence on the order of the nodes;
                     0 for none: A_hat is A'.
    noise_std:       of the noise of each step in training (equation 27); never in prediction.

    Raises UserError for a kernel that is neither odd nor 0.
    """

    n_features: int
    n_classes: int
    n_edge_features: int = 1
    k: int = 15
    n_blocks: int = 4
    kernel: int = 3
    noise_std: float = 0.02
    label_smoothing: float = 0.05
    cls_std: float = 0.02
    block: BlockConfig = field(default_factory=graph_block)

    def __post_init__(self):
        if self.kernel < 0 or (self.kernel and self.kernel % 2 == 0):
            raise UserError(
                f"kernel is {self.kernel}: it is centred on a pair, so an odd number, or 0 for none"
            )


class GraphBlock(ETBlock):
    """A block whose tokens may also be joined by a list of edges."""

    def energies(self, g, *, edges=None, weights=None, mask=None, valid=None):
        """(E_ATT, E_HN) at the normalised tokens g.

        edges: (senders, receivers); then g is (N, D), weights (E, H), mask (E,), and the
        energies are of all graphs together. None for all pairs, as in `ETBlock.energies`.
        """
        if edges is None:
            return super().energies(g, weights=weights, mask=mask, valid=valid)
        attention = ee.attention_energy(g, *edges, *self._attention, weights=weights, valid=mask)
        return attention.sum(), en.hopfield_energy(
            g, self.Xi[...], self.config.activation, valid=valid
        )

    def gradient(self, g, *, edges=None, weights=None, mask=None, valid=None):
        """dE/dg in closed form; options as in `energies`."""
        if edges is None:
            return super().gradient(g, weights=weights, mask=mask, valid=valid)
        attention = ee.attention_gradient(g, *edges, *self._attention, weights=weights, valid=mask)
        return attention + en.hopfield_gradient(
            g, self.Xi[...], self.config.activation, valid=valid
        )

    @property
    def _attention(self):
        return self.Wk[...], self.Wq[...], self.inverse_temperature


class GraphClassifier(nnx.Module):
    """CLS, S blocks, and one linear layer; parameters besides the blocks':

    ``node`` (F to D), ``position`` (k to D), ``pair`` (Fe to H) and ``decoder`` (D to
    classes), all affine; ``CLS`` (D,); ``conv`` (kernel, kernel, H), without a bias.
    """

    def __init__(self, config: GraphConfig, *, rngs: nnx.Rngs):
        self.config = config
        D, H = config.block.token_dim, config.block.n_heads
        self.node = nnx.Linear(config.n_features, D, rngs=rngs)
        # Without encodings the layer is its bias, and Flax's default cannot draw no numbers.
        drawn = {} if config.k else {"kernel_init": nnx.initializers.zeros_init()}
        self.position = nnx.Linear(config.k, D, rngs=rngs, **drawn)
        self.pair = nnx.Linear(config.n_edge_features, H, rngs=rngs)
        self.CLS = nnx.Param(config.cls_std * jax.random.normal(rngs.params(), D))
        kernel = config.kernel, config.kernel, H
        self.conv = nnx.Param(jax.random.normal(rngs.params(), kernel) / max(config.kernel, 1))
        self.blocks = nnx.List(self.block(config.block, rngs) for _ in range(config.n_blocks))
        self.decoder = nnx.Linear(D, config.n_classes, rngs=rngs)

    def block(self, config: BlockConfig, rngs: nnx.Rngs) -> ETBlock:
        """A new block of the stack."""
        return GraphBlock(config, rngs=rngs)

    def tokens(self, graphs: Bucket | EdgeBucket) -> Float[Array, "*b N D"]:
        """Tokens before the first step; zeros in place of padding."""
        x = jnp.where(graphs.is_cls[:, None], self.CLS[...], self.node(graphs.x))
        return jnp.where(graphs.valid[..., None], x + self.position(graphs.encoding), 0.0)

    def weighted_adjacency(
        self, x: Float[Array, "*b N D"], graphs: Bucket | EdgeBucket
    ) -> Float[Array, "b H N N"] | Float[Array, "E H"]:
        """A_hat of the tokens before the first step: (head, key B, query C), or edge by edge.

        With W the kernel, Conv2D(X X^T)_BC = sum_ab W_ab x_(C+a) . x_(B+b), zero beyond the
        ends of a graph.
        """
        projected = self.pair(graphs.edge_attr)
        if self.config.kernel == 0:
            edgewise = isinstance(graphs, EdgeBucket)
            return projected if edgewise else jnp.moveaxis(projected, -1, 1).swapaxes(-1, -2)
        if isinstance(graphs, EdgeBucket):
            near = shifted(x, self.config.kernel, graphs.slot)
            queries, keys = near[:, graphs.receivers], near[:, graphs.senders]
            dots = jnp.einsum("aED,bED->Eab", queries, keys)
            return jnp.einsum("Eab,abH->EH", dots, self.conv[...]) * projected
        near = shifted(x, self.config.kernel)
        grams = jnp.einsum("anCD,bnBD->abnBC", near, near)
        convolved = jnp.einsum("abnBC,abH->nHBC", grams, self.conv[...])
        return convolved * jnp.moveaxis(projected, -1, 1).swapaxes(-1, -2)

    def pairs(self, x: Float[Array, "*b N D"], graphs: Bucket | EdgeBucket) -> dict[str, Any]:
        """What attention is told of the graphs: the options of `GraphBlock.energies`."""
        weights = self.weighted_adjacency(x, graphs)
        if isinstance(graphs, EdgeBucket):
            edges = jnp.asarray(graphs.senders), jnp.asarray(graphs.receivers)
            mask = jnp.asarray(graphs.used)
        else:
            edges, mask = None, jnp.asarray(graphs.edges)
        return {
            "edges": edges,
            "weights": weights,
            "mask": mask,
            "valid": jnp.asarray(graphs.valid),
        }

    def __call__(
        self, graphs: Bucket | EdgeBucket, *, key: Key[Array, ""] | None = None
    ) -> Float[Array, "b classes"]:
        """Logits of each graph. With a key as in training: signs flipped, noise in the steps."""
        return self.run(graphs, key=key)[0]

    def run(
        self, graphs: Bucket | EdgeBucket, *, key: Key[Array, ""] | None = None, trace: bool = False
    ) -> tuple[Float[Array, "b classes"], list[Trace | None]]:
        """Logits, and the trace of each block's descent when asked for."""
        noise_std = 0.0
        if key is not None:
            graphs = self.flipped(graphs, jax.random.fold_in(key, 0))
            noise_std = self.config.noise_std
        x = self.tokens(graphs)
        pairs = self.pairs(x, graphs)
        traces = []
        for s, block in enumerate(self.blocks):
            noise = None if key is None else jax.random.fold_in(key, s + 1)
            x, of_block = descend(block, x, noise_std=noise_std, key=noise, trace=trace, **pairs)
            traces.append(of_block)
        return self.decoder(graphs.at_cls(x)), traces

    def flipped(self, graphs: Bucket | EdgeBucket, key: Key[Array, ""]) -> Bucket | EdgeBucket:
        """The graphs with random signs of their eigenvectors."""
        shape = (len(graphs.y), graphs.encoding.shape[-1])
        signs = jax.random.rademacher(key, shape, graphs.encoding.dtype)
        return graphs._replace(encoding=graphs.encoding * graphs.of_tokens(signs))


def shifted(
    x: Float[Array, "*b N D"], kernel: int, slot: Int[Array | np.ndarray, " N"] | None = None
) -> Float[Array, "kernel *b N D"]:
    """Tokens i + a for a = -(kernel // 2) ... kernel // 2, zeros beyond the ends of a graph.

    slot: which graph each token is of, where there are several end to end.
    """
    r, N = kernel // 2, x.shape[-2]
    wide = jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(r, r), (0, 0)])
    near = jnp.stack([wide[..., a : a + N, :] for a in range(kernel)])
    if slot is None:
        return near
    slots = jnp.pad(jnp.asarray(slot), r, constant_values=-1)
    same = jnp.stack([slots[a : a + N] == slot for a in range(kernel)])
    return jnp.where(same[..., None], near, 0.0)


def classification_loss(model: GraphClassifier, batch: Batch, key: Key[Array, ""]):
    """The loss of `training.train`: cross-entropy with smoothed labels, mean over graphs."""
    keys = [jax.random.fold_in(key, i) for i in range(len(batch))]
    logits = jnp.concatenate([model(b, key=k) for b, k in zip(batch, keys, strict=True)])
    y = jnp.concatenate([b.y for b in batch])
    counted = y >= 0
    wanted = optax.smooth_labels(jax.nn.one_hot(y, logits.shape[-1]), model.config.label_smoothing)
    losses = optax.softmax_cross_entropy(logits, wanted)
    right = logits.argmax(axis=-1) == y

    def mean(values):
        return jnp.sum(jnp.where(counted, values, 0.0)) / counted.sum()

    return mean(losses), {"accuracy": mean(right)}


@nnx.jit
def _logits(model: GraphClassifier, batch: Batch) -> list[Float[Array, "b classes"]]:
    return [model(b) for b in batch]


def predict(model: GraphClassifier, batches: Sequence[Batch]) -> Float[np.ndarray, "n classes"]:
    """Logits of every graph of `packing.evaluation_batches`, in the order of the graphs.

    Neither noise nor sign flips; an empty slot counts nowhere.
    """
    index, logits = [], []
    for batch in batches:
        index += [b.index for b in batch]
        logits += [np.asarray(of) for of in _logits(model, batch)]
    index, logits = np.concatenate(index), np.concatenate(logits)
    filled = index >= 0
    return logits[filled][np.argsort(index[filled])]
