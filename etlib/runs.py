"""What a chapter calls: parameters checked, data named, results recorded, provenance shown.

The first code cell of a chapter, tagged ``parameters``, assigns ``preset`` and the parameters
(``None`` means the preset's value); the second is ``p = runs.configure("energy", globals())``.
That works the same under ``etlib run``, under bare papermill and in a notebook opened by hand.
"""

import ast
import hashlib
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from etlib import chapters, devices
from etlib.errors import ResultError
from etlib.parameters import ChapterParameters, resolve
from etlib.provenance import DataSet, Device, RunRecord, html_table
from etlib.results import Result, validated

RUN_DIR = "ETLIB_RUN_DIR"  # set by `etlib run` in the kernel that it starts

_run: RunRecord | None = None
_folder: Path | None = None


def configure(chapter: str, namespace: Mapping[str, Any]) -> ChapterParameters:
    """Check what the reader asked of a chapter, show it, and return the frozen parameters.

    ``namespace`` is the notebook's ``globals()``. Raises before anything is computed when a
    name, a type or a value is wrong, or when the device asked for is not there.
    """
    global _run, _folder
    entry = chapters.get(chapter)
    given = _given(namespace, entry.parameter_names)
    preset, parameters, overrides = resolve(entry.name, entry.presets, given)
    found = devices.require(getattr(parameters, "device", "auto"))

    _run = RunRecord.begin(entry.name, preset, parameters, overrides)
    _run.device = Device(**devices.describe(found))
    _folder = Path(os.environ[RUN_DIR]) if RUN_DIR in os.environ else None
    if _folder:
        _run.started = RunRecord.load(_folder).started  # the run began before its kernel did
    _save()
    _show(Configuration(entry.name, preset, parameters, overrides))
    return parameters


