"""Laplacian encodings against networkx's spectrum, and the cases that break eigen-solvers."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etlib.encodings import augmented_encoding, laplacian_encoding


def edges_of(graph):
    pairs = np.array(graph.edges, int).reshape(-1, 2).T
    return np.concatenate([pairs, pairs[::-1]], axis=1)


def laplacian_of(graph):
    return nx.normalized_laplacian_matrix(graph).toarray()


def check_against_networkx(graph, k, **options):
    """The columns are orthonormal eigenvectors of the k smallest non-trivial eigenvalues."""
    n = len(graph)
    found = laplacian_encoding(n, edges_of(graph), k, **options)
    trivial = nx.number_connected_components(graph)
    wanted = np.sort(nx.normalized_laplacian_spectrum(graph))[trivial : trivial + k]
    some = found[:, : len(wanted)]
    np.testing.assert_allclose(laplacian_of(graph) @ some, some * wanted, atol=1e-7)
    np.testing.assert_allclose(some.T @ some, np.eye(len(wanted)), atol=1e-7)
    assert found.shape == (n, k)
    assert not found[:, len(wanted) :].any()


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 12), st.floats(0, 0.6), st.integers(0, 8), st.integers(0, 2**16))
def test_eigenvectors_of_any_graph(n, density, k, seed):
    """Isolated nodes and several components among them: one zero is skipped for each."""
    check_against_networkx(nx.gnp_random_graph(n, density, seed=seed), k)


def test_the_sparse_solver_finds_the_same_vectors():
    graph = nx.random_geometric_graph(300, 0.12, seed=3)
    dense = laplacian_encoding(300, edges_of(graph), 6)
    sparse = laplacian_encoding(300, edges_of(graph), 6, dense_nodes=10)
    again = laplacian_encoding(300, edges_of(graph), 6, dense_nodes=10)
    np.testing.assert_allclose(sparse, dense, atol=1e-6)
    np.testing.assert_array_equal(again, sparse)
    check_against_networkx(graph, 6, dense_nodes=10)


def test_the_entry_of_largest_size_is_positive():
    found = laplacian_encoding(9, edges_of(nx.path_graph(9)), 8)
    largest = np.abs(found).max(axis=0)
    first = (np.abs(found) > largest - 1e-9).argmax(axis=0)
    np.testing.assert_allclose(found[first, range(8)], largest)


@pytest.mark.parametrize(
    ("graph", "k", "non_trivial"),
    [
        (nx.complete_graph(3), 3, 2),
        (nx.complete_graph(3), 10, 2),
        (nx.empty_graph(1), 4, 0),
        (nx.path_graph(2), 1, 1),
        (nx.path_graph(5), 0, 0),
    ],
)
def test_more_vectors_asked_for_than_there_are(graph, k, non_trivial):
    """A04: the width is always k, and what a graph does not have is zero."""
    found = laplacian_encoding(len(graph), edges_of(graph), k)
    assert found.shape == (len(graph), k)
    assert np.count_nonzero(np.abs(found).sum(axis=0)) == non_trivial


def test_with_cls_in_the_graph():
    """The released encoding: CLS is joined to itself too, which networkx counts in its degree."""
    graph = nx.gnp_random_graph(7, 0.3, seed=1)
    with_cls = nx.relabel_nodes(graph, lambda node: node + 1)
    with_cls.add_edges_from((0, node) for node in range(8))
    A = nx.to_numpy_array(with_cls, nodelist=range(8))
    scale = np.diag(A.sum(axis=1) ** -0.5)
    _, vectors = np.linalg.eigh(np.eye(8) - scale @ A @ scale)
    found = augmented_encoding(7, edges_of(graph), 10)
    np.testing.assert_allclose(np.abs(found[:, :7]), np.abs(vectors[:, 1:]), atol=1e-9)
    assert found.shape == (8, 10)
    assert not found[:, 7:].any()
