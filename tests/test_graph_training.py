"""One fold: the epoch chosen on validation, the test graphs scored once; the two classifiers."""

import jax
import numpy as np
import pytest
from flax import nnx

from etlib.chapters.graph_classification import Training
from etlib.data.graphset import GraphSet, graph
from etlib.evaluation import N_FOLDS, Fold, score
from etlib.graph_training import Task, run_fold


class Scripted:
    """A learner whose predictions at each epoch are given; it counts what it is asked for."""

    def __init__(self, right: dict[str, list[list[bool]]], y: np.ndarray, fold: Fold):
        self.right, self.y, self.fold, self.epoch, self.asked = right, y, fold, 0, []

    def fit(self, after_epoch):
        n_epochs = len(self.right["test"])
        for self.epoch in range(n_epochs):
            after_epoch()
        return [float(epoch) for epoch in range(n_epochs)]

    def logits(self, part):
        self.asked.append((part, self.epoch))
        y = self.y[getattr(self.fold, part)]
        return np.eye(2)[np.where(self.right[part][self.epoch], y, 1 - y)]

    def weights(self):
        return self.epoch

    def restore(self, weights):
        self.epoch = weights


def outcomes(*shares):
    """Of ten graphs, these shares right, one an epoch."""
    return [[i < round(10 * share) for i in range(10)] for share in shares]


FOLD = Fold(np.arange(10), np.arange(10, 20), np.arange(20, 30))
Y = np.arange(30) % 2


@pytest.mark.parametrize(
    ("validation", "test", "epoch", "accuracy"),
    [
        ((0.8, 0.6, 0.7), (0.6, 0.9, 0.7), 1, 0.6),
        ((0.5, 0.6, 0.9), (0.9, 0.5, 0.8), 3, 0.8),
    ],
)
def test_the_test_graphs_are_scored_once_at_the_epoch_chosen_on_validation(
    validation, test, epoch, accuracy
):
    right = {
        "train": outcomes(1.0, 1.0, 1.0),
        "validation": outcomes(*validation),
        "test": outcomes(*test),
    }
    learner = Scripted(right, Y, FOLD)
    found = run_fold(learner, Y, FOLD)
    assert (found.epoch, found.test.accuracy) == (epoch, accuracy)
    assert found.validation.accuracy == max(validation)
    assert [part for part, _ in learner.asked].count("test") == 1
    assert ("test", epoch - 1) in learner.asked


def test_without_validation_the_last_epoch_is_scored():
    fold = Fold(np.arange(10), np.arange(0), np.arange(10))
    right = {"train": outcomes(0.1, 0.4), "test": outcomes(0.9, 0.4)}
    found = run_fold(Scripted(right, Y, fold), Y, fold)
    assert (found.epoch, found.test.accuracy, found.validation) == (2, 0.4, None)


SMALL = {
    "token_dim": 16,
    "n_heads": 2,
    "head_dim": 8,
    "n_memories": 16,
    "n_blocks": 1,
    "n_eigenvectors": 2,
    "batch": 16,
    "peak_lr": 1e-2,
}


def toy(n=40, n_features=2):
    """Paths and stars of 4 to 7 nodes: a class each, told apart by the degrees."""
    rng = np.random.default_rng(0)
    graphs = []
    for i in range(n):
        y, m = i % 2, int(rng.integers(4, 8))
        ends = np.arange(1, m)
        edges = np.stack([ends - 1 if y == 0 else np.zeros_like(ends), ends])
        graphs.append(graph(rng.normal(size=(m, n_features)).astype(np.float32), edges, y))
    return GraphSet("toy", tuple(graphs), ("path", "star"), "noise", "the shape")


@pytest.mark.parametrize("model", ["et", "gin"])
def test_shapes_are_learnt_and_a_run_repeats_itself(model):
    p = Training(dataset="toy", epochs=20, **SMALL)
    task = Task(p, toy(n_features=0))
    once = task.run(model, 0)
    assert once.test.accuracy == 1.0 and once.train.accuracy > 0.9
    assert len(once.losses) == len(once.validations) == p.epochs
    assert once.losses[-1] < once.losses[0]
    again = Task(p, toy(n_features=0)).run(model, 0)
    assert (again.test, again.losses) == (once.test, once.losses)


@pytest.mark.parametrize("model", ["et", "gin"])
def test_weights_are_kept_as_they_were(model):
    task = Task(Training(dataset="toy", epochs=3, **SMALL), toy())
    learner = task.learner(model, 0)
    kept, seen = [], []

    def after_epoch():
        kept.append(learner.weights())
        seen.append(learner.logits("test"))

    learner.fit(after_epoch)
    for weights, logits in zip(kept, seen, strict=True):
        learner.restore(weights)
        np.testing.assert_array_equal(learner.logits("test"), logits)
    assert not np.array_equal(seen[0], seen[2])


@pytest.mark.parametrize("variant", ["text", "released"])
def test_a_score_does_not_depend_on_the_batch_size(variant):
    found = []
    for batch in (1, 3, 8, 10):
        p = Training(dataset="toy", **SMALL | {"batch": batch}, variant=variant)
        task = Task(p, toy())
        fold = task.folds[0]._replace(test=np.arange(10))
        task.folds[0] = fold
        logits = task.learner("et", 0).logits("test")
        assert logits.shape == (10, 10 if variant == "released" else 2)
        found.append(logits)
    for logits in found[1:]:
        np.testing.assert_allclose(logits, found[0], rtol=1e-4, atol=1e-5)
        assert (
            score(logits, task.data.y[:10]).accuracy == score(found[0], task.data.y[:10]).accuracy
        )


def test_message_passing_cannot_tell_skip_links_apart():
    """GIN gives all 150 graphs one prediction, whatever its weights; spectra give more."""
    p = Training(dataset="csl", **SMALL | {"n_eigenvectors": 8})
    task = Task(p)
    task.folds[0] = task.folds[0]._replace(test=np.arange(150))
    gin, et = (task.learner(model, 0).logits("test") for model in ("gin", "et"))
    assert np.ptp(gin, axis=0).max() < 1e-5 * np.abs(gin).max()
    assert np.ptp(et, axis=0).max() > 1e-3 * np.abs(et).max()


def test_without_eigenvectors_the_encodings_say_nothing():
    task = Task(Training(dataset="toy", **SMALL | {"n_eigenvectors": 0}), toy())
    assert all(np.all(e.encoding == 0) for e in task.encoded)
    assert np.isfinite(task.learner("et", 0).logits("test")).all()


def test_parameter_counts_are_those_of_the_released_dd_model():
    """1,064,834 for 89 features and ten outputs (printed in the released DD notebook)."""
    rng = np.random.default_rng(0)
    one = graph(rng.normal(size=(3, 89)).astype(np.float32), np.array([[0, 1], [1, 2]]), 0)
    data = GraphSet("dd", (one,) * N_FOLDS, ("a",), "", "")
    model = Task(Training(dataset="DD", variant="released"), data).learner("et", 0).model
    sizes = [np.size(a) for a in jax.tree.leaves(nnx.state(model, nnx.Param))]
    assert sum(sizes) == 1_064_834
