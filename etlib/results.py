"""Recorded results: one JSON file a run, one schema, one table.

A chapter writes ``result-<experiment>.json`` into its run's folder (:func:`etlib.runs.record`);
a result worth keeping is copied to ``book/results/`` under a name that tells it apart. The
schema is the model :class:`Result`; ``Result.model_json_schema()`` gives it as JSON Schema.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from etlib.chapters import ROOT
from etlib.errors import ResultError
from etlib.provenance import Provenance

FOLDER = ROOT / "book" / "results"

VARYING = ("seed", "device", "first_fold")  # may differ between runs of one setting

NOTHING = "No results are recorded yet."

RULE = (
    "**agrees**: ours lies within the tolerance stated in the record; where none is stated, "
    "within two standard deviations over our runs; for a single run, within 1 % of the "
    "published number. Otherwise **better** or **worse** where the record says which way is "
    "better, else **differs**. The letter after a source says how the number is known: V read "
    "in the authors' own text or code, S a third party's account, C inferred from released "
    "code, D derived by arithmetic; S and D are not the paper's words."
)


class Reference(BaseModel):
    """A published number that a metric stands beside."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    metric: str
    value: float | None = Field(None, description="null where the text gives no number")
    text: str = Field("", description="the number as printed, e.g. 95.9 ± 0.8")
    source: str = Field(description="where it is printed")
    confidence: Literal["V", "S", "C", "D"]
    tolerance: float | None = Field(None, ge=0, description="absolute; ours agrees within it")
    direction: Literal["higher", "lower"] | None = Field(None, description="which is better")

    @model_validator(mode="after")
    def _says_something(self) -> "Reference":
        if self.value is None and not self.text:
            raise ValueError("needs a value or a text")
        return self


Series = Annotated[list[float], Field(min_length=1)]


class Result(Provenance):
    """One experiment of one run: what came out, by which rule, from what."""

    experiment: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    title: str = ""
    config: dict[str, Any] = Field(description="the chapter's parameters")
    metrics: dict[str, float | Series] = Field(min_length=1)
    protocol: str = Field("", description="how the number was taken, in one phrase")
    reference: list[Reference] = Field([])

    @model_validator(mode="after")
    def _refers_to_a_metric(self) -> "Result":
        for item in self.reference:
            if item.metric not in self.metrics:
                raise ValueError(f"reference names the metric {item.metric!r}, which is missing")
        return self

    @property
    def setting(self) -> str:
        """What runs share that differ only in seed, fold and device."""
        config = {k: v for k, v in self.config.items() if k not in VARYING}
        return json.dumps([self.chapter, self.experiment, self.protocol, config], sort_keys=True)


