"""Chapter 5's recorded runs: python -m etlib.chapters.anomaly_detection_sweep [SET ...]

First a card of every set, then the Energy Transformer and all baselines on the same splits of
five seeds, at the training shares that a set allows (`RATIOS`): about two hours of one
core for all sets. One JSON a set, share and model, written when its five seeds are done; one
whose file is there is skipped, so that a stopped sweep goes on. The sets come from ETLIB_DATA,
and by default the files go to book/results.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from etlib import devices, results, runs
from etlib.anomaly_comparison import TITLES, detect, energy_areas, untrained
from etlib.chapters.anomaly_detection import MODELS, Parameters
from etlib.cli import one_line_errors
from etlib.data import fraud
from etlib.data.nodegraph import NodeGraph
from etlib.detection import PROTOCOL, best_column, split
from etlib.graph_frequencies import right_shift

BOTH, MOST, NONE = (0.01, 0.4), (0.4,), ()

# A share is left out where it leaves fewer than three anomalies to train on, or fewer than four
# to choose with: a number of chance. So nothing runs on disney (6 anomalies) and enron (5).
RATIOS = {
    "amazon_upu": BOTH,
    "tolokers": BOTH,
    "reddit": BOTH,
    "cora_injected": MOST,
    "citeseer_injected": MOST,
    "inj_amazon": BOTH,
    "facebook": MOST,
    "books": MOST,
    "inj_cora": MOST,
    "disney": NONE,
    "enron": NONE,
    **dict.fromkeys(fraud.MADE, NONE),
}


def main(
    sets: Annotated[list[str] | None, typer.Argument(metavar="SET", help="Anomaly sets.")] = None,
    model: Annotated[str | None, typer.Option(help="Default: all.")] = None,
    folder: Path = results.FOLDER,
) -> None:
    """Record whatever is not recorded yet."""
    with one_line_errors(), devices.compilation_cache():
        graphs = {name: fraud.load(name) for name in sets or RATIOS}  # a missing one ends it here
        keep = Recorder(folder.absolute())
        for name, graph in graphs.items():
            keep(graph, "card", card, title=f"{name}, the set", protocol="labels of all nodes")
        for name, graph in graphs.items():
            for ratio in RATIOS.get(name, BOTH):
                for one in [model] if model else MODELS:
                    keep(
                        graph,
                        f"train{ratio:g}-{one}",
                        measured,
                        title=f"{name}, {ratio:.0%} to train on, {TITLES[one]}",
                        protocol=PROTOCOL,
                        train_ratio=ratio,
                        models=(one,),
                    )


class Recorder:
    """Runs and records what has no file in the folder yet."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __call__(
        self,
        graph: NodeGraph,
        what: str,
        measure: Callable[[NodeGraph, Parameters], dict],
        *,
        title: str,
        protocol: str,
        **given,
    ) -> None:
        target = self.folder / f"05-anomaly-detection-{graph.name}-{what}.json"
        if target.exists():
            return
        with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
            p = runs.configure("anomaly-detection", {"dataset": graph.name, **given})
            runs.data_fingerprint(graph.name, graph.x, graph.edges, graph.labels)
            metrics = measure(graph, p)
            written = runs.record(f"{graph.name}-{what}", metrics, title=title, protocol=protocol)
            shutil.move(Path("runs", written), target)
        print(target.name, flush=True)


def card(graph: NodeGraph, p: Parameters) -> dict[str, float | list[float]]:
    """Sizes, what one column or the degree alone tells, and where the features' energy lies."""
    shift = right_shift(graph)
    return {
        "nodes": graph.n_nodes,
        "edges": graph.edges.shape[1],
        "features": graph.x.shape[1],
        "labelled": len(graph.labelled),
        "anomalies": int((graph.labels == 1).sum()),
        "best_column_auc": best_column(graph.x, graph.labels)[1],
        "degree_auc": best_column(graph.degrees[:, None], graph.labels)[1],
        "frequency": shift.whole,
        "frequency_without_anomalies": shift.without_anomalies,
        "frequency_without_normal": shift.without_normal.tolist(),
    }


def measured(graph: NodeGraph, p: Parameters) -> dict[str, float | list[float]]:
    """One number a seed of each metric; of an Energy Transformer also what its energy says."""
    rows = []
    for seed in p.seeds:
        found = detect(p.models[0], graph, p, seed)
        row = {
            "macro_f1": found.test.macro_f1,
            "auc": found.test.auc,
            "average_precision": found.test.average_precision,
            "chosen_epoch": found.epoch,
            "seconds": found.seconds,
        }
        if found.model is not None:
            test = split(graph.labels, p.train_ratio, seed).test
            for when, net in (("", found.model), ("untrained_", untrained(graph, p, seed))):
                areas = energy_areas(net, graph, test)
                row |= {f"{when}{term}_auc": area for term, area in areas.items()}
        rows.append(row)
    return {name: np.round([row[name] for row in rows], 5).tolist() for name in rows[0]}


if __name__ == "__main__":
    typer.run(main)
