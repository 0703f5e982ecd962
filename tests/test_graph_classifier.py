"""The graph classifier: its energy, and that nothing but the graph decides about a graph."""

import jax
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import correlate2d

from etlib import buckets as bk
from etlib import energy as en
from etlib import graph_classifier as gc
from etlib import packing as pk
from etlib.data.graphset import graph
from etlib.errors import UserError
from etlib.training import TrainConfig, train
from tests.graphs import BLOCK, CLASSES, F, K, make, some_graph


def one_bucket(graphs, n_tokens=None, **options):
    encoded = bk.encode(graphs, K, **options)
    n_tokens = n_tokens or max(e.n_tokens for e in encoded)
    return bk.bucket(encoded, np.arange(len(graphs)), n_tokens)


apply = nnx.jit(lambda model, graphs, **options: model(graphs, **options))
loss_of = nnx.jit(gc.classification_loss)


@nnx.jit
def tokens_and_weights(model, graphs):
    x = model.tokens(graphs)
    return x, model.weighted_adjacency(x, graphs)


@nnx.jit
def gradient_of(model, batch):
    return nnx.grad(lambda m: gc.classification_loss(m, batch, jax.random.key(1))[0])(model)


def assert_close(ours, theirs, **tolerance):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


# --- the model --------------------------------------------------------------


@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_weighted_adjacency_is_the_convolved_gram_matrix(float64, kernel):
    """Against scipy's correlation, graph by graph, without padding."""
    model = make(kernel=kernel)
    graphs = [some_graph(n) for n in (1, 4, 7)]
    b = one_bucket(graphs)
    x, found = map(np.asarray, tokens_and_weights(model, b))
    W, b_pair = np.asarray(model.conv[...]), np.asarray(model.pair.bias[...])
    for i, n in enumerate(len(g.x) + 1 for g in graphs):
        own = x[i, :n]
        for h in range(2):
            convolved = correlate2d(own @ own.T, W[..., h], mode="same")  # query, key
            features = np.asarray(b.edge_attr[i, :n, :n])
            projected = features @ np.asarray(model.pair.kernel[:, h]) + b_pair[h]
            np.testing.assert_allclose(found[i, h, :n, :n].T, convolved * projected, atol=1e-12)


def test_tokens_descend_the_energy_at_fixed_weights(float64):
    """The closed form is the gradient with the weighted adjacency held constant."""
    model = make()
    b = one_bucket([some_graph(n) for n in (1, 5, 6)])

    @nnx.jit
    def gradients(model, b):
        x = model.tokens(b)
        block, pairs = model.blocks[0], model.pairs(x, b)

        def total(g, pairs):
            return sum(e.sum() for e in block.energies(g, **pairs))

        g = block.norm(x)
        not_held = jax.grad(lambda g: total(g, model.pairs(g, b)))(g)
        return block.gradient(g, **pairs), jax.grad(total)(g, pairs), not_held

    closed_form, by_autodiff, not_held = gradients(model, b)
    np.testing.assert_allclose(closed_form, by_autodiff, atol=1e-12)
    assert np.abs(not_held - by_autodiff).max() > 1e-3


def test_attention_is_confined_to_the_edges(float64):
    """What a node attends to: CLS and its neighbours, and not itself."""
    b = one_bucket([some_graph(6)])
    model = make()
    pairs = model.pairs(model.tokens(b), b)
    used = en.attention_pairs(7, False, pairs["mask"], pairs["valid"])[0]
    neighbours = np.zeros((7, 7), bool)
    neighbours[1:, 1:] = b.edges[0, 1:, 1:]
    neighbours[0, 1:] = neighbours[1:, 0] = True
    np.testing.assert_array_equal(used, neighbours)
    assert model.blocks[0].beta.shape == (2,)


def test_the_loss_reaches_every_parameter():
    """The weighted adjacency is a constant of the energy, and not of the training."""
    model = make()
    batch = pk.evaluation_batches(bk.encode([some_graph(n) for n in (5, 6, 7)], K))[0]
    for path, gradient in jax.tree_util.tree_leaves_with_path(gradient_of(model, batch)):
        assert np.abs(gradient).max() > 0, jax.tree_util.keystr(path)


