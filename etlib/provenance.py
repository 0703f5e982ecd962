"""Where a number comes from: code, versions, device, data and time of the run behind it.

Nothing here names a machine, a user or a folder, so records can be published as they are.
"""

import html
import os
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from platform import python_version
from typing import Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from etlib.chapters import ROOT

PACKAGES = ("etlib", "jax", "jaxlib", "flax", "optax", "numpy", "papermill")


class Device(BaseModel):
    """What JAX computed on."""

    model_config = ConfigDict(extra="forbid")
    platform: str
    kind: str
    count: int = Field(ge=1)


class DataSet(BaseModel):
    """The data a run read: its name, and a hash of shapes, types and bytes."""

    model_config = ConfigDict(extra="forbid")
    name: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Provenance(BaseModel):
    """What every record says about its run, whatever else it holds."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    schema_version: Literal[1] = 1
    chapter: str
    preset: str
    seed: int | None
    commit: str | None = Field(description="git commit of the code; null outside a checkout")
    dirty: bool | None = Field(description="whether the code differed from that commit")
    versions: dict[str, str]
    device: Device | None = Field(None, description="null until the chapter has asked JAX")
    started: AwareDatetime
    ended: AwareDatetime | None = None
    duration_s: float | None = Field(None, ge=0)
    data: list[DataSet] = Field([])


class RunRecord(Provenance):
    """The content of ``run.json``, and the panel at the end of a chapter."""

    status: Literal["running", "completed", "failed", "interrupted"] = "running"
    parameters: dict[str, Any]
    overrides: dict[str, Any] = Field(description="the parameters that the reader set")
    error: str | None = None

    @classmethod
    def begin(cls, chapter: str, preset: str, parameters: BaseModel, overrides: Any) -> "RunRecord":
        values = parameters.model_dump(mode="json")
        commit, dirty = code_state()
        return cls(
            chapter=chapter,
            preset=preset,
            parameters=values,
            overrides={name: values[name] for name in overrides},
            seed=values.get("seed"),
            commit=commit,
            dirty=dirty,
            versions=versions(),
            started=datetime.now(UTC),
        )

    @classmethod
    def load(cls, folder: Path) -> "RunRecord":
        return cls.model_validate_json((folder / "run.json").read_text())

    def save(self, folder: Path) -> None:
        # By way of a second file: a run killed while saving keeps its last whole record.
        draft = folder / "run.json.tmp"
        draft.write_text(self.model_dump_json(indent=2) + "\n")
        os.replace(draft, folder / "run.json")

    def end(self, status: str, error: str | None = None) -> "RunRecord":
        """Return the record of the same run, now ended."""
        now = datetime.now(UTC)
        seconds = round((now - self.started).total_seconds(), 3)
        return self.model_copy(
            update={"status": status, "error": error, "ended": now, "duration_s": seconds}
        )

    def _rows(self) -> list[tuple[str, str]]:
        code = "not a git checkout"
        if self.commit:
            code = self.commit[:10] + (" + modified" if self.dirty else "")
        device = "unknown"
        if self.device:
            device = f"{self.device.count} × {self.device.platform} ({self.device.kind})"
        seconds = self.duration_s
        return [
            ("preset", self.preset),
            ("parameters", _pairs(self.parameters, " = ")),
            ("commit", code),
            ("versions", _pairs(self.versions, " ")),
            ("device", device),
            ("data", ", ".join(f"{d.name} (sha256 {d.sha256[:12]})" for d in self.data) or "none"),
            ("duration", "running" if seconds is None else f"{seconds:.1f} s"),
        ]

    def __repr__(self) -> str:
        return "\n".join(f"{name:<11}{value}" for name, value in self._rows())

    def _repr_html_(self) -> str:
        return html_table(f"Provenance of chapter {self.chapter}", (), self._rows())


def code_state() -> tuple[str | None, bool | None]:
    """Return the git commit of the checkout this package lives in, and whether it is modified."""
    if not (ROOT / ".git").exists():  # installed from a wheel, perhaps inside another checkout
        return None, None
    commit = _git("rev-parse", "HEAD")
    # Newly recorded results do not change the code that the next run uses.
    changes = _git("status", "--porcelain", "--", ".", ":!book/results")
    return commit, None if changes is None else bool(changes)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that numbers depend on."""
    return {"python": python_version()} | {name: metadata.version(name) for name in PACKAGES}


def html_table(caption: str, head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a plain table, without colours: it must read in a light and in a dark theme."""
    header = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join(
        f'<tr><th scope="row" style="text-align:left">{html.escape(first)}</th>'
        + "".join(f'<td style="text-align:left">{html.escape(cell)}</td>' for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    top = f"<thead><tr>{header}</tr></thead>" if head else ""
    return f"<table><caption>{html.escape(caption)}</caption>{top}<tbody>{body}</tbody></table>"


def _pairs(values: dict[str, Any], sign: str) -> str:
    return ", ".join(f"{name}{sign}{value}" for name, value in values.items())


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):  # no git, or a checkout it does not trust
        return None
    return done.stdout.strip()
