"""The graph classifier as the authors' code computes it (Lemon-cmd/Energy-Transformer-For-Graph).

Where that code leaves the text of the paper, and `graph_classifier` follows the text:

- The heads' logits are mixed by a learned matrix ``Hw`` before they are weighted, and the
  energy of each mixture is divided by the beta of the head of the same number.
- The projection of the edge features has a bias, and attention leaves out just the pairs whose
  weighted logit is zero. So as soon as the bias is not zero every pair of tokens takes part,
  itself included: attention is not confined to the edges.
- The encodings are eigenvectors of the graph with CLS in it (`encodings.augmented_encoding`).
- In training the sign is drawn for each entry of an eigenvector, not for the eigenvector.
- The last layer has ten outputs, whatever the number of classes.

Three of its ways are left out. Padding takes part there, so that a prediction depends on the
batch mates; here it does not, and a graph alone gives what the released code gives for it
alone. Noise is added there in prediction too. Graphs are cut there to their first 500 nodes.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Key

from etlib import energy as en
from etlib.block import BlockConfig, ETBlock
from etlib.buckets import Bucket, EdgeBucket
from etlib.errors import UserError
from etlib.graph_classifier import GraphClassifier, GraphConfig

N_OUTPUTS = 10


def mixed_attention_energy(
    g: Float[Array, "*b N D"],
    Wk: Float[Array, "H Y D"],
    Wq: Float[Array, "H Y D"],
    Hw: Float[Array, "H H"],
    beta: Float[Array, " H"],
    *,
    weights: Float[Array, "*b H N N"],
    valid: Bool[Array, "*b N"],
) -> Float[Array, "*b"]:
    """-sum_h 1/beta_h sum_C log sum_B exp(W_hBC sum_h' Hw_h'h beta_h' A_h'BC), over the pairs
    where the exponent is not zero. Options as in `energy.attention_energy`."""
    logits = en.attention_logits(*en.keys_queries(g, Wk, Wq), beta)
    mixed = jnp.einsum("...hBC,hH->...HBC", logits, Hw) * weights
    pairs = (mixed != 0) & en.attention_pairs(g.shape[-2], True, None, valid)[..., None, :, :]
    per_query = jax.nn.logsumexp(mixed, axis=-2, where=pairs)
    per_query = jnp.where(pairs.any(axis=-2), per_query, 0.0)
    return -jnp.sum(per_query.sum(axis=-1) / beta, axis=-1)


class ReleasedBlock(ETBlock):
    """A block with ``Hw`` (H, H) more; its gradient is autodiff of the energy."""

    def __init__(self, config: BlockConfig, *, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        H = config.n_heads
        self.Hw = nnx.Param(config.attention_std * jax.random.normal(rngs.params(), (H, H)))

    def energies(self, g, *, weights, valid):
        """(E_ATT, E_HN) at the normalised tokens g."""
        attention = mixed_attention_energy(
            g,
            self.Wk[...],
            self.Wq[...],
            self.Hw[...],
            self.beta[...],
            weights=weights,
            valid=valid,
        )
        return attention, en.hopfield_energy(g, self.Xi[...], self.config.activation, valid=valid)

    def gradient(self, g, **pairs):
        """dE/dg at the normalised tokens g."""

        def total(g):
            attention, hopfield = self.energies(g, **pairs)
            return jnp.sum(attention + hopfield)

        return jax.grad(total)(g)


class ReleasedGraphClassifier(GraphClassifier):
    """The released model, for graphs encoded with CLS in them (`buckets.encode`)."""

    def block(self, config: BlockConfig, rngs: nnx.Rngs) -> ReleasedBlock:
        return ReleasedBlock(config, rngs=rngs)

    def pairs(self, x: Float[Array, "*b N D"], graphs: Bucket | EdgeBucket) -> dict[str, Array]:
        if isinstance(graphs, EdgeBucket):
            raise UserError(
                "the released classifier joins all pairs of nodes, and cannot run on a list of "
                "edges: make its batches with dense_tokens=None"
            )
        return {"weights": self.weighted_adjacency(x, graphs), "valid": jnp.asarray(graphs.valid)}

    def flipped(self, graphs: Bucket, key: Key[Array, ""]) -> Bucket:
        signs = jax.random.rademacher(key, graphs.encoding.shape, graphs.encoding.dtype)
        return graphs._replace(encoding=graphs.encoding * signs)


def released_config(n_features: int, n_edge_features: int = 1, **changed) -> GraphConfig:
    """The configuration of the released notebooks for TU sets."""
    return GraphConfig(n_features, N_OUTPUTS, n_edge_features, **changed)
