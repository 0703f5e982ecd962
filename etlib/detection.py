"""The protocol of anomaly detection: splits, scores, thresholds, and what is undefined.

Nodes without a label take part in no split, weight or metric. Everything that is chosen, an
epoch, a threshold, a hyperparameter, is chosen on validation nodes; test nodes are scored once.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Integer, Real
from scipy.stats import rankdata
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from etlib.data.nodegraph import UNLABELLED, NodeGraph
from etlib.errors import DataError

Nodes = Integer[np.ndarray, " k"]

TEST_SHARE = 0.67  # of the nodes that are not for training, as in the released code

PROTOCOL = (
    "stratified split drawn by the seed, rest 33:67 validation to test; epoch, threshold and "
    "hyperparameters chosen on validation, test scored once"
)


class Split(NamedTuple):
    """Nodes to train on, to choose with, and to report on; sorted, and without a node twice."""

    train: Nodes
    validation: Nodes
    test: Nodes


def split(labels: Integer[np.ndarray, " n"], train_ratio: float, seed: int) -> Split:
    """Labelled nodes, split with classes in proportion.

    Raises DataError, saying what share would do, when training or validation would be without
    an anomaly or without a normal node: nothing could be learned, or no threshold chosen.
    """
    labelled = np.flatnonzero(labels != UNLABELLED)
    y = labels[labelled]
    n, n_anomalies = len(y), int((y == 1).sum())
    if not 0 < train_ratio < 1:
        raise DataError(f"train_ratio is {train_ratio}, not between 0 and 1")
    n_train = int(train_ratio * n)
    about = f"train_ratio {train_ratio:g} of {n} labelled nodes, {n_anomalies} of them anomalies, "
    if n_anomalies < 3 or n - n_anomalies < 3:
        raise DataError(about + "cannot be split: each part needs an anomaly and a normal node")
    if round(n_train * n_anomalies / n) == 0:
        raise DataError(
            f"{about}leaves no anomaly to train on among {n_train} nodes; it takes a train_ratio "
            f"of {1 / n_anomalies:.2g} or more"
        )
    try:
        train, rest = train_test_split(
            labelled, train_size=train_ratio, stratify=y, random_state=seed
        )
        validation, test = train_test_split(
            rest, test_size=TEST_SHARE, stratify=labels[rest], random_state=seed
        )
    except ValueError as error:
        raise DataError(f"{about}cannot be split: {error}") from None
    for name, part in (("train on", train), ("choose with", validation)):
        found = set(labels[part].tolist())
        if found != {0, 1}:
            kind = "anomaly" if 1 not in found else "normal node"
            raise DataError(f"{about}leaves no {kind} to {name}")
    return Split(*(np.sort(part) for part in (train, validation, test)))


class Task(NamedTuple):
    """A graph, its standardised features, and the split by which it is learned and scored."""

    graph: NodeGraph
    x: Float32[np.ndarray, "n F"]
    parts: Split

    @property
    def weight(self) -> float:
        """Omega, normal nodes over anomalies in training: what an anomaly weighs in the loss."""
        y = self.graph.labels[self.parts.train]
        return float((y == 0).sum() / (y == 1).sum())


def task(graph: NodeGraph, train_ratio: float, seed: int) -> Task:
    """The task of one seed. Raises DataError as `split` does."""
    return Task(graph, standardised(graph.x), split(graph.labels, train_ratio, seed))


def standardised(x: Float[np.ndarray, "n F"]) -> Float32[np.ndarray, "n F"]:
    """Each feature with mean 0 and variance 1 over all nodes, which takes no label; a constant
    one is 0."""
    return StandardScaler().fit_transform(x.astype(np.float64)).astype(np.float32)


# --- scores -------------------------------------------------------------------


@dataclass(frozen=True)
class Scores:
    """How well anomalies are told from normal nodes.

    A metric that is undefined is nan, and `undefined` says why, by the metric's name.
    """

    macro_f1: float
    auc: float
    average_precision: float
    undefined: dict[str, str] = field(default_factory=dict)


def evaluate(
    labels: Integer[np.ndarray, " k"], scores: Float[np.ndarray, " k"], threshold: float
) -> Scores:
    """Scores of nodes with labels 0 and 1; an anomaly is called where score >= threshold.

    With one class only AUC and average precision are undefined. Macro-F1 is then undefined too:
    the F1 of a class that is neither there nor called has no value.
    """
    if not np.isfinite(scores).all():
        raise ValueError(f"{np.count_nonzero(~np.isfinite(scores))} scores are not finite")
    classes = np.unique(labels)
    if len(classes) < 2:
        what = "there is no node" if not len(classes) else f"every node has label {classes[0]}"
        names = ("macro_f1", "auc", "average_precision")
        return Scores(np.nan, np.nan, np.nan, {name: what for name in names})
    return Scores(
        macro_f1(labels, scores, threshold),
        float(roc_auc_score(labels, scores)),
        float(average_precision_score(labels, scores)),
    )


def macro_f1(
    labels: Integer[np.ndarray, " k"], scores: Float[np.ndarray, " k"], threshold: float
) -> float:
    """Mean of the two classes' F1; a class never called has F1 zero."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, scores >= threshold, average="macro", zero_division=0.0))


