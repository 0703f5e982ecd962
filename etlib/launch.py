"""The front door to papermill: check, execute in a new folder, leave a record.

Everything that can be known to be wrong is said before a kernel starts. papermill then
executes the chapter with the interpreter that runs this code, whatever kernel the notebook
names: an editor's private kernel name must not decide which packages a chapter sees.
"""

import json
import math
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etlib import chapters, devices
from etlib.chapters import Chapter
from etlib.errors import ChapterFailed, ParameterError, RunError
from etlib.parameters import resolve
from etlib.provenance import RunRecord
from etlib.runs import RUN_DIR, new_folder


def parse_assignments(assignments: list[str]) -> dict[str, str]:
    """Split ``name=value`` texts; the value stays text, its field says how to read it."""
    given: dict[str, str] = {}
    for assignment in assignments:
        name, sign, value = assignment.partition("=")
        name = name.strip()
        if not (sign and name):
            raise ParameterError(f"-p takes name=value, got {assignment!r}")
        if name in given:
            raise ParameterError(f"parameter {name!r} is given twice")
        given[name] = value
    return given


class Run:
    """One execution of a chapter: checked when made, executed by :meth:`execute`."""

    def __init__(self, chapter: str, given: Mapping[str, Any], output: Path | None = None):
        devices.check_flags()
        self.chapter, self.source = find(chapter)
        check_notebook(self.source, self.chapter)
        preset, parameters, overrides = resolve(self.chapter.name, self.chapter.presets, given)
        self.record = RunRecord.begin(self.chapter.name, preset, parameters, overrides)
        # Only what was asked for is injected: the rest is the notebook's own to say.
        self.injected = dict(self.record.overrides)
        if given.get("preset") is not None:
            self.injected["preset"] = preset
        self.folder = new_folder(self.chapter.name) if output is None else claim(output)
        self.notebook = self.folder / self.source.name
        self.environment = {RUN_DIR: str(self.folder)}
        if preset == "smoke":  # compiling and drawing would be most of its time
            self.environment |= devices.quick_compilation() | {"ETLIB_DRAFT": "1"}

    def execute(self, timeout: int | None = None, progress: bool = True) -> RunRecord:
        """Execute the chapter; a failure ends as :class:`ChapterFailed`, the record says how."""
        # jsonschema would build a grammar for a second, to check formats that notebooks lack.
        sys.modules.setdefault("rfc3987_syntax", None)
        from nbclient.exceptions import CellTimeoutError, DeadKernelError
        from papermill import execute_notebook
        from papermill.engines import papermill_engines
        from papermill.exceptions import PapermillExecutionError

        self.record.save(self.folder)
        papermill_engines.register("etlib", _sparing_engine())
        try:
            execute_notebook(
                _literal(self.source),
                _literal(self.notebook),
                parameters=self.injected,
                engine_name="etlib",
                kernel_name="python3",
                language="python",
                kernel_manager_class=_this_interpreter(self.environment),
                execution_timeout=timeout,
                progress_bar=progress,
            )
        except PapermillExecutionError as error:
            # papermill counts the errors that a cell tagged raises-exception is meant to show.
            if _stopped(self.notebook):
                raise self._failed(f"{error.ename}: {error.evalue}") from None
            _unmark(self.notebook)
        except CellTimeoutError:
            raise self._failed(f"still running after {timeout} s") from None
        except DeadKernelError:
            raise self._failed("the kernel died, perhaps for want of memory") from None
        except KeyboardInterrupt:
            self._finish("interrupted")
            raise
        except Exception as error:  # no kernel, an invalid notebook, a full disk
            raise self._failed(f"{type(error).__name__}: {error}") from error
        return self._finish("completed")

    def _failed(self, reason: str) -> ChapterFailed:
        reason = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", reason).split())
        message = f"chapter {self.chapter.name} failed in {_last_started(self.notebook)}: {reason}"
        self._finish("failed", message)
        return ChapterFailed(message)

    def _finish(self, status: str, error: str | None = None) -> RunRecord:
        # The kernel has written to the record meanwhile: device, data, resolved parameters.
        self.record = RunRecord.load(self.folder).end(status, error)
        self.record.save(self.folder)
        if self.notebook.exists():
            _tidy(self.notebook)
        return self.record


def find(name: str) -> tuple[Chapter, Path]:
    """Return the chapter and its notebook, for a chapter's name or the path of a copy."""
    path = Path(name)
    if path.suffix != ".ipynb":
        chapter = chapters.get(name)
        path = chapter.path
        if not path.exists():
            raise RunError(
                f"chapter {chapter.name} has its notebook at notebooks/{chapter.notebook} of the "
                "checkout, which is not here; give the path of the notebook"
            )
        return chapter, path
    if not path.is_file():
        raise RunError(f"no notebook {name}")
    declared = _read(path).get("metadata", {}).get("etlib", {}).get("chapter")
    known = {chapter.stem: chapter for chapter in chapters.CHAPTERS.values()}
    if declared is None and path.stem in known:  # an editor may have dropped the metadata
        return known[path.stem], path
    if declared is None:
        raise RunError(
            f"{name} does not say which chapter it is: add to its metadata "
            f'"etlib": {{"chapter": NAME}} with one of {", ".join(chapters.CHAPTERS)}'
        )
    return chapters.get(declared), path


