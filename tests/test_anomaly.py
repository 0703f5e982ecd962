"""The anomaly model against the dense block; its variants; training on a whole graph."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from etlib import anomaly
from etlib import energy as en
from etlib.anomaly import (
    AnomalyConfig,
    NodeAnomalyModel,
    NodeBatch,
    anomaly_block,
    anomaly_loss,
    class_weights,
    released,
)
from etlib.anomaly_training import (
    anomaly_training,
    fit_anomaly,
    probabilities,
    standardised,
    tables,
)
from etlib.block import descend
from etlib.data.nodegraph import node_graph
from etlib.detection import Split, split
from etlib.errors import UserError
from etlib.neighbours import neighbours

F, SIZES = (
    4,
    {"token_dim": 6, "head_dim": 3, "n_memories": 5, "attention_std": 1.0, "memory_std": 0.5},
)


def small(**changed):
    """A configuration whose attention matters from the start."""
    block = {"n_steps": 2, "n_heads": 2, **SIZES} | changed.pop("block", {})
    return AnomalyConfig(F, anomaly_block(**block), n_hidden=7, **changed)


def random_graph(n=8, m=6, seed=0):
    """Its node 0 has no neighbour."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, F)).astype(np.float32)
    labels = (rng.random(n) < 0.5).astype(np.int8)
    kinds = {"a": rng.integers(1, n, (2, m)), "b": rng.integers(1, n, (2, m))}
    return node_graph("random", x, np.concatenate(list(kinds.values()), axis=1), labels, kinds)


def dense(graph):
    return jnp.asarray(graph.adjacency().toarray() > 0)


def on_blocks(graph, config, block_edges):
    edges = neighbours(
        graph.n_nodes,
        *graph.edges,
        with_self=config.block.self_attention,
        block_edges=block_edges,
    )
    return (jax.tree.map(jnp.asarray, edges),)


logits_of = nnx.jit(lambda model, x, graphs: model(jnp.asarray(x), graphs))
traced = nnx.jit(lambda model, first, near: model.descend(first, near, trace=True))


# --- the model ----------------------------------------------------------------