def validated(model: type[BaseModel], content: Any, where: str) -> Any:
    """Return ``content`` as ``model``, or name the place and every field that breaks it."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, p['loc'])) or 'content'}: {p['msg']}" for p in error.errors()
        )
        raise ResultError(f"{where}: {problems}") from None


def read(path: Path) -> Result:
    """Read and validate one file."""
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise ResultError(f"{path.name}: not JSON: {error}") from None
    return validated(Result, content, path.name)


def files(folder: Path = FOLDER) -> list[Path]:
    """Return the result files of a folder, which may be that of a run."""
    return sorted(path for path in folder.glob("*.json") if path.name != "run.json")


def load(
    experiment: str | None = None, chapter: str | None = None, folder: Path = FOLDER
) -> list[Result]:
    """Return the recorded results, all or those of one experiment or chapter."""
    return [
        result
        for result in map(read, files(folder))
        if experiment in (None, result.experiment) and chapter in (None, result.chapter)
    ]


def duplicates(results: Mapping[str, Result]) -> list[list[str]]:
    """Return the names of files that hold the same experiment, config, seed and fold."""
    seen: dict[tuple, list[str]] = {}
    for name, result in results.items():
        key = result.setting, result.seed, result.config.get("first_fold")
        seen.setdefault(key, []).append(name)
    return [names for names in seen.values() if len(names) > 1]


def verdict(reference: Reference | None, mean: float, spread: float | None) -> str:
    """Compare with a published number by ``RULE``; ``spread`` is None for a single run."""
    if reference is None or reference.value is None:
        return "no published number"
    slack = reference.tolerance
    if slack is None:
        slack = 0.01 * abs(reference.value) if spread is None else 2 * spread
    gap = mean - reference.value
    if abs(gap) <= slack:
        return "agrees"
    if reference.direction is None:
        return "differs"
    return "better" if (gap > 0) == (reference.direction == "higher") else "worse"


def markdown(results: Iterable[Result]) -> str:
    """Return the tables of the book's results page, the runs of one setting in one row.

    First every metric with a published counterpart, then whatever else was recorded.
    """
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.setting, []).append(result)
    if not groups:
        return NOTHING
    settings = list(groups.values())
    compared = [_compared(runs, item) for runs in settings for item in runs[0].reference]
    alone = [_alone(runs, settings) for runs in settings if not runs[0].reference]
    parts = []
    if compared:
        head = ("chapter", "what", "metric", "published", "ours", "protocol", "verdict", "commit")
        parts += [table(head, compared), RULE]
    if alone:
        parts.append("Recorded, with no published number to stand beside:")
        parts.append(table(("chapter", "what", "ours", "protocol", "commit"), alone))
    return "\n\n".join(parts)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; a cell may hold any character."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def _compared(runs: list[Result], reference: Reference) -> tuple[str, ...]:
    first = runs[0]
    values = [_mean(run.metrics[reference.metric]) for run in runs]
    spread = stdev(values) if len(values) > 1 else None
    number = reference.text or ("—" if reference.value is None else _number(reference.value))
    return (
        first.chapter,
        first.title or first.experiment,
        reference.metric,
        f"{number} ({reference.source}, {reference.confidence})",
        _ours(runs, reference.metric),
        first.protocol or "—",
        verdict(reference, fmean(values), spread),
        _commits(runs),
    )


def _alone(runs: list[Result], settings: list[list[Result]]) -> tuple[str, ...]:
    """The numbers of a setting; series, which the chapter draws, only where there is no number.
    The setting is told by what differs between the settings of its experiment."""
    first = runs[0]
    siblings = [s[0].config for s in settings if s[0].experiment == first.experiment]
    told = [
        f"{name} {value}"
        for name, value in first.config.items()
        if name not in VARYING and any(other.get(name) != value for other in siblings)
    ]
    numbers = [m for m, value in first.metrics.items() if not isinstance(value, list)]
    shown = numbers or list(first.metrics)
    return (
        first.chapter,
        ", ".join([first.title or first.experiment, *told]),
        "; ".join(f"{metric} {_ours(runs, metric)}" for metric in shown),
        first.protocol or "—",
        _commits(runs),
    )


def _ours(runs: list[Result], metric: str) -> str:
    """The mean over the runs, and how far they spread; of a single run its number or series."""
    values = [_mean(run.metrics[metric]) for run in runs]
    if len(values) == 1:
        return summary(runs[0].metrics[metric])
    return f"{_number(fmean(values))} ± {stdev(values):.2g} ({len(values)} runs)"


def _commits(runs: list[Result]) -> str:
    names = [(run.commit or "unknown")[:7] + (" + modified" if run.dirty else "") for run in runs]
    return ", ".join(dict.fromkeys(names))


def summary(value: float | list[float]) -> str:
    """Return a metric in a few characters: a number, or the mean and spread of a list."""
    if isinstance(value, list):
        spread = f" ± {stdev(value):.2g}" if len(value) > 1 else ""
        return f"{_number(_mean(value))}{spread} (of {len(value)})"
    return _number(value)


def _mean(value: float | list[float]) -> float:
    return fmean(value) if isinstance(value, list) else value


def _number(value: float) -> str:
    """Five significant digits; a whole number in full."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.5g}"