def check_notebook(path: Path, chapter: Chapter) -> None:
    """Refuse a notebook where papermill would put parameters in the wrong place, or nowhere."""
    tagged = [
        i
        for i, cell in enumerate(_code_cells(path))
        if "parameters" in cell["metadata"].get("tags", [])
    ]
    if tagged != [0]:
        found = f"{len(tagged)} cells are" if len(tagged) != 1 else f"code cell {tagged[0] + 1} is"
        raise RunError(
            f"{path.name}: exactly one cell, the first code cell, must be tagged 'parameters' for "
            f"parameters to arrive, but {found}. Parameters of chapter {chapter.name}: "
            f"{', '.join(chapter.parameter_names)}"
        )


def claim(output: Path) -> Path:
    """Return an output folder that is new or empty, so that nothing can be overwritten."""
    if output.is_dir() and not any(output.iterdir()):
        return output.absolute()
    if output.exists():
        raise RunError(f"--output {output} exists: name a new or an empty folder")
    if output.suffix == ".ipynb":
        raise RunError(f"--output {output} names a notebook: name a folder")
    output.mkdir(parents=True)
    return output.absolute()


def _read(path: Path) -> dict[str, Any]:
    # Plain JSON: nbformat takes seconds to import, and a mistake should be named at once.
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["nbformat"] == 4 and "cells" in content:
            return content
    except (ValueError, KeyError, TypeError):
        pass
    raise RunError(f"{path.name} is not a notebook of format 4")


def _code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in _read(path)["cells"] if cell["cell_type"] == "code"]


def _this_interpreter(environment: dict[str, str]) -> type:
    """Return a kernel manager whose kernel is the running interpreter, whatever is installed."""
    from ipykernel.kernelspec import get_kernel_dict
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager
    from traitlets import default

    class ThisInterpreter(AsyncKernelManager):
        @default("transport_encryption")
        def _encrypted(self) -> str:
            return "auto"  # a kernel listens on TCP, which others on a shared machine can reach

        @property
        def kernel_spec(self) -> KernelSpec:
            return KernelSpec(env=environment, **get_kernel_dict())

    return ThisInterpreter


def _sparing_engine() -> type:
    """Return papermill's engine, but that it writes the notebook every few seconds and at the
    end instead of twice a cell: with its figures that takes longer than most cells."""
    from papermill.engines import NBClientEngine

    class Sparing(NBClientEngine):
        @classmethod
        def execute_managed_notebook(cls, manager, *arguments, **options):
            save, saved = manager.save, -math.inf

            def now_and_then(**_):
                nonlocal saved
                if time.monotonic() - saved > 5:
                    save()
                    saved = time.monotonic()

            manager.save = now_and_then
            try:
                super().execute_managed_notebook(manager, *arguments, **options)
            finally:
                manager.save = save  # the caller writes the end, also that of a failure

    return Sparing


def _literal(path: Path) -> str:
    """Return a path for papermill, which reads braces as places to fill in."""
    return str(path).replace("{", "{{").replace("}", "}}")


def _last_started(notebook: Path) -> str:
    """Return number and first line of the last code cell that papermill started."""
    code = _code_cells(notebook) if notebook.exists() else []
    number = sum(cell["metadata"]["papermill"]["start_time"] is not None for cell in code)
    if number == 0:
        return "no cell (it did not start)"
    source = "".join(code[number - 1]["source"])  # text, or a list of lines
    return f"cell [{number}] `{source.strip().partition(chr(10))[0]}`"


def _stopped(notebook: Path) -> bool:
    """Whether an error ended an executed notebook before its end."""
    return any(cell["metadata"]["papermill"]["exception"] for cell in _code_cells(notebook))


def _unmark(notebook: Path) -> None:
    """Remove the cells that papermill adds to point at an error."""
    import nbformat
    from papermill.execute import remove_error_markers

    executed = nbformat.read(notebook, as_version=nbformat.NO_CONVERT)
    nbformat.write(remove_error_markers(executed), notebook)


def _tidy(notebook: Path) -> None:
    """Name the kernel that ran, drop the folders of this machine from the metadata, and fold
    the cell in which papermill passed the parameters: the table of `configure` shows them."""
    executed = _read(notebook)
    for cell in executed["cells"]:
        tags = cell["metadata"].get("tags", [])
        if "injected-parameters" in tags:
            tags.append("hide-input")
    for key in ("input_path", "output_path"):
        executed["metadata"].get("papermill", {}).pop(key, None)
    executed["metadata"]["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    text = json.dumps(executed, indent=1, ensure_ascii=False, sort_keys=True)
    notebook.write_text(text + "\n", encoding="utf-8")
