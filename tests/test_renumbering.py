"""The 3 x 3 convolution reads the order of the nodes; the 1 x 1 one does not."""

import numpy as np
import pytest

from etlib import buckets as bk
from etlib.data.graphset import graph
from etlib.renumbering import effect_of_renumbering, renumbered
from tests.graphs import K, make, some_graph


def test_a_renumbered_graph_is_the_same_graph():
    """Against `graph` itself, from the edges under their new names."""
    [encoded] = bk.encode([some_graph(6)], K)
    order = np.array([3, 0, 5, 1, 2, 4])
    found = renumbered(encoded, order)
    x, edges, attr, y = encoded.graph
    name = {old: new for new, old in enumerate(order)}
    wanted = graph(x[order], np.vectorize(name.get)(edges), y, attr)
    for a, b in zip(found.graph, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(found.encoding[1:], encoded.encoding[1:][order])


@pytest.mark.parametrize(("kernel", "reads_the_order"), [(3, True), (1, False)])
def test_who_reads_the_order_of_the_nodes(kernel, reads_the_order):
    encoded = bk.encode([some_graph(n) for n in (6, 7, 7, 6)], K)
    change = effect_of_renumbering(make(kernel=kernel), encoded, repeats=2)
    assert change.probability.shape == change.another_class.shape == (4,)
    if reads_the_order:
        assert (change.probability > 1e-3).all()
    else:
        np.testing.assert_allclose(change.probability, 0, atol=1e-5)
        assert not change.another_class.any()