def test_loss_and_gradient_as_on_the_dense_graph():
    """The model on blocks of edges; and the block of `etlib.block` with a mask."""
    config = small(block={"self_attention": True, "learn_beta": True})
    model, graph = NodeAnomalyModel(config, rngs=nnx.Rngs(0)), random_graph()
    x = jnp.asarray(graph.x)
    weights = np.where(graph.labels == 1, 2.0, 1.0).astype(np.float32) * (np.arange(8) > 2)
    mask = dense(graph) | jnp.eye(8, dtype=bool)

    def loss_on_blocks(model):
        graphs = on_blocks(graph, config, 8)
        seed = np.zeros(1, np.int32)
        batch = NodeBatch(x, graphs, graph.labels, weights, seed)
        return anomaly_loss(model, batch, jax.random.key(0))[0]

    def loss_on_mask(model):
        first = model.embed(x)
        last, _ = descend(model.block, first, mask=mask)
        g = jnp.concatenate([model.block.norm(first), model.block.norm(last)], axis=-1)
        p = jax.nn.sigmoid(model.out(jax.nn.relu(model.hidden(g)))[:, 0])
        y = graph.labels
        each = weights * -(y * jnp.log(p) + (1 - y) * jnp.log(1 - p))
        return each.sum() / weights.sum()

    blocks = nnx.jit(nnx.value_and_grad(loss_on_blocks))(model)
    masked = nnx.jit(nnx.value_and_grad(loss_on_mask))(model)
    for a, b in zip(jax.tree.leaves(blocks), jax.tree.leaves(masked), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_energies_of_nodes_sum_to_the_energy_and_fall():
    config, graph = small(block={"n_steps": 4, "alpha": 0.01}), random_graph()
    model = NodeAnomalyModel(config, rngs=nnx.Rngs(1))
    first = model.embed(jnp.asarray(graph.x))
    last, trace = traced(model, first, on_blocks(graph, config, 100)[0])
    assert trace.attention.shape == trace.hopfield.shape == (5, 8)
    np.testing.assert_array_equal(trace.tokens[0], first)
    np.testing.assert_array_equal(trace.tokens[-1], last)
    for t in range(5):
        g = model.block.norm(trace.tokens[t])
        attention, hopfield = model.block.energies(g, mask=dense(graph))
        np.testing.assert_allclose(trace.attention[t].sum(), attention, rtol=1e-5)
        np.testing.assert_allclose(trace.hopfield[t].sum(), hopfield, rtol=1e-5)
    assert np.all(np.diff(trace.energy.sum(axis=1)) < 0)
    np.testing.assert_array_equal(trace.attention[:, 0], 0)  # it has no neighbour


def test_nodes_far_apart_do_not_matter_and_numbering_neither():
    config, graph = small(), random_graph()
    model = NodeAnomalyModel(config, rngs=nnx.Rngs(0))
    logits = logits_of(model, graph.x, on_blocks(graph, config, 100))
    moved = np.random.default_rng(3).permutation(8)
    pairs, x = np.argsort(moved)[graph.edges], graph.x[moved]
    again = node_graph("moved", x, pairs, graph.labels[moved])
    np.testing.assert_allclose(
        logits_of(model, x, on_blocks(again, config, 100)), logits[moved], rtol=1e-4, atol=1e-5
    )
    x = graph.x.copy()
    x[0] += 1  # it has no neighbour
    other = logits_of(model, x, on_blocks(graph, config, 100))
    np.testing.assert_array_equal(np.flatnonzero(np.asarray(other != logits)), [0])


def test_many_nodes_a_part_at_a_time(monkeypatch):
    config, graph = small(), random_graph()
    model = NodeAnomalyModel(config, rngs=nnx.Rngs(0))
    x, graphs = jnp.asarray(graph.x), on_blocks(graph, config, 8)
    whole = model(x, graphs)
    monkeypatch.setattr(anomaly, "_ROWS", 4)
    np.testing.assert_allclose(model(x, graphs), whole, rtol=1e-5, atol=1e-6)


def test_one_node():
    config, graph = small(), random_graph(n=1, m=0)
    model = NodeAnomalyModel(config, rngs=nnx.Rngs(0))
    assert np.isfinite(model(jnp.asarray(graph.x), on_blocks(graph, config, 8))).all()


# --- the released variants ----------------------------------------------------


def test_released_step_written_out():
    """One step of the released form: the normalised token minus the gradient, twice."""
    config = replace(released(F, **SIZES, n_steps=2), memory_dropout=0.0)
    model, graph = NodeAnomalyModel(config, rngs=nnx.Rngs(0)), random_graph()
    x = first = model.embed(jnp.asarray(graph.x))
    options = {"mask": dense(graph) | jnp.eye(8, dtype=bool), "self_attention": True}
    for block in (model.block, model.last):
        g = block.norm(x)
        x = g - en.energy_gradient(g, block.Wk[...], block.Wq[...], block.Xi[...], **options)
    logits = model.out(jnp.concatenate([first, x], axis=-1))[:, 0]
    found = logits_of(model, graph.x, on_blocks(graph, config, 100))
    np.testing.assert_allclose(found, logits, rtol=1e-4, atol=1e-4)
    _, trace = traced(model, first, on_blocks(graph, config, 100)[0])
    assert trace.tokens.shape == (3, 8, 6)
    np.testing.assert_allclose(trace.tokens[2], x, rtol=1e-4, atol=1e-4)


def test_memories_drop_out_in_training_only_and_not_on_average():
    config, graph = small(memory_dropout=0.4, block={"n_steps": 1}), random_graph()
    model = NodeAnomalyModel(config, rngs=nnx.Rngs(0))
    first = model.embed(jnp.asarray(graph.x))
    (near,) = on_blocks(graph, config, 100)
    last = model.descend(first, near)[0]
    keys = jax.random.split(jax.random.key(0), 4000)
    many = jax.jit(jax.vmap(lambda key: model.descend(first, near, key=key)[0]))(keys)
    assert many.std(axis=0).max() > 0.01
    np.testing.assert_allclose(
        many.mean(axis=0), last, atol=6 * 4000**-0.5 * many.std(axis=0).max()
    )


def test_relations_are_joined_by_the_maximum():
    config, graph = small(relations="maximum"), random_graph()
    model = NodeAnomalyModel(config, rngs=nnx.Rngs(0))
    x, graphs = jnp.asarray(graph.x), tables(graph, config)
    assert len(graphs) == 2
    first = model.embed(x)
    a, b = (model.descend(first, near)[0] for near in graphs)
    np.testing.assert_allclose(model(x, graphs), model.read(first, jnp.maximum(a, b)), rtol=1e-5)
    one = node_graph("one", graph.x, graph.edges, graph.labels)
    with pytest.raises(UserError, match="edges of one kind"):
        tables(one, config)


@pytest.mark.parametrize("share", [1.0, -0.1])
def test_impossible_dropout(share):
    with pytest.raises(UserError, match="memory_dropout"):
        AnomalyConfig(F, memory_dropout=share)


# --- training -----------------------------------------------------------------


def test_class_weights():
    labels = np.array([0, 0, 1, 0, -1, 1, 0], np.int8)
    np.testing.assert_array_equal(class_weights(labels, np.arange(4)), [1, 1, 3, 1, 0, 0, 0])
    for train, counts in [([0, 1], "2 normal, 0"), ([2], "0 normal, 1"), ([0, 2, 4], "1 unlab")]:
        with pytest.raises(UserError, match=counts):
            class_weights(labels, np.array(train))


def test_standardised_leaves_a_constant_column_at_zero():
    x = np.array([[1.0, 5.0], [3.0, 5.0]], np.float32)
    np.testing.assert_array_equal(standardised(x), [[-1, 0], [1, 0]])


def anomalous_graph(seed=0):
    """Anomalies differ from their neighbours, not from all nodes: features alone do not tell."""
    rng = np.random.default_rng(seed)
    n = 200
    group = np.arange(n) % 2
    labels = (rng.random(n) < 0.2).astype(np.int8)
    x = rng.normal(size=(n, F)).astype(np.float32) * 0.3
    x[:, 0] += np.where(group ^ labels, 1, -1)
    pairs = rng.integers(0, n, (2, 3000))
    return node_graph("groups", x, pairs[:, group[pairs[0]] == group[pairs[1]]], labels)


def test_it_finds_anomalies_among_their_neighbours():
    graph = anomalous_graph()
    parts = split(graph.labels, 0.4, seed=0)
    config = AnomalyConfig(F, anomaly_block(token_dim=16, head_dim=16, n_memories=16, alpha=1.0))
    training = anomaly_training(60, peak_lr=1e-2, end_lr=1e-2)
    fitted = fit_anomaly(graph, parts, config, training)
    of_test = graph.labels[parts.test], fitted.scores[parts.test]
    assert roc_auc_score(*of_test) > 0.9
    features = LogisticRegression().fit(graph.x[parts.train], graph.labels[parts.train])
    assert roc_auc_score(of_test[0], features.decision_function(graph.x[parts.test])) < 0.7

    assert fitted.validation.shape == (60, len(parts.validation))
    np.testing.assert_array_equal(
        fitted.validation[fitted.epoch - 1], fitted.scores[parts.validation]
    )
    graphs = jax.tree.map(jnp.asarray, tables(graph, config))
    np.testing.assert_allclose(
        probabilities(fitted.model, standardised(graph.x), graphs), fitted.scores, rtol=1e-5
    )

    hidden = graph.labels.copy()
    hidden[parts.test] = 1 - hidden[parts.test]
    again = fit_anomaly(graph._replace(labels=hidden), parts, config, training)
    np.testing.assert_array_equal(again.scores, fitted.scores)


@pytest.mark.parametrize(
    "config, training, message",
    [
        (AnomalyConfig(F + 1), None, "has 4 features, the model takes 5"),
        (AnomalyConfig(F), anomaly_training(1, accumulate=2), "accumulate"),
    ],
)
def test_impossible_trainings(config, training, message):
    nodes = np.arange(8)
    with pytest.raises(UserError, match=message):
        fit_anomaly(random_graph(), Split(nodes, nodes, nodes), config, training)