def test_noise_and_sign_flips_are_for_training_only():
    model, b = make(), one_bucket([some_graph(n) for n in (5, 6)])
    np.testing.assert_array_equal(apply(model, b), apply(model, b))
    a, c = (apply(model, b, key=jax.random.key(seed)) for seed in (0, 1))
    assert np.abs(a - c).max() > 1e-4
    silent = make(noise_std=0.0)
    flipped = silent.flipped(b, jax.random.key(0))
    np.testing.assert_array_equal(np.abs(flipped.encoding), np.abs(b.encoding))
    assert np.abs(apply(silent, b, key=jax.random.key(0)) - apply(silent, b)).max() > 1e-4


def test_loss_is_smoothed_cross_entropy_over_the_graphs():
    """Against its formula; the empty slots are not in the mean."""
    model = make(noise_std=0.0, k=0)
    encoded = bk.encode([some_graph(n) for n in (2, 3, 4)], 0)
    b = bk.bucket(encoded, np.array([0, -1, 1, -1, 2]), 8)
    logits = np.asarray(apply(model, b))[[0, 2, 4]].astype(np.float64)
    y = np.array([e.graph.y for e in encoded])
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    wanted = np.full((3, CLASSES), 0.05 / CLASSES)
    wanted[range(3), y] += 0.95
    loss, metrics = loss_of(model, (b,), jax.random.key(0))
    np.testing.assert_allclose(loss, -(wanted * log_p).sum(axis=1).mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["accuracy"], (logits.argmax(axis=1) == y).mean())


def test_without_a_convolution_the_weights_are_the_projected_features():
    model = make(kernel=0)
    graphs = one_bucket([some_graph(n) for n in (1, 4, 7)])
    _, found = tokens_and_weights(model, graphs)
    for h in range(found.shape[1]):
        weight, bias = np.asarray(model.pair.kernel[:, h]), float(model.pair.bias[h])
        by_hand = np.einsum("bCBe,e->bBC", graphs.edge_attr, weight) + bias
        np.testing.assert_allclose(found[:, h], by_hand, atol=1e-6)


def test_a_kernel_has_a_centre():
    with pytest.raises(UserError, match="kernel is 2"):
        gc.GraphConfig(3, 2, kernel=2)


# --- nothing but the graph --------------------------------------------------


@pytest.mark.parametrize("released", [False, True])
def test_a_graph_alone_and_in_a_batch(released):
    """Prediction of a graph alone is its prediction among others, padded; A08: counted once."""
    model = make(released=released)
    sizes = [1, 9, 4, 6, 2, 7, 5, 3, 8, 12]
    encoded = bk.encode([some_graph(n) for n in sizes], K, with_cls=released)
    together = gc.predict(model, pk.evaluation_batches(encoded, batch=4))
    assert len(together) == len(sizes)
    for i, e in enumerate(encoded):
        alone = apply(model, bk.bucket([e], np.array([0]), 8 if e.n_tokens <= 8 else 13))
        np.testing.assert_allclose(together[i], alone[0], atol=2e-5)


@pytest.mark.parametrize("kernel", [0, 1, 3])
def test_a_list_of_edges_equals_the_dense_arrays(kernel):
    """Logits, and the gradient of the loss, which passes through the descent."""
    model = make(kernel=kernel, noise_std=0.0, n_blocks=1)
    encoded = bk.encode([some_graph(n) for n in (1, 6, 4, 7, 2)], K)
    chosen = np.array([3, -1, 0, 1, 4, 2])
    dense = bk.bucket(encoded, chosen, 9)
    edges = bk.edge_bucket(encoded, chosen, 40, 150)
    real = chosen >= 0
    np.testing.assert_allclose(apply(model, edges)[real], apply(model, dense)[real], atol=1e-5)
    assert_close(gradient_of(model, (edges,)), gradient_of(model, (dense,)), atol=1e-5)


