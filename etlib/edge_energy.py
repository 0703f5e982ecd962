"""The attention energy of `etlib.energy` on a list of edges, for graphs that are sparse.

An edge goes from a sender, a key B, to a receiver, a query C: query C attends to the senders
of its edges. The edges are sorted by receiver; one listed twice counts twice, and a node
attends to itself only over an edge of its own. Symbols are those of `etlib.energy`; memory
grows with the number E of edges, not with N^2.

The heads are taken one after the other, forwards and backwards: what is picked up along the
edges, E Y numbers, is then in memory for one head only, and more of it in the cache.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from etlib.energy import Beta, keys_queries, per_head


def _sum_by_receiver(
    values: Float[Array, "E *d"], receivers: Int[Array | np.ndarray, " E"], n: int
):
    return jax.ops.segment_sum(values, receivers, n, indices_are_sorted=True)


def _logits(
    keys: Float[Array, "E Y"],
    queries: Float[Array, "E Y"],
    beta: Float[Array, ""],
    weights: Float[Array, " E"] | None,
    valid: Bool[Array, " E"] | None,
) -> Float[Array, " E"]:
    """beta A_BC of each edge, times its weight; -inf on an edge that is padding."""
    wide = jnp.promote_types(keys.dtype, jnp.float32)
    logits = beta * jnp.sum(keys.astype(wide) * queries.astype(wide), axis=-1)
    if weights is not None:
        logits = logits * weights
    return logits if valid is None else jnp.where(valid, logits, -jnp.inf)


def _softmax_parts(
    logits: Float[Array, " E"], receivers: Int[Array | np.ndarray, " E"], n: int
) -> tuple[Float[Array, " E"], Float[Array, " n"], Float[Array, " n"]]:
    """exp(logit - largest of the receiver), their sum by receiver, and that largest logit.

    The sum is 0, and the largest 0, for a receiver without edges.
    """
    largest = jax.ops.segment_max(logits, receivers, n, indices_are_sorted=True)
    largest = jax.lax.stop_gradient(jnp.where(jnp.isfinite(largest), largest, 0.0))
    exponentials = jnp.exp(logits - largest[receivers])
    return exponentials, _sum_by_receiver(exponentials, receivers, n), largest


def _over_heads(of_head, g, Wk, Wq, beta, weights):
    """The sum over heads of of_head(keys, queries, Wk, Wq, beta, weights), one at a time."""

    @jax.checkpoint
    def add(total, head):
        Wk, Wq, beta, weights = head
        keys, queries = keys_queries(g, Wk[None], Wq[None])
        return total + of_head(keys[0], queries[0], Wk, Wq, beta, weights), None

    heads = (Wk, Wq, beta, None if weights is None else weights.T)
    first = jax.eval_shape(add, 0.0, jax.tree.map(lambda a: a[0], heads))[0]
    return jax.lax.scan(add, jnp.zeros(first.shape, first.dtype), heads)[0]


def attention_energy(
    g: Float[Array, "N D"],
    senders: Int[Array | np.ndarray, " E"],
    receivers: Int[Array | np.ndarray, " E"],
    Wk: Float[Array, "H Y D"],
    Wq: Float[Array, "H Y D"],
    beta: Beta = None,
    *,
    weights: Float[Array, "E H"] | None = None,
    valid: Bool[Array, " E"] | None = None,
) -> Float[Array, " N"]:
    """The part of E_ATT of each query C, -sum_h 1/beta_h log sum_B exp(beta_h A_hBC).

    Summed over queries it is `energy.attention_energy` with the edges as mask. beta, weights
    as there; valid: False for edges that are padding. A query without edges contributes zero.
    """

    def of_head(keys, queries, Wk, Wq, beta, weights):
        logits = _logits(keys[senders], queries[receivers], beta, weights, valid)
        _, total, largest = _softmax_parts(logits, receivers, len(g))
        some = total > 0
        return -jnp.where(some, jnp.log(jnp.where(some, total, 1.0)) + largest, 0.0) / beta

    return _over_heads(of_head, g, Wk, Wq, per_head(beta, Wk), weights)


def attention_gradient(
    g: Float[Array, "N D"],
    senders: Int[Array | np.ndarray, " E"],
    receivers: Int[Array | np.ndarray, " E"],
    Wk: Float[Array, "H Y D"],
    Wq: Float[Array, "H Y D"],
    beta: Beta = None,
    *,
    weights: Float[Array, "E H"] | None = None,
    valid: Bool[Array, " E"] | None = None,
) -> Float[Array, "N D"]:
    """dE_ATT/dg in closed form, as in `energy.attention_gradient` (eq-attention-update).

    Token C as a query gathers the keys of its senders; token B as a key receives, by a
    scatter, from the queries it is a sender of.
    """

    def of_head(keys, queries, Wk, Wq, beta, weights):
        sent, received = keys[senders], queries[receivers]
        logits = _logits(sent, received, beta, weights, valid)
        exponentials, total, _ = _softmax_parts(logits, receivers, len(g))
        attention = exponentials / jnp.where(total > 0, total, 1.0)[receivers]
        if weights is not None:
            attention = attention * weights
        attention = attention[:, None].astype(g.dtype)
        as_query = _sum_by_receiver(attention * sent, receivers, len(g))
        as_key = jax.ops.segment_sum(attention * received, senders, len(g))
        return -(as_query @ Wq) - as_key @ Wk

    return _over_heads(of_head, g, Wk, Wq, per_head(beta, Wk), weights)