def best_threshold(labels: Integer[np.ndarray, " k"], scores: Float[np.ndarray, " k"]) -> float:
    """The threshold of highest macro-F1, midway between two scores; the higher one of equals.

    Every way to cut the ranking is tried, in one pass over the sorted scores.
    """
    order = np.argsort(-scores, kind="stable")
    ranked, y = scores[order].astype(np.float64), labels[order] == 1
    called = np.arange(1, len(y) + 1)
    hits = np.cumsum(y)
    n_anomalies, n_normal = hits[-1], len(y) - hits[-1]
    f1_anomaly = 2 * hits / (called + n_anomalies)
    passed = len(y) - called
    f1_normal = 2 * (passed - (n_anomalies - hits)) / np.maximum(passed + n_normal, 1)
    cuts = np.append(ranked[:-1] > ranked[1:], True)  # equal scores stay together
    best = np.flatnonzero(cuts)[np.argmax((f1_anomaly + f1_normal)[cuts])]
    below = ranked[best + 1] if best + 1 < len(y) else ranked[best]
    return float((ranked[best] + below) / 2)


class Best:
    """Keeps the scores of the epoch that ranks the validation nodes best (average precision).

    Offer it the scores of all nodes after an epoch; `scores` and `epoch` are of the best so
    far, the earlier one of equals.
    """

    def __init__(self, labels: Integer[np.ndarray, " n"], validation: Nodes):
        self._y, self._nodes = labels[validation], validation
        self.value, self.epoch, self.scores = -np.inf, -1, None

    def offer(self, epoch: int, scores: Float[np.ndarray, " n"]) -> bool:
        """Whether these scores are the best so far, and then kept."""
        value = average_precision_score(self._y, scores[self._nodes])
        if value <= self.value:
            return False
        self.value, self.epoch, self.scores = float(value), epoch, scores.copy()
        return True


def report(task: Task, scores: Float[np.ndarray, " n"]) -> Scores:
    """Test scores, with the threshold chosen on validation. Call it once a trained model."""
    y, (_, validation, test) = task.graph.labels, task.parts
    threshold = best_threshold(y[validation], scores[validation])
    return evaluate(y[test], scores[test], threshold)


def best_column(x: Real[np.ndarray, "n F"], labels: Integer[np.ndarray, " n"]) -> tuple[int, float]:
    """The feature that alone ranks the labelled nodes best, by AUC in either direction.

    A column whose AUC comes near that of a model may have been made of what made the labels.
    Uses every label: it describes the set and chooses nothing.
    """
    known: Bool[np.ndarray, " n"] = labels != UNLABELLED
    y = labels[known] == 1
    n_anomalies, n_normal = y.sum(), (~y).sum()
    # The area counts the pairs in the right order: the rank sum of Mann and Whitney.
    ranks = rankdata(x[known], axis=0)[y].sum(axis=0)
    areas = (ranks - n_anomalies * (n_anomalies + 1) / 2) / (n_anomalies * n_normal)
    areas = np.maximum(areas, 1 - areas)
    return int(areas.argmax()), float(areas.max())