def test_energies_of_a_list_of_edges():
    """The total of the graphs' energies, step by step."""
    model = make(n_blocks=1)
    encoded = bk.encode([some_graph(n) for n in (5, 3)], K)
    dense, edges = (
        nnx.jit(lambda m, b: m.run(b, trace=True))(model, b)[1][0]
        for b in (
            bk.bucket(encoded, np.arange(2), 6),
            bk.edge_bucket(encoded, np.arange(2), 12, 60),
        )
    )
    np.testing.assert_allclose(edges.attention, dense.attention.sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(edges.hopfield, dense.hopfield.sum(axis=1), rtol=1e-5)


def test_the_released_classifier_refuses_a_list_of_edges():
    encoded = bk.encode([some_graph(3)], K, with_cls=True)
    with pytest.raises(UserError, match="dense_tokens=None"):
        make(released=True)(bk.edge_bucket(encoded, np.arange(1), 4, 20))


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.integers(1, 7), min_size=2, max_size=2),
    st.sampled_from([0.0, 0.15, 0.5, 1.0]),
    st.booleans(),
    st.integers(0, 2**16),
)
def test_any_graph_is_finite_and_independent_of_its_batch(sizes, density, repeated, seed):
    """Isolated nodes, one node, no edges, pieces, repeated edges, self-loops; empty slots."""
    graphs = [some_graph(n, density, seed, repeated) for n in sizes]
    model = make(n_blocks=1)
    batch = (one_bucket([*graphs, some_graph(8)], 9),)
    alone = (bk.bucket(bk.encode(graphs, K), np.array([0, -1, -1]), 9),)
    logits, logits_alone = (apply(model, b[0])[0] for b in (batch, alone))
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(logits_alone, logits, atol=2e-5)
    n_edges = 2 * 9 * 8  # all pairs of tokens, of two graphs
    edges = (bk.edge_bucket(bk.encode(graphs, K), np.array([1, 0, -1]), 16, n_edges),)
    np.testing.assert_allclose(apply(model, edges[0])[1], logits, atol=2e-5)
    for b in (batch, alone, edges):
        assert all(np.isfinite(a).all() for a in jax.tree.leaves(gradient_of(model, b)))


def test_repeated_edges_and_self_loops_change_nothing():
    """A10: 0-1 twice in both directions with a loop at 2, and the directed 0-1."""
    x = np.eye(3, dtype=np.float32)
    clean = graph(x, np.array([[0, 1], [1, 0]]), 0)
    messy = graph(x, np.array([[0, 1, 0, 1, 2], [1, 0, 1, 0, 2]]), 0)
    directed = graph(x, np.array([[0], [1]]), 0)
    model = gc.GraphClassifier(gc.GraphConfig(F, CLASSES, k=K, block=BLOCK), rngs=nnx.Rngs(0))
    logits = apply(model, one_bucket([clean, messy, directed]))
    np.testing.assert_allclose(logits, np.broadcast_to(logits[0], logits.shape), atol=1e-6)


def test_the_metric_counts_every_graph_once():
    """A08: ten graphs in batches of 8, three on 8 devices; classes as a model predicts them."""
    encoded = bk.encode([some_graph(n % 5 + 1, seed=n) for n in range(10)], K)
    model = make()
    ours = gc.predict(model, pk.evaluation_batches(encoded, batch=8))
    one_by_one = [apply(model, bk.bucket([e], np.array([0]), 8))[0] for e in encoded]
    np.testing.assert_array_equal(ours.argmax(axis=1), np.argmax(one_by_one, axis=1))
    on_devices = gc.predict(model, pk.evaluation_batches(encoded[:3], batch=8, multiple=8))
    np.testing.assert_allclose(on_devices, ours[:3], atol=2e-5)


# --- training ---------------------------------------------------------------


def test_training_compiles_once_and_learns():
    """Which of two kinds of node features a graph has; the loss is traced once in five epochs."""
    graphs = []
    for i in range(21):
        g = some_graph(4 + i % 4, seed=i)
        graphs.append(g._replace(x=g.x + 2 * (i % 2), y=i % 2))
    traced = []

    def loss(model, batch, key):
        traced.append(1)
        return gc.classification_loss(model, batch, key)

    batches = pk.GraphBatches(bk.encode(graphs, K), batch=8, multiple=2)
    config = TrainConfig(n_steps=5 * batches.steps_per_epoch, peak_lr=1e-2)
    model = make(n_blocks=1)
    rows = train(model, loss, batches, config, progress=False, log_every=1)
    assert len(traced) == 1
    assert rows[-1]["loss"] < 0.6 * rows[0]["loss"]
