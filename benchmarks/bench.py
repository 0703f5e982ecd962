"""Time, memory and compile time of one training step, against stated references, in one run.

`make bench` runs it; `ARGS="--batch 2"` for a smaller machine, `ARGS="--part graphs"` for a
part, `ARGS="--part images --record"` to write what was found as a result under runs/. The block
of the first part is the paper's (N=197, D=768, H=12, Y=64, K=3072, T=12); the variants, the
usual way and the floor are those of `etlib.cost`.
"""

from typing import Annotated, Literal

import typer
from graphs import graph_classifier
from tables import show

from etlib import cost, runs
from etlib.block import BlockConfig
from etlib.chapters.cost import PRESETS

COLUMNS = (
    "",
    "time (s)",
    "x floor",
    "x usual",
    "memory (MiB)",
    "x usual",
    "compile (s)",
    "x usual",
)


def image_block(batch, repeats, record):
    """One training step of the paper's image block."""
    if record:
        runs.configure("cost", {"preset": "paper", "batch": batch, "repeats": repeats})
    found, floor = cost.training_step(BlockConfig(), PRESETS["paper"].n_tokens, batch, repeats)
    usual = found["the usual way"]
    rows = [
        (
            name,
            f"{one.seconds:.2f}",
            f"{one.seconds / floor:.2f}",
            f"{one.seconds / usual.seconds:.2f}",
            f"{one.mebibytes:.0f}",
            f"{one.mebibytes / usual.mebibytes:.3f}",
            f"{one.compile_seconds:.1f}",
            f"{one.compile_seconds / usual.compile_seconds:.2f}",
        )
        for name, one in found.items()
    ]
    rows.append(("matrix-product floor", f"{floor:.2f}", "1.00"))
    show(f"One training step, batch {batch}", COLUMNS, rows)
    if record:
        title = "One training step of the paper's image block"
        protocol = f"fastest of {repeats}; temporary memory as the compiler states it"
        metrics = cost.as_metrics(found, floor)
        print("recorded:", runs.record("train-step", metrics, title=title, protocol=protocol))


Part = Literal["images", "graphs"]


def main(
    batch: Annotated[int, typer.Option(help="images in a batch")] = 8,
    repeats: Annotated[int, typer.Option(help="runs, of which the fastest counts")] = 3,
    part: Annotated[Part | None, typer.Option(help="one part only")] = None,
    record: Annotated[bool, typer.Option("--record", help="record the images part")] = False,
):
    """Measure training steps on the default device."""
    if part in (None, "images"):
        image_block(batch, repeats, record)
    if part in (None, "graphs"):
        graph_classifier(repeats)


if __name__ == "__main__":
    typer.run(main)
