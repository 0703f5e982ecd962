"""Graphs with labelled nodes: the rule for edges (A10), and what is refused."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from etlib.data.nodegraph import node_graph, undirected
from etlib.errors import DataError


def graph(pairs, n, **fields):
    x = fields.pop("x", np.zeros((n, 1), np.float32))
    labels = fields.pop("labels", np.zeros(n, np.int8))
    return node_graph("made", x, np.array(pairs).T.reshape(2, -1), labels, **fields)


def test_repeats_and_self_loops_count_by_the_rule():
    """Trouble case A10, nodes counted from 0."""
    once = graph([(0, 1)], 3)
    often = graph([(0, 1), (1, 0), (0, 1), (1, 0), (2, 2)], 3)
    np.testing.assert_array_equal(once.edges, often.edges)
    np.testing.assert_array_equal(often.degrees, [1, 1, 0])


def test_an_edge_listed_one_way_counts_both_ways():
    dense = graph([(0, 1), (1, 2)], 3).adjacency().toarray()
    np.testing.assert_array_equal(dense, [[0, 1, 0], [1, 0, 1], [0, 1, 0]])


@settings(deadline=None, max_examples=50)
@given(
    st.integers(1, 9).flatmap(
        lambda n: st.tuples(
            st.just(n),
            hnp.arrays(
                np.int32,
                st.tuples(st.just(2), st.integers(0, 40)),
                elements={"min_value": 0, "max_value": n - 1},
            ),
        )
    )
)
def test_edges_are_those_of_networkx(case):
    n, pairs = case
    other = nx.Graph()
    other.add_nodes_from(range(n))
    other.add_edges_from((a, b) for a, b in pairs.T.tolist() if a != b)
    edges = undirected(pairs, n)
    assert edges.dtype == np.int32
    listed = list(map(tuple, edges.T.tolist()))
    assert listed == sorted(listed, key=lambda edge: edge[::-1])
    assert set(listed) == {e for a, b in other.edges for e in ((a, b), (b, a))}
    assert len(listed) == 2 * other.number_of_edges()


def test_large_node_numbers_do_not_overflow():
    n = 2_000_000
    edges = undirected(np.array([[n - 1, n - 1], [n - 2, 0]], np.int32), n)
    np.testing.assert_array_equal(edges, [[n - 1, n - 1, 0, n - 2], [0, n - 2, n - 1, n - 1]])


def test_unlabelled_nodes_stay_in_the_graph():
    made = graph([(0, 1), (1, 2)], 3, labels=np.array([-1, 0, 1], np.int8))
    assert made.n_nodes == 3 and made.edges.shape == (2, 4)
    np.testing.assert_array_equal(made.labelled, [1, 2])


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"pairs": [(0, 3)]}, "nodes 0 to 3, but there are 3 nodes"),
        ({"pairs": [(0, -1)]}, "nodes -1 to 0"),
        ({"x": np.array([[0], [np.nan], [np.inf]], np.float32)}, "2 of 3 nodes .* not finite"),
        ({"labels": np.array([0, 2, 1], np.int8)}, r"labels are \[0 1 2\]"),
        ({"relations": {"friend": np.array([[0], [7]])}}, "made, friend: .* 0 to 7"),
    ],
)
def test_what_is_no_graph_is_refused(wrong, said):
    given = {"pairs": [(0, 1)], "n": 3} | wrong
    with pytest.raises(DataError, match=said):
        graph(**given)
