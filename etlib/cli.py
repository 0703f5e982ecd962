"""The command ``etlib``: run chapters, list recorded results.

Heavy imports wait until a command needs them, so that help and mistakes come at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from etlib.errors import ChapterFailed, UserError

app = typer.Typer(
    help="Run the chapters of the Energy Transformer companion, and read what runs recorded.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End with one line on stderr: 1 when a chapter failed, 2 when the request was wrong."""
    try:
        yield
    except UserError as error:
        typer.echo(f"etlib: {error}", err=True)
        raise typer.Exit(1 if isinstance(error, ChapterFailed) else 2) from None


@app.command()
def run(
    chapter: Annotated[
        str, typer.Argument(help="Name (energy), number (1) or path of a notebook.")
    ],
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", metavar="NAME=VALUE", help="Set a parameter; repeat."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="New or empty folder; default runs/CHAPTER-TIME.", show_default=False),
    ] = None,
    timeout: Annotated[
        int | None, typer.Option(min=1, help="Seconds that one cell may take; default no limit.")
    ] = None,
) -> None:
    """Execute a chapter with papermill in a new folder.

    -p preset=smoke | book | paper chooses a preset; every other -p replaces one of its values.
    """
    from etlib.launch import Run, parse_assignments

    with one_line_errors():
        prepared = Run(chapter, parse_assignments(parameter or []), output)
        typer.echo(f"chapter {prepared.chapter.name}, output in {_near(prepared.folder)}")
        try:
            record = prepared.execute(timeout)
        except ChapterFailed:
            typer.echo(f"partial notebook: {_near(prepared.notebook)}", err=True)
            raise
        except KeyboardInterrupt:
            typer.echo(
                f"etlib: interrupted; partial notebook: {_near(prepared.notebook)}", err=True
            )
            raise typer.Exit(130) from None
        typer.echo(f"completed in {record.duration_s:.1f} s: {_near(prepared.notebook)}")


@app.command()
def results(
    folder: Annotated[
        Path | None, typer.Argument(help="Default: book/results.", show_default=False)
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table of the book's results page.")
    ] = False,
) -> None:
    """List and validate recorded results."""
    from etlib import results as recorded

    folder = recorded.FOLDER if folder is None else folder
    with one_line_errors():
        if not folder.is_dir():
            raise recorded.ResultError(f"no folder {folder}")
        found = {path.name: recorded.read(path) for path in recorded.files(folder)}
    if markdown:
        typer.echo(recorded.markdown(found.values()))
    elif not found:
        typer.echo(recorded.NOTHING)
    else:
        _print_table(found)
        for names in recorded.duplicates(found):
            typer.echo(f"same experiment, config and seed: {', '.join(names)}")


def _print_table(found: dict) -> None:
    from rich.console import Console
    from rich.table import Table

    from etlib.results import summary

    columns = ("file", "chapter", "experiment", "preset", "seed", "metrics", "commit")
    table = Table(*columns)
    for name, result in found.items():
        table.add_row(
            name,
            result.chapter,
            result.experiment,
            result.preset,
            str(result.seed),
            ", ".join(f"{metric} {summary(value)}" for metric, value in result.metrics.items()),
            (result.commit or "unknown")[:7] + (" + modified" if result.dirty else ""),
        )
    Console().print(table)


def _near(path: Path) -> Path:
    """Return a path as seen from here, where it lies below."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
