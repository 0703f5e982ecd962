"""Parts of a graph for training: which nodes, which edges, one shape, exact resuming."""

import jax
import numpy as np
import pytest

from etlib.anomaly import AnomalyConfig, anomaly_block
from etlib.anomaly_training import anomaly_training, fit_anomaly
from etlib.data.synthetic_fraud import FraudGraphConfig, generate
from etlib.detection import split
from etlib.errors import UserError
from etlib.subgraphs import SubgraphBatches
from tests.test_neighbours import listed


@pytest.fixture(scope="module")
def graph():
    """Its features say which node is which."""
    made = generate(FraudGraphConfig(n_nodes=301, mean_degree=20))
    number = np.arange(301, dtype=np.float32)[:, None]
    return made._replace(x=number)


def batches(graph, parts=4, seed=0, **block):
    config = AnomalyConfig(1, anomaly_block(**block))
    train = split(graph.labels, 0.4, 0).train
    return train, SubgraphBatches(graph.x, graph, train, config, parts, seed)


@pytest.mark.parametrize("self_attention", [False, True])
def test_a_part_holds_the_edges_between_its_nodes(graph, self_attention):
    train, parts = batches(graph, self_attention=self_attention)
    edges = set(zip(*graph.edges.tolist(), strict=True))
    seen = []
    for _ in range(4):
        batch = next(parts)
        nodes = batch.x[:, 0].astype(int)
        assert len(set(nodes)) == len(nodes)
        seen += nodes.tolist()
        expected = [
            (i, j)
            for i, a in enumerate(nodes)
            for j, b in enumerate(nodes)
            if (a, b) in edges or (self_attention and a == b)
        ]
        assert listed(batch.graphs[0]) == expected
        np.testing.assert_array_equal(batch.labels, graph.labels[nodes])
        np.testing.assert_array_equal(batch.weights > 0, np.isin(nodes, train))
        assert 0 <= np.sum(batch.weights > 0) - len(train) / 4 < 1
    assert set(seen) == set(range(301))
    assert len(seen) < 301 + 2 * 4


def test_parts_are_new_each_epoch_of_one_shape_and_resumed_exactly(graph):
    _, parts = batches(graph)
    many = [next(parts) for _ in range(24)]
    shapes = [[a.shape for a in jax.tree.leaves(batch)] for batch in many]
    assert all(s == shapes[0] for s in shapes)
    assert not np.array_equal(many[0].x, many[4].x)
    _, again = batches(graph)
    again.set_state({"step": 7})
    for a, b in zip(jax.tree.leaves(next(again)), jax.tree.leaves(many[7]), strict=True):
        np.testing.assert_array_equal(a, b)
    assert again.get_state() == {"step": 8}
    assert not np.array_equal(next(batches(graph, seed=1)[1]).x, many[0].x)


def test_tables_grow_where_there_is_no_room(graph):
    _, parts = batches(graph)
    parts.shapes = [{1: 1}]
    assert len(listed(next(parts).graphs[0])) > 0


def test_training_on_parts_learns():
    graph = generate(
        FraudGraphConfig(
            n_nodes=1200, mean_degree=10, n_communities=2, stray=4.0, degree_spread=0.1
        )
    )
    config = AnomalyConfig(10, anomaly_block(token_dim=16, head_dim=8, n_memories=16))
    nodes = split(graph.labels, 0.4, seed=0)
    training = anomaly_training(40, peak_lr=1e-2, end_lr=1e-2)
    fitted = fit_anomaly(graph, nodes, config, training, parts=4)
    assert fitted.validation.shape == (10, len(nodes.validation))
    y = graph.labels[nodes.test]
    assert fitted.rows[-1]["validation_ap"] > 0.6 > 0.1 > y.mean()


@pytest.mark.parametrize("parts", [0, 1000])
def test_impossible_parts(graph, parts):
    with pytest.raises(UserError, match=f"{parts} parts of 120 training nodes"):
        batches(graph, parts=parts)
