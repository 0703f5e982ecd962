"""Chapter 6's recorded ablations: python -m etlib.chapters.graph_classification_ablations [FOLDER]

One thing at a time is changed in the model of the preset `book`, on csl and on pains, three folds
each. One JSON a variant, written when it ends; a variant whose file is there is skipped. By
default the files go to book/results. About twenty minutes of one idle core.
"""

import contextlib
import shutil
import sys
import tempfile
from pathlib import Path

from etlib import results, runs
from etlib.evaluation import RULES
from etlib.graph_training import Task

VARIANTS: dict[str, dict] = {
    "book": {},
    "no-encodings": {"n_eigenvectors": 0},
    "few-encodings": {"n_eigenvectors": 5},
    "encodings-of-length-one": {"encoding_scale": 1.0},
    "small-attention-at-first": {"attention_std": 0.002},
    "convolution": {"kernel": 3},
    "plain-adjacency": {"kernel": 0},
    "one-step": {"n_steps": 1},
    "four-steps": {"n_steps": 4},
    "two-blocks-of-one-step": {"n_blocks": 2, "n_steps": 1},
    "small-steps": {"alpha": 0.1},
    "no-noise": {"noise_std": 0.0},
    "much-noise": {"noise_std": 0.2},
}

N_FOLDS = 3


def main(folder: Path) -> None:
    folder = folder.absolute()
    for dataset in ("csl", "pains"):
        for name, changed in VARIANTS.items():
            target = folder / f"06-graph-classification-ablation-{dataset}-{name}.json"
            if target.exists():
                continue
            given = {"preset": "book", "dataset": dataset, "folds": N_FOLDS, **changed}
            with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
                shutil.move(Path("runs", record_one(name, given)), target)
            print(target.name, flush=True)


def record_one(name: str, given: dict) -> str:
    """Train one variant; returns the name of what `runs.record` wrote."""
    p = runs.configure("graph-classification", given)
    task = Task(p)
    runs.data_fingerprint(p.dataset, *task.data.arrays)
    found = [task.run("et", fold) for fold in range(p.folds)]
    return runs.record(
        f"ablation-{p.dataset}",
        {
            "accuracy": [100 * fold.test.accuracy for fold in found],
            "train_accuracy": [100 * fold.train.accuracy for fold in found],
            "seconds": [fold.seconds for fold in found],
        },
        title=f"Ablation on {p.dataset}: {name}",
        protocol=f"{RULES[p.protocol]}; the first {p.folds} folds, {p.epochs} epochs",
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else results.FOLDER)
