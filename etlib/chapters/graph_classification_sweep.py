"""Chapter 6's recorded runs: python -m etlib.chapters.graph_classification_sweep [SET ...]

By default all eight sets of the paper's Table 2 at 300 epochs, by both protocols, Energy
Transformer and GIN on the same folds: one command, for a GPU. On two cores name fewer sets and
epochs. One JSON a fold, written when it ends; a fold whose file is there is skipped, so that a
stopped sweep goes on. The sets come from ETLIB_DATA, and by default the files go to book/results.
"""

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from etlib import devices, results, runs
from etlib.chapters.graph_classification import PRESETS
from etlib.cli import one_line_errors
from etlib.data import tu
from etlib.data.graphset import statistics
from etlib.evaluation import N_FOLDS, RULES, Protocol, majority
from etlib.graph_training import FoldResult, Model, Task
from etlib.parameters import resolve
from etlib.table2 import TABLE2, reference

MODELS: dict[Model, str] = {"et": "Energy Transformer", "gin": "GIN"}


def main(
    sets: Annotated[list[str] | None, typer.Argument(metavar="SET", help="TU sets.")] = None,
    epochs: int = 300,
    protocol: Annotated[Protocol | None, typer.Option(help="Default: both.")] = None,
    model: Annotated[Model | None, typer.Option(help="Default: both.")] = None,
    folder: Path = results.FOLDER,
) -> None:
    """Record every fold that is not recorded yet."""
    with one_line_errors(), devices.compilation_cache():
        for dataset in sets or TABLE2:
            tu.raw_folder(dataset)  # a set that is missing ends it here, not hours later
        for dataset in sets or TABLE2:
            for rule in [protocol] if protocol else ("resubstitution", "cross-validation"):
                given = {"dataset": dataset, "protocol": rule, "epochs": epochs}
                record_folds(given, [model] if model else list(MODELS), folder.absolute())


def record_folds(given: dict, models: list[Model], folder: Path) -> None:
    """Run and record every fold that is not recorded yet."""
    _, p, _ = resolve("graph-classification", PRESETS, {"preset": "paper", **given})
    stem = f"06-graph-classification-{p.dataset}-{p.protocol}"
    targets = {
        (model, fold): folder / f"{stem}-{model}-epochs{p.epochs}-fold{fold}.json"
        for fold in range(N_FOLDS if p.protocol == "cross-validation" else 1)
        for model in models
    }
    if all(target.exists() for target in targets.values()):
        return
    task = Task(p)
    record_statistics(task, folder)
    for (model, fold), target in targets.items():
        if target.exists():
            continue
        with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
            written = record_one({**given, "first_fold": fold, "folds": 1}, task, model)
            shutil.move(Path("runs", written), target)
        print(target.name, flush=True)


def record_statistics(task: Task, folder: Path) -> None:
    """Write what the paper's Table 8 tells of the set, as counted in its graphs."""
    name = task.data.name
    target = folder / f"06-graph-classification-statistics-{name}.json"
    if target.exists():
        return
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        runs.configure("graph-classification", {"preset": "paper", "dataset": name})
        runs.data_fingerprint(name, *task.data.arrays)
        written = runs.record(
            f"statistics-{name.lower()}",
            statistics(task.data)._asdict(),
            title=f"Statistics of {name}",
            protocol="counted in the graphs that were loaded; an edge counts once",
        )
        shutil.move(Path("runs", written), target)


def record_one(given: dict, task: Task, model: Model) -> str:
    """Train and score one fold; returns the name of what `runs.record` wrote."""
    p = runs.configure("graph-classification", {"preset": "paper", **given})
    runs.data_fingerprint(p.dataset, *task.data.arrays)
    fold = p.first_fold
    found = task.run(model, fold)
    metrics = measured(found) | {"majority": 100 * majority(task.data.y, task.folds[fold])}
    return runs.record(
        f"{p.dataset.lower()}-{p.protocol}-{model}",
        metrics,
        title=f"{p.dataset}, {MODELS[model]}, accuracy in percent",
        protocol=f"{RULES[p.protocol]}; {p.epochs} epochs",
        reference=reference(p.dataset) if model == "et" else [],
    )


def measured(found: FoldResult) -> dict[str, float | list[float]]:
    """What is recorded of a fold; accuracies in percent."""
    metrics = {
        "accuracy": 100 * found.test.accuracy,
        "loss": found.test.loss,
        "train_accuracy": 100 * found.train.accuracy,
        "chosen_epoch": found.epoch,
        "seconds": found.seconds,
        "losses": [round(loss, 5) for loss in found.losses],
    }
    if found.validation is not None:
        metrics["validation_accuracy"] = 100 * found.validation.accuracy
        metrics["validation_accuracies"] = [
            round(100 * score.accuracy, 3) for score in found.validations
        ]
    return metrics


if __name__ == "__main__":
    typer.run(main)
