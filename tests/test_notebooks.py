"""Chapters are stored so that a diff shows what changed, and so that papermill can run them."""

import re
from pathlib import Path

import nbformat
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    return nbformat.read(request.param, as_version=nbformat.NO_CONVERT)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_is_valid_and_of_a_format_with_cell_ids(notebook):
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) >= (4, 5)


def test_holds_no_outputs(notebook):
    for cell in code_cells(notebook):
        assert cell.outputs == [] and cell.execution_count is None, f"clear cell {cell.id}"


def test_first_code_cell_is_the_only_one_with_parameters(notebook):
    tagged = ["parameters" in cell.metadata.get("tags", []) for cell in code_cells(notebook)]
    assert tagged.index(True) == 0 and sum(tagged) == 1


def test_names_its_chapter_and_the_python_kernel_and_nothing_of_the_machine(notebook):
    assert notebook.metadata.etlib.chapter
    assert notebook.metadata.kernelspec.name == "python3"
    assert "version" not in notebook.metadata.get("language_info", {})


def test_every_chapter_is_in_the_table_of_contents():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    listed = [page["file"] for part in toc["parts"] for page in part["chapters"]]
    chapters = [page for page in listed if page.startswith("notebooks/")]
    assert chapters == [f"notebooks/{path.stem}" for path in NOTEBOOKS]


def test_every_equation_label_is_given_once():
    pages = [*NOTEBOOKS, *(ROOT / "book").glob("*.md")]
    labels = [label for page in pages for label in re.findall(r"\$\$ \((\S+?)\)", page.read_text())]
    assert labels and len(set(labels)) == len(labels), sorted(
        label for label in set(labels) if labels.count(label) > 1
    )
