"""Baselines: the graph operators against PyTorch Geometric and eigenvectors; they learn."""

import networkx as nx
import numpy as np
import pytest
from scipy.special import beta
from threadpoolctl import threadpool_info

from etlib import anomaly_baselines as ab
from etlib import anomaly_gnns as gnns
from etlib.data.nodegraph import node_graph
from etlib.data.synthetic_fraud import FraudGraphConfig, generate
from etlib.data.wdbc import wdbc
from etlib.detection import Best, report, task
from etlib.graph_frequencies import normalised_laplacian


@pytest.fixture(scope="module")
def tumours():
    return task(wdbc(), 0.4, seed=0)


@pytest.fixture(scope="module")
def fraud():
    return task(generate(FraudGraphConfig(n_nodes=1500, anomaly_rate=0.1)), 0.4, seed=0)


@pytest.mark.parametrize("model", [ab.logistic_regression, ab.gradient_boosting, ab.perceptron])
def test_models_of_features_find_tumours(tumours, model):
    options = {"n_trees": 30} if model is ab.gradient_boosting else {}
    found = report(tumours, model(tumours, 0, **options).scores)
    assert found.auc > 0.85 and found.average_precision > 0.7 and found.macro_f1 > 0.8


def test_models_of_graphs_see_what_features_hide(fraud):
    alone = report(fraud, ab.logistic_regression(fraud, 0).scores).auc
    wavelets = report(fraud, gnns.beta_wavelets(fraud, 0, n_epochs=60).scores).auc
    assert alone < 0.65 < 0.75 < wavelets


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (ab.gradient_boosting, {"n_trees": 3}),
        (gnns.gcn, {"n_epochs": 3}),
        (gnns.beta_wavelets, {"n_epochs": 3}),
    ],
)
def test_models_compute_on_one_thread(tumours, monkeypatch, model, options):
    """Beside another busy program, two threads took ten times as long as one; and those of
    gradient boosting lost Python's warning filters, so that every later cell warned."""
    seen, offer = set(), Best.offer

    def watched(self, *args):
        seen.update(p["num_threads"] for p in threadpool_info() if p["user_api"] == "openmp")
        return offer(self, *args)

    monkeypatch.setattr(Best, "offer", watched)
    model(tumours, 0, **options)
    assert seen == {1}


@pytest.mark.parametrize("model", [gnns.gcn, gnns.beta_wavelets, ab.perceptron])
def test_a_run_follows_from_its_seed(tumours, model):
    first, again, other = (model(tumours, seed, n_epochs=4).scores for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_wavelets_are_beta_densities_of_the_frequency():
    for order in (1, 2, 5):
        w = np.linspace(0, 2, 21)
        rows = gnns.wavelet_coefficients(order) @ w ** np.arange(order + 1)[:, None]
        for p, row in enumerate(rows):
            q = order - p
            expected = (w / 2) ** p * (1 - w / 2) ** q / (2 * beta(p + 1, q + 1))
            np.testing.assert_allclose(row, expected, atol=1e-12)
        np.testing.assert_allclose(rows.sum(axis=0), (order + 1) / 2)


@pytest.fixture
def small():
    G = nx.barabasi_albert_graph(40, 2, seed=0)
    G.add_node(40)  # without an edge
    rng = np.random.default_rng(0)
    labels = (np.arange(41) % 4 == 0).astype(np.int8)
    pairs = np.array(list(G.edges)).T
    return task(
        node_graph("made", rng.normal(size=(41, 3)).astype(np.float32), pairs, labels), 0.4, 0
    )


def test_gcn_is_that_of_pytorch_geometric(small):
    import torch
    from torch_geometric.nn import GCNConv

    net, index = gnns.gcn_network(small, 5), torch.from_numpy(small.graph.edges.astype(np.int64))
    convolutions = []
    for linear in (net.first, net.second):
        made = GCNConv(linear.in_features, linear.out_features)
        made.lin.weight, made.bias = (
            linear.weight,
            torch.nn.Parameter(torch.zeros(len(linear.bias))),
        )
        torch.nn.init.zeros_(linear.bias)  # theirs is added after the product, ours before
        convolutions.append(made)
    first, second = convolutions
    ours, theirs = (torch.from_numpy(small.x).requires_grad_() for _ in range(2))
    out, again = net(ours), second(torch.relu(first(theirs, index)), index)
    torch.testing.assert_close(out, again)
    (out**2).sum().backward()
    (again**2).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_wavelets_filter_by_eigenvectors(small):
    import torch

    net, x = gnns.wavelet_network(small, 4, 3), torch.from_numpy(small.x)
    values, vectors = np.linalg.eigh(normalised_laplacian(small.graph).toarray())
    h = net.embed(x).detach().numpy()
    bands = []
    for p in range(4):
        gain = (values / 2) ** p * (1 - values / 2) ** (3 - p) / (2 * beta(p + 1, 4 - p))
        bands.append(vectors @ (gain[:, None] * (vectors.T @ h)))
    expected = net.classify(torch.from_numpy(np.concatenate(bands, axis=1).astype(np.float32)))
    connected = slice(0, 40)  # of a node without edges L is 0 for us, 1 for PyTorch Geometric
    torch.testing.assert_close(net(x)[connected], expected[connected], atol=1e-5, rtol=1e-4)


def test_every_baseline_chooses_without_test_labels(fraud):
    """Flipping every test label leaves the chosen scores as they are."""
    labels = fraud.graph.labels.copy()
    labels[fraud.parts.test] = 1 - labels[fraud.parts.test]
    blind = fraud._replace(graph=fraud.graph._replace(labels=labels))
    for model, options in (
        (ab.logistic_regression, {}),
        (ab.gradient_boosting, {"n_trees": 5}),
        (ab.perceptron, {"n_epochs": 3}),
        (gnns.gcn, {"n_epochs": 3}),
        (gnns.beta_wavelets, {"n_epochs": 3}),
    ):
        np.testing.assert_array_equal(
            model(fraud, 0, **options).scores, model(blind, 0, **options).scores
        )
    assert (labels != fraud.graph.labels).sum() == len(fraud.parts.test)
