"""The build says what happened: failures fail, each time, and nothing runs without need."""

import json
import os
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from etlib import chapters
from tests.build import ROOT, make

NAMES = (
    "help setup book test smoke run lint bench bench-scale gpu-check results serve lab lock clean"
).split()


def test_help_lists_every_target():
    listed = re.findall(r"^([\w-]+) +\S", make("help").stdout, flags=re.MULTILINE)
    declared = re.search(r"^\.PHONY: (.*) FORCE$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert listed == declared[1].split() == NAMES


def test_help_is_what_make_says_by_default():
    assert make().stdout == make("help").stdout


@pytest.fixture
def tree(tmp_path) -> Path:
    """A copy of the project whose only chapter and only page are stand-ins."""
    for name in ("Makefile", "_config.yml", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("book", "etlib"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.pyc"))
    toc = {"format": "jb-book", "root": "book/intro", "chapters": [{"file": "notebooks/01-energy"}]}
    (tmp_path / "_toc.yml").write_text(json.dumps(toc))
    (tmp_path / "book" / "intro.md").write_text("# A page\n")
    return tmp_path


def write_chapter(tree: Path, *cells) -> None:
    parameters = new_code_cell('preset = "book"', metadata={"tags": ["parameters"]})
    notebook = new_notebook(
        cells=[nbformat.v4.new_markdown_cell("# A chapter"), parameters, *cells],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    (tree / "notebooks").mkdir(exist_ok=True)
    nbformat.write(notebook, tree / "notebooks" / "01-energy.ipynb")


def broken_chapter(tree: Path, tags=()) -> None:
    write_chapter(
        tree,
        new_code_cell("print('before')"),
        new_code_cell("raise RuntimeError('boom')", metadata={"tags": list(tags)}),
        new_code_cell("print('after')"),
    )


def test_a_chapter_that_fails_fails_the_build_each_time(tree):
    broken_chapter(tree)
    for _ in range(2):
        built = make("book", tree=tree)
        assert built.returncode != 0
        assert re.search(r"chapter energy failed in cell .* RuntimeError: boom", built.stdout)
        assert not (tree / "build" / "html").exists()


def test_an_error_passes_where_the_chapter_means_it(tree):
    broken_chapter(tree, tags=["raises-exception"])
    built = make("book", tree=tree)
    assert built.returncode == 0, built.stdout
    page = (tree / "build" / "html" / "notebooks" / "01-energy.html").read_text()
    assert "boom" in page and "after" in page and "An Exception was encountered" not in page


def test_a_chapter_runs_again_when_something_under_it_changed_and_only_then(tree):
    write_chapter(tree, new_code_cell("print('fine')"))
    assert make("book", tree=tree).returncode == 0
    page, notebook = tree / "build/html/index.html", tree / "build/notebooks/01-energy.ipynb"
    built, executed = page.stat().st_mtime_ns, notebook.stat().st_mtime_ns

    def pending(*arguments: str) -> str:
        return make("-n", "book", *arguments, tree=tree).stdout

    again = make("book", tree=tree)
    assert "etlib run" not in again.stdout and "jupyter-book" not in again.stdout
    assert (page.stat().st_mtime_ns, notebook.stat().st_mtime_ns) == (built, executed)
    assert "etlib run" in pending("PRESET=smoke")

    os.utime(tree / "book" / "intro.md")
    assert "etlib run" not in pending() and "jupyter-book" in pending()

    for under in ("etlib/data/__init__.py", "requirements.lock", "notebooks/01-energy.ipynb"):
        before = (tree / under).stat()
        os.utime(tree / under)
        assert "etlib run" in pending(), under
        os.utime(tree / under, ns=(before.st_atime_ns, before.st_mtime_ns))

    (tree / "book" / "results" / "02-cost-x.json").write_text("{}")
    assert "etlib run" not in pending()
    (tree / "book" / "results" / "01-energy-x.json").write_text("{}")
    assert "etlib run" in pending()


def test_a_broken_reference_citation_or_figure_fails_the_build_each_time(tree):
    write_chapter(tree, new_code_cell("print('fine')"))
    (tree / "book" / "intro.md").write_text(
        "# A page\n\n{eq}`eq-nowhere`, {cite}`nobody1900`, [](nowhere.md)\n\n![A figure](no.svg)\n"
    )
    for _ in range(2):
        built = make("book", tree=tree)
        assert built.returncode != 0
        for what in ("eq-nowhere", "nobody1900", "nowhere.md", "no.svg"):
            assert re.search(rf"WARNING: .*{what}", built.stdout), what
        assert not (tree / "build" / "html").exists()


def test_a_recorded_result_bears_the_name_of_its_chapter():
    for path in (ROOT / "book" / "results").glob("*.json"):
        chapter = chapters.get(json.loads(path.read_text())["chapter"])
        assert path.name.startswith(f"{chapter.stem}-")
