"""The attention energy on the neighbours of an undirected graph, streamed, without scatters.

Equal to `etlib.edge_energy` on the same edges, in blocks of edges, so that nothing of the size
of the edges is ever in memory but the tables of neighbours. In an undirected graph the queries
that attend to a node are its neighbours again, so that both terms of the closed-form update
are gathers; and so are both of its own derivative, which is written down here: a backward pass
by autodiff would scatter, on one thread, and keep what every edge gathered.

In the formulas B is a key, C a query, P_BC the softmax of the logits s_BC = beta K_B . Q_C over
the keys; heads are left out.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from etlib.energy import Beta, keys_queries, per_head
from etlib.neighbours import Neighbours, by_block

Heads = Float[Array, "N H Y"]


def _near(rows: Array, neighbours: Array) -> Array:
    return rows.at[neighbours].get(mode="promise_in_bounds")


def _own(rows: Array, nodes: Array) -> Array:
    return rows.at[nodes].get(mode="clip")  # a row that fills the block has no node


def _dots(near: Float[Array, "r w H Y"], own: Float[Array, "r H Y"]) -> Float[Array, "r H w"]:
    return jnp.einsum("rwHY,rHY->rHw", near, own)


def _weigh(by: Float[Array, "r H w"], near: Float[Array, "r w H Y"]) -> Float[Array, "r H Y"]:
    return jnp.einsum("rHw,rwHY->rHY", by, near)


@jax.custom_vjp
def attend(
    keys: Heads, queries: Heads, beta: Float[Array, " H"], graph: Neighbours
) -> tuple[Float[Array, "N H"], Heads, Heads]:
    """log sum_B exp s_BC of each query C; U_C = sum_B P_BC K_B; V_B = sum_C P_BC Q_C.

    A node without neighbours has zeros. The sums over neighbours run in float32 or better.
    """
    return _forward(keys, queries, beta, graph)[0]


def _forward(keys, queries, beta, graph):
    def as_query(nodes, near, entries):
        near_keys = _near(keys, near)
        logits = beta[:, None] * _dots(near_keys, _own(queries, nodes))
        log_sum = jax.nn.logsumexp(logits, axis=-1, where=entries[:, None])
        log_sum = jnp.where(entries.any(axis=-1, keepdims=True), log_sum, 0.0)
        P = jnp.where(entries[:, None], jnp.exp(logits - log_sum[..., None]), 0.0)
        return log_sum, _weigh(P, near_keys)

    log_sum, U = by_block(as_query, len(keys), graph)

    def as_key(nodes, near, entries):
        near_queries = _near(queries, near)
        logits = beta[:, None] * _dots(near_queries, _own(keys, nodes))
        P = jnp.exp(logits - _near(log_sum, near).swapaxes(-1, -2))
        return _weigh(jnp.where(entries[:, None], P, 0.0), near_queries)

    V = by_block(as_key, len(keys), graph)
    return (log_sum, U, V), (keys, queries, beta, graph, log_sum)


def _backward(saved, cotangents):
    """Cotangents e, u, v of log-sum, U, V, with a_BC = u_C . K_B + v_B . Q_C:

    ds_BC = P_BC (a_BC - mean_C + e_C), mean_C = sum_B P_BC a_BC,
    dQ_C  = sum_B (P_BC v_B + beta ds_BC K_B), dK_B = sum_C (P_BC u_C + beta ds_BC Q_C),
    dbeta = sum_BC ds_BC K_B . Q_C.
    """
    keys, queries, beta, graph, log_sum = saved
    e, u, v = cotangents

    def as_query(nodes, near, entries):
        near_keys, near_v = _near(keys, near), _near(v, near)
        own_queries = _own(queries, nodes)
        logits = beta[:, None] * _dots(near_keys, own_queries)
        P = jnp.exp(logits - _own(log_sum, nodes)[..., None])
        P = jnp.where(entries[:, None], P, 0.0)
        a = _dots(near_keys, _own(u, nodes)) + _dots(near_v, own_queries)
        shift = jnp.sum(P * a, axis=-1) - _own(e, nodes)
        ds = P * (a - shift[..., None])
        return shift, _weigh(P, near_v) + beta[:, None] * _weigh(ds, near_keys)

    shift, d_queries = by_block(as_query, len(keys), graph)

    def as_key(nodes, near, entries):
        near_queries, near_u = _near(queries, near), _near(u, near)
        own_keys = _own(keys, nodes)
        logits = beta[:, None] * _dots(near_queries, own_keys)
        P = jnp.exp(logits - _near(log_sum, near).swapaxes(-1, -2))
        P = jnp.where(entries[:, None], P, 0.0)
        a = _dots(near_u, own_keys) + _dots(near_queries, _own(v, nodes))
        ds = P * (a - _near(shift, near).swapaxes(-1, -2))
        pulled = _weigh(ds, near_queries)
        d_beta = jnp.sum(pulled * own_keys, axis=-1)
        return _weigh(P, near_u) + beta[:, None] * pulled, d_beta

    d_keys, d_beta = by_block(as_key, len(keys), graph)
    return d_keys, d_queries, d_beta.sum(axis=0), None


attend.defvjp(_forward, _backward)


def energy_and_gradient(
    g: Float[Array, "N D"],
    graph: Neighbours,
    Wk: Float[Array, "H Y D"],
    Wq: Float[Array, "H Y D"],
    beta: Beta = None,
) -> tuple[Float[Array, " N"], Float[Array, "N D"]]:
    """The part of E_ATT of each query, and dE_ATT/dg in closed form (eq-attention-update).

    Both as in `edge_energy`, and where only one is used, only that one is computed.
    """
    keys, queries = (jnp.moveaxis(a, 0, 1) for a in keys_queries(g, Wk, Wq))
    beta = per_head(beta, Wk)
    log_sum, U, V = attend(keys, queries, beta, graph)
    gradient = -jnp.einsum("NHY,HYD->ND", U, Wq) - jnp.einsum("NHY,HYD->ND", V, Wk)
    return -jnp.sum(log_sum / beta, axis=-1), gradient