def data_fingerprint(name: str, *arrays: Any) -> dict[str, str]:
    """Return ``{"name", "sha256"}`` of arrays, and note it as data that this run read."""
    digest = hashlib.sha256()
    for array in map(np.asarray, arrays):
        digest.update(f"{array.shape}{array.dtype.str}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    data = DataSet(name=name, sha256=digest.hexdigest())
    if _run and data not in _run.data:
        _run.data.append(data)
        _save()
    return data.model_dump()


def record(
    experiment: str,
    metrics: Mapping[str, Any],
    *,
    title: str = "",
    protocol: str = "",
    reference: dict | list[dict] | None = None,
    data: dict | list[dict] | None = None,
) -> str:
    """Write ``result-<experiment>.json`` into the run's folder; return both names.

    ``metrics`` maps names to numbers or lists of numbers. ``reference`` is the published
    number (or numbers) to stand beside; see :class:`etlib.results.Reference`. ``data`` is
    what :func:`data_fingerprint` returned, by default all of this run. Under ``etlib run`` an
    earlier result is never overwritten; in a notebook run by hand a repeated cell opens a new
    folder under ``runs/``.
    """
    global _folder
    run = _current().end("completed")
    result = validated(
        Result,
        {
            **run.model_dump(exclude={"status", "parameters", "overrides", "error"}),
            "config": {name: _portable(value) for name, value in run.parameters.items()},
            "experiment": experiment,
            "title": title,
            "metrics": {name: np.asarray(value).tolist() for name, value in metrics.items()},
            "protocol": protocol,
            "reference": _listed(reference),
            "data": _listed(data) if data is not None else run.model_dump()["data"],
        },
        f"experiment {experiment!r}",
    )
    name = f"result-{experiment}.json"
    if RUN_DIR not in os.environ and (_folder is None or (_folder / name).exists()):
        _folder = new_folder(run.chapter)
    path = _folder / name
    try:
        with path.open("x") as file:
            file.write(result.model_dump_json(indent=2) + "\n")
    except FileExistsError:
        raise ResultError(f"experiment {experiment!r} is already recorded in this run") from None
    return f"{_folder.name}/{name}"  # not the path: cell outputs are published


def folder() -> Path:
    """The folder of what this run recorded, for files that belong to it: weights, say.

    Raises ResultError before anything is recorded.
    """
    if _folder is None:
        raise ResultError("no folder yet: call runs.record first")
    return _folder


def provenance() -> RunRecord:
    """Return the run up to now; as the last expression of a chapter it shows as a panel."""
    return _current().end("completed")


def new_folder(chapter: str) -> Path:
    """Make and return a new folder under ``runs/`` for a run that starts now."""
    name = f"{chapter}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    for number in range(1, 1000):
        folder = Path("runs", name if number == 1 else f"{name}-{number}").absolute()
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise ResultError(f"no free folder for {name} under runs/")


class Configuration:
    """The resolved parameters as a small table: value, and who chose it."""

    def __init__(self, chapter: str, preset: str, parameters: ChapterParameters, overrides: Any):
        self.title = f"Chapter {chapter}, preset {preset}"
        fields = type(parameters).model_fields
        self.rows = [
            (
                name,
                str(value),
                "you" if name in overrides else "preset",
                fields[name].description or "",
            )
            for name, value in parameters
        ]

    def __repr__(self) -> str:
        return "\n".join([self.title, *(f"  {n:<14}{v:<12}{w}" for n, v, w, _ in self.rows)])

    def _repr_html_(self) -> str:
        return html_table(self.title, ("parameter", "value", "set by", "meaning"), self.rows)


def _given(namespace: Mapping[str, Any], known: list[str]) -> dict[str, Any]:
    """Return the values that the reader or papermill assigned as parameters.

    The names come from the source of the executed cells, so that a misspelt one is found and
    a kernel full of other variables raises no false alarm.
    """
    shell = _shell()
    if shell is None:  # the chapter as a plain script: any plain value may be a parameter
        plain = (bool, int, float, str, list, tuple, dict)
        return {n: v for n, v in namespace.items() if n[0] != "_" and isinstance(v, plain)}
    names = _assigned(shell.user_ns.get("In", [])) or known
    return {name: namespace[name] for name in names if name in namespace}


def _assigned(cells: list[str]) -> list[str]:
    """Return the names assigned by the latest parameters cell and what papermill injected.

    A cell that was corrected and run again counts once, as it is now: what stands before the
    latest parameters cell, or before the latest injected one, is history.
    """
    typed: list[str] = []
    injected: list[str] = []
    for source in cells:
        names = _top_level_names(source)
        if source.startswith("# Parameters"):  # papermill's heading
            injected = names
        elif "preset" in names:
            typed, injected = names, []
    return typed + injected


def _top_level_names(source: str) -> list[str]:
    try:
        statements = ast.parse(source).body
    except SyntaxError:
        return []
    targets = []
    for statement in statements:
        if isinstance(statement, ast.Assign):
            targets += statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets.append(statement.target)
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _shell() -> Any:
    from IPython import get_ipython

    return get_ipython()


def _show(table: Configuration) -> None:
    if _shell() is None:
        print(table)
        return
    from IPython.display import display

    display(table)


def _current() -> RunRecord:
    if _run is None:
        raise ResultError("no run: call runs.configure(chapter, globals()) first")
    return _run


def _save() -> None:
    """Tell ``etlib run`` what only the kernel knows."""
    if _run is not None and RUN_DIR in os.environ:
        _run.save(Path(os.environ[RUN_DIR]))


def _portable(value: Any) -> Any:
    """Return a parameter as a published record may hold it: a path is its last name only."""
    if not isinstance(value, str) or not re.search(r"(^|:)[/~]", value):
        return value
    kind, colon, path = value.rpartition(":")
    return f"{kind}{colon}{Path(path).name}"


def _listed(value: dict | list[dict] | None) -> list[dict]:
    return [] if value is None else value if isinstance(value, list) else [value]
