"""The attention energy of `etlib.energy` for many tokens: a block of queries at a time.

The result is the same; the logits of one block are all that is ever kept of the N x N, also in
a backward pass, which computes them again. Memory is linear in N, but for a mask or weights
that are given.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from etlib import energy as en


def _blocks(n_tokens: int, query_block: int):
    """The queries of each block, by number; those past the last token are padding."""
    n_blocks = -(-n_tokens // query_block)
    return jnp.arange(n_blocks * query_block).reshape(n_blocks, query_block)


def _of_block(array, block):
    """The block's part of an array whose last axis is the query, or None."""
    return None if array is None else jnp.take(array, block, axis=-1, mode="clip")


def _pairs(n_tokens: int, block, self_attention: bool, mask, valid):
    """`energy.attention_pairs` for the queries of a block, none of them for padding."""
    pairs = jnp.broadcast_to(block < n_tokens, (n_tokens, len(block)))
    if not self_attention:
        pairs = pairs & (jnp.arange(n_tokens)[:, None] != block)
    if mask is not None:
        pairs = pairs & _of_block(mask, block)
    if valid is not None:
        pairs = pairs & valid[..., :, None] & _of_block(valid, block)[..., None, :]
    return pairs


def attention_energy(
    g: Float[Array, "*b N D"],
    Wk: Float[Array, "H Y D"],
    Wq: Float[Array, "H Y D"],
    query_block: int,
    beta: en.Beta = None,
    *,
    self_attention: bool = False,
    mask=None,
    weights=None,
    valid=None,
) -> Float[Array, "*b"]:
    """`energy.attention_energy`, `query_block` queries at a time."""
    n, beta = g.shape[-2], en.per_head(beta, Wk)
    keys, queries = en.keys_queries(g, Wk, Wq)

    @jax.checkpoint
    def of_block(block):
        mine = jnp.take(queries, block, axis=-2, mode="clip")
        logits = en.attention_logits(keys, mine, beta, _of_block(weights, block))
        return en.log_sums(logits, _pairs(n, block, self_attention, mask, valid)).sum(axis=-1)

    log_sums = jax.lax.map(of_block, _blocks(n, query_block)).sum(axis=0)
    return -jnp.sum(log_sums / beta, axis=-1)


def attention_gradient(
    g: Float[Array, "*b N D"],
    Wk: Float[Array, "H Y D"],
    Wq: Float[Array, "H Y D"],
    query_block: int,
    beta: en.Beta = None,
    *,
    self_attention: bool = False,
    mask=None,
    weights=None,
    valid=None,
) -> Float[Array, "*b N D"]:
    """`energy.attention_gradient`, `query_block` queries at a time."""
    n, beta = g.shape[-2], en.per_head(beta, Wk)
    keys, queries = en.keys_queries(g, Wk, Wq)

    @partial(jax.checkpoint, policy=jax.checkpoint_policies.nothing_saveable)
    def of_block(block):
        mine = jnp.take(queries, block, axis=-2, mode="clip")
        pairs = _pairs(n, block, self_attention, mask, valid)
        return en.pulls(keys, mine, beta, pairs, _of_block(weights, block))

    def add(as_key, block):
        as_query, more = of_block(block)
        return as_key + more, as_query

    zero = jnp.zeros(keys.shape, jnp.promote_types(keys.dtype, jnp.float32))
    as_key, as_query = jax.lax.scan(add, zero, _blocks(n, query_block))
    as_query = jnp.moveaxis(as_query, 0, -3)  # (..., H, blocks, block, Y)
    as_query = as_query.reshape(*as_query.shape[:-3], -1, as_query.shape[-1])[..., :n, :]
    return en.to_tokens(as_query.astype(g.dtype), as_key.astype(g.dtype), Wk, Wq)
