"""Tables of neighbours, and the streamed attention on them, against edges and autodiff."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from etlib import edge_energy as ee
from etlib import neighbour_energy as ne
from etlib.errors import UserError
from etlib.neighbours import neighbours


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def random_graph(n, m, seed=0, hub=True):
    """(senders, receivers) of a simple undirected graph; node 0 alone, node 1 with everyone."""
    rng = np.random.default_rng(seed)
    adjacency = np.zeros((n, n), bool)
    adjacency[tuple(rng.integers(1, n, (2, m)))] = True
    if hub:
        adjacency[1] = True
    adjacency |= adjacency.T
    adjacency[0] = adjacency[:, 0] = False
    np.fill_diagonal(adjacency, False)
    receivers, senders = np.nonzero(adjacency)
    return senders.astype(np.int32), receivers.astype(np.int32)


def listed(graph):
    """All (sender, receiver) of the tables, by a loop."""
    pairs = []
    for table in graph:
        for nodes, near, degrees in zip(*table, strict=True):
            for node, row, degree in zip(nodes, near, degrees, strict=True):
                pairs += [(int(sender), int(node)) for sender in row[:degree]]
    return sorted(pairs)


@pytest.mark.parametrize("block_edges", [1, 10, 10**6])
@pytest.mark.parametrize("with_self", [False, True])
def test_tables_hold_each_edge_once(block_edges, with_self):
    senders, receivers = random_graph(40, 120)
    graph = neighbours(40, senders, receivers, with_self=with_self, block_edges=block_edges)
    edges = list(zip(senders.tolist(), receivers.tolist(), strict=True))
    assert listed(graph) == sorted(edges + [(i, i) for i in range(40)] * with_self)
    rows = np.concatenate([table.nodes.ravel() for table in graph])
    np.testing.assert_array_equal(np.sort(rows[rows < 40]), np.arange(40))
    largest = max(t.neighbours.shape[1] * t.neighbours.shape[2] for t in graph)
    assert largest <= max(block_edges, 39 + with_self)


def test_few_tables_and_little_padding():
    rng = np.random.default_rng(0)
    sizes = np.minimum(rng.pareto(1.5, 3000) * 5, 2000).astype(int)
    receivers = np.repeat(np.arange(3000), sizes)
    senders = rng.integers(0, 3000, len(receivers))
    both = np.c_[np.r_[senders, receivers], np.r_[receivers, senders]]
    both = both[np.argsort(both[:, 1], kind="stable")].astype(np.int32)
    graph = neighbours(3000, both[:, 0], both[:, 1])
    assert len(graph) < 2 + np.log2(np.bincount(both[:, 1]).max())
    assert sum(t.neighbours.size for t in graph) < 1.5 * len(both)


@pytest.mark.parametrize(
    "senders, receivers, message",
    [
        ([1, 0], [1, 0], "not sorted by receiver"),
        ([1, 3], [0, 1], "name nodes 0 to 3, of 3 nodes"),
        ([1, 2], [0, 1], "one direction only"),
        ([1, 0, 0], [0, 1, 1], "one direction only"),
    ],
)
def test_other_graphs_are_refused(senders, receivers, message):
    with pytest.raises(UserError, match=message):
        neighbours(3, np.array(senders), np.array(receivers))


def random_weights(n, seed=0, D=5, H=2, Y=3):
    rng = np.random.default_rng(seed)
    g, Wk, Wq = rng.normal(size=(n, D)), rng.normal(size=(H, Y, D)), rng.normal(size=(H, Y, D))
    return [jnp.asarray(a) for a in (g, Wk, Wq, rng.uniform(0.3, 2.0, H))]


@pytest.mark.parametrize("block_edges, with_self", [(16, True), (10**6, False)])
def test_streamed_equals_edges_with_all_derivatives(block_edges, with_self):
    """Energy and gradient, and the derivatives of both by tokens, weights and beta."""
    n = 12
    senders, receivers = random_graph(n, 12)
    graph = neighbours(n, senders, receivers, with_self=with_self, block_edges=block_edges)
    if with_self:
        senders, receivers = np.r_[senders, np.arange(n)], np.r_[receivers, np.arange(n)]
        order = np.argsort(receivers, kind="stable")
        senders, receivers = senders[order], receivers[order]
    g, Wk, Wq, beta = random_weights(n)
    rng = np.random.default_rng(1)
    of_energy, of_gradient = jnp.asarray(rng.normal(size=n)), jnp.asarray(rng.normal(size=g.shape))

    def with_derivatives(both, *where):
        def value(g, Wk, Wq, beta):
            energy, gradient = both(g, *where, Wk, Wq, beta)
            return jnp.sum(energy * of_energy) + jnp.sum(gradient * of_gradient), (energy, gradient)

        by = partial(jax.value_and_grad, argnums=(0, 1, 2, 3), has_aux=True)
        return jax.jit(by(value))(g, Wk, Wq, beta)

    def on_edges(*arguments):
        return ee.attention_energy(*arguments), ee.attention_gradient(*arguments)

    streamed = with_derivatives(ne.energy_and_gradient, graph)
    edges = with_derivatives(on_edges, senders, receivers)
    for a, b in zip(jax.tree.leaves(streamed), jax.tree.leaves(edges), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


def test_gradient_is_the_derivative_of_the_energy():
    graph = neighbours(12, *random_graph(12, 12))
    g, *weights = random_weights(12)

    def energy(g):
        per_query, gradient = ne.energy_and_gradient(g, graph, *weights)
        return per_query.sum(), gradient

    derivative, gradient = jax.jit(jax.grad(energy, has_aux=True))(g)
    np.testing.assert_allclose(gradient, derivative, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("n", [1, 3])
def test_graphs_without_edges(n):
    none = np.zeros(0, np.int32)
    g, *weights = random_weights(n)
    alone, own = neighbours(n, none, none), neighbours(n, none, none, with_self=True)
    for zero in ne.energy_and_gradient(g, alone, *weights):
        np.testing.assert_array_equal(zero, 0)
    itself = np.arange(n)
    np.testing.assert_allclose(
        ne.energy_and_gradient(g, own, *weights)[0],
        ee.attention_energy(g, itself, itself, *weights),
    )


def test_large_logits_do_not_overflow():
    senders, receivers = random_graph(12, 12)
    graph = neighbours(12, senders, receivers)
    g, *weights = [a.astype(jnp.float32) for a in random_weights(12)]
    _, streamed = jax.jit(ne.energy_and_gradient)(10 * g, graph, *weights)
    assert jnp.isfinite(streamed).all()
    edges = ee.attention_gradient(10 * g, senders, receivers, *weights)
    np.testing.assert_allclose(streamed, edges, rtol=2e-3, atol=2e-3)
