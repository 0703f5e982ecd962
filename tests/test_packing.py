"""Batches of fixed shapes: every graph counted once, whatever is padded."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etlib import buckets as bk
from etlib import packing as pk
from etlib.data.graphset import graph
from etlib.errors import UserError


def path(n, y=0, edge_attr=None):
    """A path of n nodes whose features are all n."""
    edges = np.array([range(n - 1), range(1, n)], int)
    return graph(np.full((n, 2), n, np.float32), edges, y, edge_attr)


def paths(sizes):
    return bk.encode([path(n) for n in sizes], k=3)


def indices(batch):
    found = np.concatenate([b.index for b in batch])
    return found[found >= 0].tolist()


def shapes(batch):
    return [a.shape for b in batch for a in b]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=50), st.integers(1, 12))
def test_an_epoch_holds_each_graph_once_in_batches_of_one_shape(sizes, batch):
    encoded = paths(sizes)
    batches = pk.GraphBatches(encoded, batch)
    epoch = [next(batches) for _ in range(batches.steps_per_epoch)]
    assert sorted(i for b in epoch for i in indices(b)) == list(range(len(sizes)))
    assert all(shapes(b) == shapes(epoch[0]) for b in epoch)
    counts = [len(indices(b)) for b in epoch]
    assert max(counts) <= batch
    assert batches.steps_per_epoch == -(-len(sizes) // batch)


def test_batches_differ_in_graphs_from_epoch_to_epoch_and_not_in_shape():
    batches = pk.GraphBatches(paths(range(1, 41)), batch=10)
    first, second = ([next(batches) for _ in range(4)] for _ in range(2))
    assert [sorted(indices(b)) for b in first] != [sorted(indices(b)) for b in second]
    assert {tuple(shapes(b)) for b in first + second} == {tuple(shapes(first[0]))}


def test_batches_go_on_where_the_state_says():
    encoded = paths(range(1, 24))
    batches, resumed = pk.GraphBatches(encoded, 5, seed=3), pk.GraphBatches(encoded, 5, seed=3)
    for _ in range(7):
        next(batches)
    resumed.set_state(batches.get_state())
    for ours, theirs in zip(next(batches), next(resumed), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(a, b)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.floats(0, 1))
def test_few_lengths_and_little_padding(lengths, padding):
    """Against all ways to cut: none with fewer runs pads as little, none with as many less."""
    lengths = sorted(lengths)
    slots = len(lengths)

    def total(ends):
        starts = [0, *ends[:-1]]
        return sum(lengths[e - 1] * (e - s) for s, e in zip(starts, ends, strict=True))

    every = [[*cut, slots] for r in range(slots) for cut in combinations(range(1, slots), r)]
    allowed = [ends for ends in every if total(ends) <= (1 + padding) * sum(lengths)]
    fewest = min(map(len, allowed))
    found = pk._cuts(lengths, padding)
    assert len(found) == fewest
    assert total(found) == min(total(ends) for ends in every if len(ends) == fewest)


def test_buckets_divide_over_the_devices():
    batch = pk.evaluation_batches(paths([3, 30, 7]), batch=64, multiple=8)
    assert len(batch) == 1
    assert all(len(b.y) % 8 == 0 for b in batch[0])
    assert sorted(indices(batch[0])) == [0, 1, 2]


def test_folds_share_their_shapes():
    """Lists of other lengths and sizes, each laid out with the others in mind."""
    lists = [paths(range(1, 31)), paths([*range(2, 30), 50]), paths([7] * 27)]
    seen = set()
    for i, encoded in enumerate(lists):
        others = lists[:i] + lists[i + 1 :]
        batches = pk.GraphBatches(encoded, 10, alike=others, dense_tokens=20)
        for _ in range(batches.steps_per_epoch):
            seen.add(tuple(shapes(next(batches))))
    assert len(seen) == 1


def test_large_graphs_go_to_the_list_of_edges():
    encoded = paths([3, 30, 4, 40, 5, 6])
    *dense, edges = pk.evaluation_batches(encoded, dense_tokens=10)[0]
    assert sorted(i for b in dense for i in b.index) == [0, 2, 4, 5]
    assert edges.index.tolist() == [1, 3]
    assert edges.slot.tolist() == [0] * 31 + [1] * 41 + [-1] * (len(edges.slot) - 72)
    assert edges.used.sum() == 2 * (29 + 30 + 39 + 40)
    [alone] = pk.evaluation_batches(encoded[3:4], dense_tokens=10)[0]
    assert alone.index.tolist() == [0]
    dense_only = pk.evaluation_batches(encoded, dense_tokens=None)[0]
    assert all(isinstance(b, bk.Bucket) for b in dense_only)


def test_a_graph_in_its_slot():
    """A path of two nodes with edge features: CLS first, ones in its row and column of features."""
    attr = np.array([[2.0, 3.0]], np.float32)
    [b] = pk.evaluation_batches(bk.encode([path(2, y=1, edge_attr=attr)], k=2))[0]
    assert b.x.shape == (1, 4, 2)
    np.testing.assert_array_equal(b.x[0], [[0, 0], [2, 2], [2, 2], [0, 0]])
    np.testing.assert_array_equal(b.valid[0], [1, 1, 1, 0])
    np.testing.assert_array_equal(
        b.edges[0], [[0, 1, 1, 0], [1, 0, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]]
    )
    np.testing.assert_array_equal(
        b.edge_attr[0, ..., 1], [[1, 1, 1, 0], [1, 0, 3, 0], [1, 3, 0, 0], [0, 0, 0, 0]]
    )
    assert b.y.tolist() == [1]
    np.testing.assert_allclose(np.abs(b.encoding[0, 1:3, 0]), np.sqrt(0.5), rtol=1e-6)
    assert not b.encoding[0, [0, 3]].any()


def test_no_graphs_is_one_clear_error():
    with pytest.raises(UserError, match="0 graphs"):
        pk.GraphBatches([], 64)
    with pytest.raises(UserError, match="batches of 0"):
        pk.GraphBatches(paths([3]), 0)
