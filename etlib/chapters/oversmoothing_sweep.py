"""Chapter 7's recorded runs: python -m etlib.chapters.oversmoothing_sweep [FOLDER]

Trains plus, plain, minus and energy at depths 4 to 24 on all training images, and at depth 12 on
a tenth and on three tenths of them, three seeds each: 72 runs, about twenty minutes of two idle
cores. One JSON a run, written when it ends; a run whose file is there is skipped, so that a
stopped sweep goes on. By default the files go to book/results.
"""

import contextlib
import itertools
import shutil
import sys
import tempfile
from pathlib import Path

from etlib import devices, results, runs
from etlib.data import digits as dg
from etlib.oversmoothing import PROTOCOL, Experiment, fit, measure
from etlib.spectral import ClassifierConfig

MODELS = ("plus", "plain", "minus", "energy")
SEEDS = (0, 1, 2)
SETTINGS = [(depth, 1.0) for depth in (12, 4, 24, 8)] + [(12, 0.1), (12, 0.3)]


def main(folder: Path) -> None:
    folder = folder.absolute()
    data = dg.digits()
    with devices.compilation_cache():  # what one seed compiles, the others use
        # Seeds outermost: a sweep that stops early has every setting once.
        for seed, (depth, fraction), name in itertools.product(SEEDS, SETTINGS, MODELS):
            stem = f"07-oversmoothing-digits-{name}-depth{depth:02d}-data{fraction:.1f}-seed{seed}"
            target = folder / f"{stem}.json"
            if target.exists():
                continue
            given = {"spectrum": name, "depth": depth, "train_fraction": fraction, "seed": seed}
            with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
                written = record_one(given, data, landscape=(depth, fraction) == (12, 1.0))
                shutil.move(Path("runs", written), target)
            print(target.name, flush=True)


def record_one(given: dict, data: dg.Digits, landscape: bool) -> str:
    """Train and measure one model; returns the name of what `runs.record` wrote."""
    p = runs.configure("oversmoothing", {"preset": "paper", **given})
    runs.data_fingerprint("digits", *itertools.chain(*data))
    model = ClassifierConfig(name=p.spectrum, depth=p.depth)
    trained = fit(Experiment(model, p.n_steps, p.batch, p.train_fraction, p.seed), data)
    metrics = measure(
        trained,
        data,
        n_jacobians=4 if landscape else 0,
        hessian_images=p.hessian_images if landscape else 0,
        slice_points=p.slice_points if landscape and p.seed == 0 else 0,
        slice_radius=p.slice_radius,
    )
    return runs.record("digits", metrics, title=f"digits, {p.spectrum}", protocol=PROTOCOL)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else results.FOLDER)
