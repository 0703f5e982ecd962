"""Circular skip-link graphs: alike to message passing, told apart by their spectra."""

import networkx as nx
import numpy as np
import pytest

from etlib.data.csl import csl
from etlib.data.graphset import statistics


@pytest.fixture(scope="module")
def graphs():
    return csl()


def laplacian_spectrum(graph):
    n = len(graph.x)
    adjacency = np.zeros((n, n))
    adjacency[*graph.edges] = 1
    return np.linalg.eigvalsh(np.eye(n) - adjacency / 4)


def test_has_the_published_statistics(graphs):
    assert statistics(graphs) == (150, 10, 41.0, 82.0, 41, 1, 0)
    assert np.bincount(graphs.y).tolist() == [15] * 10


def test_weisfeiler_leman_sees_one_graph(graphs):
    def seen(graph):
        other = nx.Graph(graph.edges.T.tolist())
        nx.set_node_attributes(other, "1", "x")
        return nx.weisfeiler_lehman_graph_hash(other, node_attr="x", iterations=5)

    assert len({seen(graph) for graph in graphs.graphs[::15]}) == 1


def test_spectra_tell_the_classes_apart_and_nothing_else(graphs):
    spectra = np.array([laplacian_spectrum(graph) for graph in graphs.graphs])
    gaps = np.abs(spectra[:, None] - spectra).max(axis=-1)
    same = graphs.y[:, None] == graphs.y
    assert gaps[same].max() < 1e-10 and gaps[~same].min() > 1e-2


def test_copies_are_renumbered_and_always_the_same(graphs):
    first, second = graphs.graphs[:2]
    assert not np.array_equal(first.edges, second.edges)
    pairs = zip(graphs.graphs, csl().graphs, strict=True)
    assert all(np.array_equal(a.edges, b.edges) for a, b in pairs)
