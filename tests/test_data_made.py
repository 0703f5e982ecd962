"""The anomaly sets that need no file: tumours, and generated fraud graphs."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from etlib.data import fraud
from etlib.data.synthetic_fraud import FraudGraphConfig, generate
from etlib.data.wdbc import wdbc
from etlib.graph_frequencies import right_shift


def test_tumours():
    graph = wdbc(n_malignant=20, n_neighbours=3, seed=1)
    assert graph.x.shape == (377, 30) and (graph.labels == 1).sum() == 20
    everything = load_breast_cancer().data.astype(np.float32)
    assert len({row.tobytes() for row in graph.x} & {row.tobytes() for row in everything}) == 377
    # An edge joins i and j when either is among the other's three nearest.
    z = (graph.x - graph.x.mean(0)) / graph.x.std(0)
    far = np.linalg.norm(z[:, None] - z, axis=-1)
    np.fill_diagonal(far, np.inf)
    near = np.zeros(far.shape, bool)
    np.put_along_axis(near, far.argsort(axis=1)[:, :3], True, axis=1)
    np.testing.assert_array_equal(graph.adjacency().toarray() > 0, near | near.T)


def test_another_seed_draws_other_malignant_tumours():
    assert not np.array_equal(wdbc(seed=1).x, wdbc(seed=2).x)
    np.testing.assert_array_equal(wdbc(seed=1).x, wdbc(seed=1).x)
    with pytest.raises(ValueError, match="n_malignant is 213, not in 1 to 212"):
        wdbc(n_malignant=213)


def test_both_by_name():
    for name in fraud.MADE:
        graph = fraud.load(name)
        assert graph.name == name and graph.about


def test_generated_graphs_have_the_size_asked_for():
    graph = generate(FraudGraphConfig(n_nodes=20_000, mean_degree=14, anomaly_rate=0.03))
    assert graph.n_nodes == 20_000 and (graph.labels == 1).sum() == 600
    assert graph.edges.shape[1] / 20_000 == pytest.approx(14, rel=0.03)


def test_generated_graphs_follow_from_the_seed():
    first, again, other = (generate(FraudGraphConfig(seed=s)) for s in (1, 1, 2))
    for a, b in zip(first[:4], again[:4], strict=True):
        np.testing.assert_array_equal(a, b)
    assert first.edges.shape != other.edges.shape


def test_anomalies_are_camouflaged():
    """They link to normal nodes, as many as others do; no column tells them, nor does a line."""
    graph = generate(FraudGraphConfig(n_nodes=10_000))
    assert roc_auc_score(graph.labels, graph.degrees) == pytest.approx(0.5, abs=0.04)
    senders, receivers = graph.edges
    anomalous = graph.labels == 1
    from_anomalies = anomalous[senders]
    assert anomalous[receivers[from_anomalies]].mean() < 0.05
    split = np.arange(10_000) % 2 == 0
    model = LogisticRegression().fit(graph.x[split], graph.labels[split])
    area = roc_auc_score(graph.labels[~split], model.decision_function(graph.x[~split]))
    assert area == pytest.approx(0.5, abs=0.08)


def test_what_gives_them_away_is_the_difference_to_their_community():
    graph = generate(FraudGraphConfig(n_nodes=10_000, n_communities=4))
    A = graph.adjacency()
    around = A @ graph.x / np.maximum(graph.degrees, 1)[:, None]
    area = roc_auc_score(graph.labels, np.linalg.norm(graph.x - around, axis=1))
    alone = roc_auc_score(graph.labels, np.linalg.norm(graph.x, axis=1))
    assert area > alone + 0.05 and area > 0.8


def test_energy_moves_to_high_frequencies_with_anomalies():
    shift = right_shift(generate(), draws=3)
    assert shift.whole > shift.without_anomalies + 0.03
    assert (shift.without_normal > shift.without_anomalies + 0.03).all()
    further = right_shift(generate(FraudGraphConfig(stray=4.0)), draws=1)
    assert further.whole > shift.whole + 0.03


@pytest.mark.parametrize(
    "wrong", [{"n_nodes": 0}, {"inside": 1.5}, {"anomaly_rate": 0.9}, {"stray": -1.0}]
)
def test_impossible_graphs(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        FraudGraphConfig(**wrong)


def test_links_are_drawn_in_chunks_alike(monkeypatch):
    """The same expectation however they are cut: degrees of anomalies and of normal nodes."""
    whole = generate(FraudGraphConfig(n_nodes=5000))
    monkeypatch.setattr("etlib.data.synthetic_fraud._CHUNK", 1000)
    cut = generate(FraudGraphConfig(n_nodes=5000))
    assert cut.edges.shape[1] == pytest.approx(whole.edges.shape[1], rel=0.02)
    np.testing.assert_array_equal(cut.labels, whole.labels)
