"""The rule for edges, and the statistics of a set."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etlib.data.graphset import GraphSet, graph, statistics


def plain(n, pairs, attr=None):
    edges = np.array(pairs, int).reshape(-1, 2).T
    return graph(np.ones((n, 1), np.float32), edges, 0, attr)


def test_repeats_and_self_loops_change_nothing():
    repeated = plain(3, [(0, 1), (1, 0), (0, 1), (1, 0), (2, 2)])
    assert repeated.edges.tolist() == [[0, 1], [1, 0]]
    assert repeated.degrees.tolist() == [1, 1, 0]


def test_one_direction_counts_in_both():
    path = plain(3, [(0, 1), (1, 2)])
    assert path.edges.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]


def test_an_edge_has_the_same_features_in_both_directions():
    attr = np.array([[9.0], [5.0], [7.0], [8.0], [6.0]], np.float32)
    made = plain(4, [(1, 0), (0, 1), (3, 2), (2, 2), (0, 1)], attr)
    assert made.edges.tolist() == [[0, 1, 2, 3], [1, 0, 3, 2]]
    assert made.edge_attr.tolist() == [[5.0], [5.0], [7.0], [7.0]]


def test_an_edge_to_nowhere_is_refused():
    with pytest.raises(ValueError, match="nodes 0 to 3, of 3 nodes"):
        plain(3, [(0, 3)])


@settings(max_examples=50, deadline=None)
@given(
    n=st.integers(1, 7),
    pairs=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=20),
)
def test_agrees_with_networkx(n, pairs):
    pairs = [(a % n, b % n) for a, b in pairs]
    other = nx.Graph()
    other.add_nodes_from(range(n))
    other.add_edges_from((a, b) for a, b in pairs if a != b)
    ours = plain(n, pairs)
    assert ours.edges.T.tolist() == sorted(map(list, other.to_directed().edges))
    assert ours.degrees.tolist() == [other.degree(i) for i in range(n)]


def test_statistics_count_an_edge_once():
    graphs = (plain(3, [(0, 1), (1, 2)]), plain(5, [(0, 1)])._replace(y=1))
    found = statistics(GraphSet("toy", graphs, ("a", "b"), "ones", "made up"))
    assert found == (2, 2, 4.0, 1.5, 5, 1, 0)
