"""The protocol: splits (A09), thresholds, metrics, and what is undefined."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, roc_auc_score

from etlib import detection as dt
from etlib.data.nodegraph import node_graph
from etlib.errors import DataError


def labels_like_amazon():
    """Trouble case A09: 11,944 nodes, the first 3,305 unlabelled, 821 frauds."""
    labels = np.full(11_944, -1, np.int8)
    labels[3305:] = 0
    labels[np.random.default_rng(0).choice(np.arange(3305, 11_944), 821, replace=False)] = 1
    return labels


def test_the_released_split_of_amazon():
    labels = labels_like_amazon()
    parts = dt.split(labels, 0.4, seed=2)
    assert [len(part) for part in parts] == [3455, 1710, 3474]
    together = np.concatenate(parts)
    np.testing.assert_array_equal(np.sort(together), np.arange(3305, 11_944))
    for part in parts:
        assert labels[part].mean() == pytest.approx(821 / 8639, abs=1e-3)


def test_a_split_follows_from_its_seed():
    labels = labels_like_amazon()
    first, again, other = (dt.split(labels, 0.01, seed) for seed in (0, 0, 1))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(first.train, other.train)


def of(n_normal, n_anomalies):
    return np.repeat([0, 1], [n_normal, n_anomalies]).astype(np.int8)


@pytest.mark.parametrize(
    "labels, ratio, said",
    [
        (of(119, 5), 0.01, "no anomaly to train on among 1 nodes; it takes .* of 0.2 or more"),
        (of(13_528, 5), 0.01, "no anomaly to train on among 135 nodes"),
        (of(100, 0), 0.4, "cannot be split: each part needs an anomaly"),
        (of(0, 100), 0.4, "cannot be split: each part needs an anomaly and a normal node"),
        (of(100, 10), 0.97, "leaves no anomaly to choose with|cannot be split"),
        (of(100, 10), 0.0, "train_ratio is 0.0, not between 0 and 1"),
        (of(100, 10), 1.0, "train_ratio is 1.0, not between 0 and 1"),
        (of(100, 10), float("nan"), "train_ratio is nan"),
    ],
)
def test_what_cannot_be_split_is_said_first(labels, ratio, said):
    with pytest.raises(DataError, match=said):
        dt.split(labels, ratio, seed=0)


@settings(deadline=None, max_examples=60)
@given(st.integers(20, 200), st.integers(3, 40), st.floats(0.01, 0.9), st.integers(0, 5))
def test_every_split_can_be_learned_from_or_is_refused(n_normal, n_anomalies, ratio, seed):
    labels = of(n_normal, n_anomalies)
    try:
        parts = dt.split(labels, ratio, seed)
    except DataError as error:
        assert f"of {n_normal + n_anomalies} labelled nodes, {n_anomalies} of them" in str(error)
        return
    assert all(set(labels[part]) == {0, 1} for part in parts[:2])
    assert len(set(np.concatenate(parts))) == n_normal + n_anomalies


# --- thresholds and metrics ---------------------------------------------------

SCORED = st.integers(2, 40).flatmap(
    lambda n: st.tuples(
        st.lists(st.sampled_from([0, 1]), min_size=n, max_size=n).filter(lambda y: 0 < sum(y) < n),
        st.lists(st.integers(0, 9), min_size=n, max_size=n),
    )
)


@settings(deadline=None)
@given(SCORED)
def test_no_threshold_is_better_than_the_best(case):
    y, scores = np.array(case[0]), np.array(case[1]) / 10
    found = dt.macro_f1(y, scores, dt.best_threshold(y, scores))
    for threshold in np.unique(scores):  # below the lowest, all are called: the same as at it
        assert found >= f1_score(y, scores >= threshold, average="macro") - 1e-12


def test_the_threshold_lies_between_scores():
    assert dt.best_threshold(np.array([0, 0, 1]), np.array([0.1, 0.2, 0.6])) == pytest.approx(0.4)


def test_metrics_of_a_perfect_ranking():
    y, scores = of(5, 3), np.arange(8) / 8
    found = dt.evaluate(y, scores, dt.best_threshold(y, scores))
    assert (found.macro_f1, found.auc, found.average_precision) == (1, 1, 1)
    assert not found.undefined


@pytest.mark.parametrize(
    "labels, why", [(of(4, 0), "every node has label 0"), (of(0, 4), "label 1"), (of(0, 0), "no")]
)
def test_metrics_that_are_undefined_say_so(labels, why):
    found = dt.evaluate(labels, np.zeros(len(labels)), 0.5)
    assert np.isnan([found.macro_f1, found.auc, found.average_precision]).all()
    assert set(found.undefined) == {"macro_f1", "auc", "average_precision"}
    assert all(why in reason for reason in found.undefined.values())


def test_scores_that_are_not_finite_are_an_error():
    with pytest.raises(ValueError, match="1 scores are not finite"):
        dt.evaluate(of(1, 1), np.array([0.1, np.nan]), 0.5)


def with_labels(labels, parts):
    x = np.zeros((len(labels), 1), np.float32)
    return dt.Task(node_graph("made", x, np.zeros((2, 0), int), labels), x, parts)


def test_a_task_standardises_and_weighs():
    labels = of(90, 10)
    x = np.column_stack([np.arange(100), np.full(100, 7), np.arange(100) % 2]).astype(np.float32)
    made = dt.task(node_graph("made", x, np.zeros((2, 0), int), labels), 0.4, seed=0)
    np.testing.assert_allclose(made.x.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(made.x.std(0), [1, 0, 1], atol=1e-6)
    assert made.weight == 36 / 4


def test_test_labels_choose_nothing():
    """The threshold and the epoch stay when every test label changes."""
    rng = np.random.default_rng(0)
    labels = of(300, 40)[rng.permutation(340)]
    parts = dt.split(labels, 0.3, seed=0)
    scores = rng.random((5, 340))
    other = labels.copy()
    other[parts.test] = rng.permutation(labels[parts.test])
    chosen = []
    for y in (labels, other):
        best = dt.Best(y, parts.validation)
        for epoch, s in enumerate(scores):
            best.offer(epoch, s)
        chosen.append(
            (best.epoch, dt.best_threshold(y[parts.validation], best.scores[parts.validation]))
        )
    assert chosen[0] == chosen[1]
    reports = [dt.report(with_labels(y, parts), scores[0]) for y in (labels, other)]
    assert reports[0] != reports[1]


def test_the_best_epoch_is_kept_as_it_was():
    labels = of(4, 2)
    best = dt.Best(labels, np.arange(6))
    scores = np.array([0, 0, 0, 1, 1, 0.5])
    assert best.offer(1, scores)
    scores[:] = np.arange(6)  # the caller's array changes, what is kept does not
    assert best.scores[4] == 1
    assert best.offer(2, scores) and best.epoch == 2 and best.value == 1
    assert not best.offer(3, scores)


# --- leaks --------------------------------------------------------------------


def test_a_leaking_column_is_found():
    """Trouble case A09 (b): the vote ratio that sets the label is one of the columns."""
    rng = np.random.default_rng(0)
    votes = rng.random(20)
    labels = np.where(np.arange(20) < 5, -1, votes < 0.2).astype(np.int8)
    x = np.column_stack([rng.normal(size=(20, 3)), votes])
    assert dt.best_column(x, labels) == (3, 1.0)


def test_the_best_column_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    x, labels = rng.integers(0, 5, (60, 7)).astype(float), rng.integers(0, 2, 60).astype(np.int8)
    areas = np.array([roc_auc_score(labels, column) for column in x.T])
    areas = np.maximum(areas, 1 - areas)
    column, area = dt.best_column(x, labels)
    assert column == areas.argmax() and area == pytest.approx(areas.max())
