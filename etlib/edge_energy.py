"""The attention energy of `etlib.energy` on a list of edges, for graphs that are sparse.

An edge goes from a sender, a key B, to a receiver, a query C: query C attends to the senders
of its edges. The edges are sorted by receiver; one listed twice counts twice, and a node
attends to itself only over an edge of its own. Symbols are those of `etlib.energy`; memory
grows with the number E of edges, not with N^2.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from etlib.energy import Beta, keys_queries, per_head


def _sum_by_receiver(values: Float[Array, "E *d"], receivers: Int[Array, " E"], n: int):
    return jax.ops.segment_sum(values, receivers, n, indices_are_sorted=True)


def _logits(keys, queries, senders, receivers, beta, weights, valid) -> Float[Array, "E H"]:
    """beta_h A_hBC of each edge, times its weight; -inf on an edge that is padding."""
    wide = jnp.promote_types(keys.dtype, jnp.float32)
    products = keys[:, senders].astype(wide) * queries[:, receivers].astype(wide)
    logits = beta * products.sum(axis=-1).T
    if weights is not None:
        logits = logits * weights
    return logits if valid is None else jnp.where(valid[:, None], logits, -jnp.inf)


def _softmax_parts(
    logits: Float[Array, "E H"], receivers: Int[Array, " E"], n: int
) -> tuple[Float[Array, "E H"], Float[Array, "n H"], Float[Array, "n H"]]:
    """exp(logit - largest of the receiver), their sum by receiver, and that largest logit.

    The sum is 0, and the largest 0, for a receiver without edges.
    """
    largest = jax.ops.segment_max(logits, receivers, n, indices_are_sorted=True)
    largest = jax.lax.stop_gradient(jnp.where(jnp.isfinite(largest), largest, 0.0))
    exponentials = jnp.exp(logits - largest[receivers])
    return exponentials, _sum_by_receiver(exponentials, receivers, n), largest


def attention_energy(
    g: Float[Array, "N D"],
    senders: Int[Array, " E"],
    receivers: Int[Array, " E"],
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
    beta = per_head(beta, Wk)
    logits = _logits(*keys_queries(g, Wk, Wq), senders, receivers, beta, weights, valid)
    _, total, largest = _softmax_parts(logits, receivers, len(g))
    some = total > 0
    log_sum = jnp.where(some, jnp.log(jnp.where(some, total, 1.0)) + largest, 0.0)
    return -jnp.sum(log_sum / beta, axis=-1)


def attention_gradient(
    g: Float[Array, "N D"],
    senders: Int[Array, " E"],
    receivers: Int[Array, " E"],
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
    keys, queries = keys_queries(g, Wk, Wq)
    logits = _logits(keys, queries, senders, receivers, per_head(beta, Wk), weights, valid)
    exponentials, total, _ = _softmax_parts(logits, receivers, len(g))
    attention = exponentials / jnp.where(total > 0, total, 1.0)[receivers]
    if weights is not None:
        attention = attention * weights
    attention = attention.T[..., None].astype(g.dtype)
    to_queries = jnp.moveaxis(attention * keys[:, senders], 1, 0)
    to_keys = jnp.moveaxis(attention * queries[:, receivers], 1, 0)
    as_query = _sum_by_receiver(to_queries, receivers, len(g))
    as_key = jax.ops.segment_sum(to_keys, senders, len(g))
    return -jnp.einsum("NHY,HYD->ND", as_query, Wq) - jnp.einsum("NHY,HYD->ND", as_key, Wk)
