"""Small notebooks and a small chapter for the tests of the front door."""

import json
from pathlib import Path
from typing import Literal

from pydantic import Field

from etlib import chapters
from etlib.parameters import ChapterParameters

ROOT = Path(__file__).parents[1]


class Parameters(ChapterParameters):
    """One field of every kind that a chapter may declare."""

    seed: int = Field(0, ge=0, description="seed")
    rate: float = Field(0.1, gt=0, le=10, description="a rate")
    limit: float = Field(1.0, allow_inf_nan=True, description="may be infinite")
    beta: float | None = Field(None, gt=0, description="may be absent")
    smoke: bool = True
    sizes: tuple[int, ...] = (3,)
    folder: str = "here"
    mode: Literal["fast", "slow"] = "fast"


PRESETS = {
    "smoke": Parameters(rate=0.5),
    "book": Parameters(),
    "paper": Parameters(rate=1.0),
}

TOY = chapters.Chapter("toy", "99-toy.ipynb", "tests.notebooks")

PYTHON = {"name": "python3", "display_name": "Python 3", "language": "python"}

PARAMETERS = "\n".join(['preset = "book"', *(f"{name} = None" for name in Parameters.model_fields)])
CONFIGURE = """\
from etlib import chapters, runs
from tests.notebooks import TOY
chapters.CHAPTERS["toy"] = TOY
p = runs.configure("toy", globals())"""


def write(
    path: Path, *cells: str, tagged: int | None = 0, chapter: str = "toy", **metadata: dict | None
) -> Path:
    """Write a notebook of code cells, of which one may be tagged; None drops metadata."""
    code = [
        {
            "cell_type": "code",
            "id": f"cell-{i}",
            "metadata": {"tags": ["parameters"]} if i == tagged else {},
            "source": source,
            "outputs": [],
            "execution_count": None,
        }
        for i, source in enumerate(cells)
    ]
    metadata = {"etlib": {"chapter": chapter}, "kernelspec": PYTHON} | metadata
    content = {
        "cells": code,
        "metadata": {key: value for key, value in metadata.items() if value is not None},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path.write_text(json.dumps(content))
    return path


def printed(path: Path) -> str:
    """Return everything that an executed notebook printed."""
    outputs = [o for c in json.loads(path.read_text())["cells"] for o in c.get("outputs", [])]
    return "".join("".join(o["text"]) for o in outputs if o["output_type"] == "stream")
