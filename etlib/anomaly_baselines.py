"""What a detector of anomalies has to beat: models that see a node's features alone.

Each takes a task and a seed and returns the `Best` of what it tried, chosen on validation.
Anomalies weigh more in training by the ratio of the classes, as in every model of the chapter.
"""

import warnings

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits

from etlib.detection import Best, Task


def logistic_regression(task: Task, seed: int) -> Best:
    """Inverse strengths of the penalty from 1e-4 to 100; an "epoch" is one of them."""
    best, train = Best(task.graph.labels, task.parts.validation), task.parts.train
    for number, C in enumerate(np.logspace(-4, 2, 7)):
        model = LogisticRegression(C=C, class_weight="balanced", max_iter=500)
        with warnings.catch_warnings():  # stopped early, it is one more candidate
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(task.x[train], task.graph.labels[train])
        best.offer(number, model.decision_function(task.x))
    return best


def gradient_boosting(task: Task, seed: int, n_trees: int = 200) -> Best:
    """Histogram gradient boosting with leaves of at least 20 nodes or of 5; an epoch is a tree."""
    best, train = Best(task.graph.labels, task.parts.validation), task.parts.train
    for leaf in (20, 5):
        model = HistGradientBoostingClassifier(
            max_iter=n_trees,
            min_samples_leaf=leaf,
            class_weight="balanced",
            early_stopping=False,
            random_state=seed,
        )
        # On one thread: threads wait for one another at every tree, and beside another busy
        # program that is minutes instead of seconds. Also, scikit-learn's threads that bin the
        # features can lose all of Python's warning filters to each other.
        with threadpool_limits(1, "openmp"):
            model.fit(task.x[train], task.graph.labels[train])
            for tree, p in enumerate(model.staged_predict_proba(task.x), 1):
                best.offer(tree, p[:, 1])
    return best


def perceptron(task: Task, seed: int, n_epochs: int = 100, width: int = 64) -> Best:
    """One hidden layer, trained by Adam."""
    best, train = Best(task.graph.labels, task.parts.validation), task.parts.train
    y = task.graph.labels[train]
    weights = np.where(y == 1, task.weight, 1.0)
    model = MLPClassifier((width,), random_state=seed)
    for epoch in range(1, n_epochs + 1):
        model.partial_fit(task.x[train], y, sample_weight=weights, classes=(0, 1))
        best.offer(epoch, model.predict_proba(task.x)[:, 1])
    return best
