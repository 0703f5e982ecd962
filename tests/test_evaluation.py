"""Folds that hold out what they say; scores that count every graph once; one rule of choice."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etlib.errors import UserError
from etlib.evaluation import N_FOLDS, Score, chosen_epoch, folds, majority, score

Y = np.repeat([0, 1, 2], [63, 125, 11])


def test_every_graph_is_scored_once_and_in_no_other_part_of_its_fold():
    made = folds(Y)
    assert len(made) == N_FOLDS
    tested = np.concatenate([fold.test for fold in made])
    assert np.array_equal(np.sort(tested), np.arange(len(Y)))
    for i, fold in enumerate(made):
        parts = np.concatenate(fold)
        assert np.array_equal(np.sort(parts), np.arange(len(Y)))
        assert np.array_equal(fold.validation, made[(i + 1) % N_FOLDS].test)


def test_classes_are_in_proportion():
    for fold in folds(Y):
        counts = np.bincount(Y[fold.test], minlength=3)
        assert (np.abs(counts - np.array([6.3, 12.5, 1.1])) < 1).all()


def test_a_seed_is_a_split():
    once, again, other = folds(Y, seed=3), folds(Y, seed=3), folds(Y, seed=4)
    assert all(np.array_equal(a.test, b.test) for a, b in zip(once, again, strict=True))
    assert not np.array_equal(once[0].test, other[0].test)


def test_resubstitution_scores_what_it_trains_on():
    (fold,) = folds(Y, "resubstitution")
    assert np.array_equal(fold.train, fold.test) and len(fold.train) == len(Y)
    assert len(fold.validation) == 0


def test_a_class_smaller_than_the_folds_is_named():
    with pytest.raises(UserError, match="class 1 has 4 graphs: 10 stratified folds need 10"):
        folds(np.repeat([0, 1], [30, 4]))


def curve(*accuracies):
    return [Score(accuracy, 1.0) for accuracy in accuracies]


def test_the_epoch_is_chosen_on_validation_and_the_best_test_epoch_is_not_reported():
    """Two folds of three epochs; three rules give 0.70, 0.75 and 0.90."""
    validation = [curve(0.8, 0.6, 0.7), curve(0.5, 0.6, 0.9)]
    test = np.array([[0.60, 0.90, 0.70], [0.90, 0.50, 0.80]])
    reported = [test[i, chosen_epoch(v)] for i, v in enumerate(validation)]
    assert np.mean(reported) == pytest.approx(0.70)


def test_equal_accuracies_are_told_apart_by_loss_and_then_by_time():
    assert chosen_epoch([Score(0.5, 0.2), Score(0.9, 0.6), Score(0.9, 0.4)]) == 2
    assert chosen_epoch([Score(0.9, 0.4), Score(0.9, 0.4)]) == 0


def test_score_against_a_loop():
    rng = np.random.default_rng(0)
    logits, y = rng.normal(size=(7, 3)) * 3, rng.integers(3, size=7)
    right, loss = 0, 0.0
    for row, label in zip(logits, y, strict=True):
        right += max(range(3), key=lambda c: row[c]) == label
        loss -= np.log(np.exp(row[label]) / sum(np.exp(v) for v in row))
    found = score(logits, y)
    assert found.accuracy == right / 7 and found.loss == pytest.approx(loss / 7)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_a_score_does_not_depend_on_how_the_graphs_are_cut_into_batches(batch, seed):
    """Means over batches would: a short last batch would weigh as much as a full one."""
    rng = np.random.default_rng(seed)
    logits, y = rng.normal(size=(10, 2)), rng.integers(2, size=10)
    parts = [logits[i : i + batch] for i in range(0, 10, batch)]
    whole = score(np.concatenate(parts), y)
    assert whole.accuracy == np.mean(logits.argmax(1) == y)
    right = sum(
        score(part, y[i : i + batch]).accuracy * len(part)
        for i, part in zip(range(0, 10, batch), parts, strict=True)
    )
    assert whole.accuracy == pytest.approx(right / 10)


def test_predictions_that_are_not_finite_are_no_score():
    with pytest.raises(FloatingPointError, match="of 2 graphs"):
        score(np.array([[0.0, 1.0], [np.nan, 0.0]]), np.array([0, 1]))


def test_majority_is_learnt_from_the_training_graphs():
    y = np.array([0] * 12 + [1] * 10 + [1] * 20)
    fold = folds(y)[0]._replace(train=np.arange(22), test=np.arange(12, 42))
    assert majority(y, fold) == 0.0
