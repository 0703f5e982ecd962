"""The chapters of the book: their notebooks and the parameters that each takes.

A chapter is one line in ``CHAPTERS`` and one module of this package, which holds a model
``Parameters`` and the values ``PRESETS``. The modules are imported on first use, so listing
chapters costs nothing.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from etlib.errors import RunError
from etlib.parameters import ChapterParameters, suggest

ROOT = Path(__file__).resolve().parents[2]  # the checkout, unless installed from a wheel


@dataclass(frozen=True)
class Chapter:
    """A chapter: its name, its notebook, and the module that declares its parameters."""

    name: str
    notebook: str
    module: str

    @property
    def stem(self) -> str:
        return Path(self.notebook).stem

    @property
    def path(self) -> Path:
        """The notebook in the checkout this package lives in."""
        return ROOT / "notebooks" / self.notebook

    @property
    def presets(self) -> Mapping[str, ChapterParameters]:
        return importlib.import_module(self.module).PRESETS

    @property
    def parameter_names(self) -> list[str]:
        return ["preset", *type(self.presets["book"]).model_fields]


CHAPTERS: dict[str, Chapter] = {
    chapter.name: chapter
    for chapter in [
        Chapter("energy", "01-energy.ipynb", "etlib.chapters.energy"),
        Chapter("cost", "02-cost.ipynb", "etlib.chapters.cost"),
        Chapter("masked-images", "03-masked-images.ipynb", "etlib.chapters.masked_images"),
        Chapter("memories", "04-memories.ipynb", "etlib.chapters.memories"),
        Chapter(
            "graph-classification",
            "06-graph-classification.ipynb",
            "etlib.chapters.graph_classification",
        ),
        Chapter(
            "anomaly-detection", "05-anomaly-detection.ipynb", "etlib.chapters.anomaly_detection"
        ),
        Chapter("oversmoothing", "07-oversmoothing.ipynb", "etlib.chapters.oversmoothing"),
        Chapter(
            "conservation-laws", "08-conservation-laws.ipynb", "etlib.chapters.conservation_laws"
        ),
    ]
}


def get(name: str) -> Chapter:
    """Find a chapter by its name ("energy"), its notebook ("01-energy") or number ("1")."""
    for chapter in CHAPTERS.values():
        number = chapter.stem.split("-")[0]
        if name in (chapter.name, chapter.stem, chapter.notebook, number, number.lstrip("0")):
            return chapter
    raise RunError(f"unknown chapter {name!r}{suggest(name, CHAPTERS)}")
