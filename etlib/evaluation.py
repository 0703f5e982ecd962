"""Which graphs are trained on, which choose the epoch, which are scored: folds and scores.

cross-validation: ten stratified folds. Fold i is scored, fold i + 1 chooses the epoch, the
other eight are trained on. The scored fold is looked at once, with the weights of the chosen
epoch, and every graph is scored in exactly one fold.

resubstitution: all graphs are trained on and all are scored, with the weights of the last
epoch. It measures the fit to graphs that were seen, not the prediction of others.
"""

from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from etlib.errors import UserError

N_FOLDS = 10

Part = Literal["train", "validation", "test"]

Protocol = Literal["cross-validation", "resubstitution"]

RULES: dict[Protocol, str] = {
    "cross-validation": (
        "ten stratified folds: eight trained on, one chooses the epoch by its accuracy, "
        "one scored once with that epoch's weights"
    ),
    "resubstitution": "trained on all graphs and scored on the same graphs, last epoch",
}


class Fold(NamedTuple):
    """Numbers of the graphs of each part. An empty `validation`: the last epoch is scored."""

    train: Int[np.ndarray, " train"]
    validation: Int[np.ndarray, " validation"]
    test: Int[np.ndarray, " test"]


def folds(
    y: Int[np.ndarray, " graphs"], protocol: Protocol = "cross-validation", seed: int = 0
) -> list[Fold]:
    """The folds of a protocol; the same for the same classes and seed.

    Raises UserError where a class has fewer graphs than there are folds.
    """
    from sklearn.model_selection import StratifiedKFold

    everything = np.arange(len(y))
    if protocol == "resubstitution":
        return [Fold(everything, everything[:0], everything)]
    sizes = np.unique_counts(y)
    if sizes.counts.min() < N_FOLDS:
        raise UserError(
            f"class {sizes.values[sizes.counts.argmin()]} has {sizes.counts.min()} graphs: "
            f"{N_FOLDS} stratified folds need {N_FOLDS} of every class"
        )
    splitter = StratifiedKFold(N_FOLDS, shuffle=True, random_state=seed)
    parts = [test for _, test in splitter.split(everything, y)]
    made = []
    for i, test in enumerate(parts):
        validation = parts[(i + 1) % N_FOLDS]
        train = np.setdiff1d(everything, np.concatenate([test, validation]))
        made.append(Fold(train, validation, test))
    return made


class Score(NamedTuple):
    """Over graphs, each counted once."""

    accuracy: float
    loss: float  # cross-entropy of the true classes, natural logarithm


def score(logits: Float[np.ndarray, "graphs classes"], y: Int[np.ndarray, " graphs"]) -> Score:
    """Accuracy and loss of predictions for all graphs of a part at once.

    Raises FloatingPointError for a prediction that is not finite.
    """
    from sklearn.metrics import accuracy_score, log_loss

    if not np.isfinite(logits).all():
        raise FloatingPointError(f"predictions of {len(logits)} graphs are not all finite")
    logits = np.asarray(logits, np.float64)
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    loss = log_loss(y, p, labels=np.arange(logits.shape[1]))
    return Score(float(accuracy_score(y, logits.argmax(axis=1))), float(loss))


def chosen_epoch(validation: list[Score]) -> int:
    """The epoch, counted from 0, of best validation accuracy.

    Among equals, the one of least validation loss; among those still equal, the first.
    """
    return min(range(len(validation)), key=lambda e: (-validation[e].accuracy, validation[e].loss))


def majority(y: Int[np.ndarray, " graphs"], fold: Fold) -> float:
    """Accuracy on the scored graphs of always answering the commonest class of the trained."""
    commonest = np.bincount(y[fold.train]).argmax()
    return float(np.mean(y[fold.test] == commonest))
