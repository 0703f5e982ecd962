"""Frequencies on a graph, against all eigenvectors of small graphs."""

import networkx as nx
import numpy as np
import pytest

from etlib.data.nodegraph import node_graph
from etlib.graph_frequencies import (
    energy_share,
    mean_frequency,
    normalised_laplacian,
    right_shift,
    without,
)


def graph(G, x=None, anomalies=()):
    n = len(G)
    x = np.zeros((n, 1)) if x is None else x
    labels = np.zeros(n, np.int8)
    labels[list(anomalies)] = 1
    pairs = np.array(list(G.edges)).T.reshape(2, -1)
    return node_graph("made", x.astype(np.float32), pairs, labels)


@pytest.fixture
def made():
    rng = np.random.default_rng(0)
    G = nx.connected_watts_strogatz_graph(200, 6, 0.2, seed=1)
    return graph(G), rng.normal(size=(200, 3))


def spectrum(L, x):
    values, vectors = np.linalg.eigh(L.toarray())
    return values, (vectors.T @ x) ** 2


def test_laplacian_is_that_of_networkx():
    G = nx.barabasi_albert_graph(30, 2, seed=0)
    G.add_node(30)  # without an edge
    expected = nx.normalized_laplacian_matrix(G).toarray()
    np.testing.assert_allclose(normalised_laplacian(graph(G)).toarray(), expected, atol=1e-6)


def test_mean_frequency(made):
    L, x = normalised_laplacian(made[0]), made[1]
    values, energy = spectrum(L, x)
    expected = values @ energy / energy.sum(axis=0)
    np.testing.assert_allclose(mean_frequency(L, x), expected, rtol=1e-5)
    assert np.isnan(mean_frequency(L, np.zeros((200, 1)))[0])


def test_smoothest_and_roughest_signals():
    L = normalised_laplacian(graph(nx.cycle_graph(8)))
    constant, alternating = np.ones((8, 1)), np.resize([1.0, -1.0], (8, 1))
    signals = np.hstack([constant, alternating])
    np.testing.assert_allclose(mean_frequency(L, signals), [0, 2], atol=1e-6)


def test_energy_share(made):
    L, x = normalised_laplacian(made[0]), made[1]
    values, energy = spectrum(L, x)
    bounds = np.array([0.3, 0.8, 1.0, 1.3])
    expected = [energy[values <= b].sum() / energy.sum() for b in bounds]
    np.testing.assert_allclose(energy_share(L, x, bounds, 400), expected, atol=0.02)
    np.testing.assert_allclose(energy_share(L, x, np.array([0.0, 2.0])), [0, 1], atol=0.01)


def test_taking_nodes_out():
    G = nx.barabasi_albert_graph(30, 2, seed=0)
    made = graph(G, np.arange(30.0)[:, None], anomalies=[3, 8])
    rest = without(made, np.array([8, 1, 20]))
    expected = nx.to_numpy_array(G.subgraph(n for n in G if n not in (8, 1, 20)))
    np.testing.assert_array_equal(rest.adjacency().toarray(), expected)
    assert rest.x[:3, 0].tolist() == [0, 2, 3] and rest.labels.sum() == 1 and rest.labels[2] == 1


def test_right_shift_of_a_spike():
    """A node that differs from all its neighbours is a high frequency; taking it out lowers it."""
    G = nx.grid_2d_graph(12, 12)
    x = np.array([[a + b] for a, b in G]) / 10.0
    x[[40, 77, 100]] += 8.0
    made = graph(nx.convert_node_labels_to_integers(G), x, [40, 77, 100])
    shift = right_shift(made, draws=4)
    assert shift.whole > 5 * shift.without_anomalies
    assert len(shift.without_normal) == 4
    assert (shift.without_normal > 2 * shift.without_anomalies).all()
