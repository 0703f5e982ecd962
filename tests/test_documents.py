"""The commands that README and book print are commands that work."""

import re
import shlex

import pytest

from etlib import chapters
from etlib.launch import parse_assignments
from etlib.parameters import resolve
from tests.build import ROOT, make

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "book").glob("*.md"))]
COMMANDS = [
    pytest.param(line, id=f"{path.stem}: {line}")
    for path in DOCUMENTS
    for block in re.findall(r"```bash\n(.*?)```", path.read_text(), flags=re.DOTALL)
    for line in block.splitlines()
]
PLAIN = {
    "conda env create -f environment.yml",
    "conda activate energy-transformer",
    "source .venv/bin/activate",
    "etlib results",
}


def check_parameters(chapter: chapters.Chapter, given: dict[str, str]) -> None:
    resolve(chapter.name, chapter.presets, given)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_printed_command_works(command):
    words = shlex.split(command)
    while "=" in words[0]:  # variables set for this command
        del words[0]
    match words:
        case ["make", *arguments]:
            planned = make("-n", *arguments)
            assert planned.returncode == 0, planned.stdout
        case ["etlib", "run", name, *options]:
            pairs = list(zip(options[::2], options[1::2], strict=True))
            assert {option for option, _ in pairs} <= {"-p", "--output"}
            given = parse_assignments([value for option, value in pairs if option == "-p"])
            check_parameters(chapters.get(name), given)
        case ["papermill", notebook, _, *options]:
            assert (ROOT / notebook).exists()
            assert set(options[::3]) <= {"-p"}
            given = dict(zip(options[1::3], options[2::3], strict=True))
            check_parameters(chapters.get((ROOT / notebook).stem), given)
        case _:
            assert command in PLAIN


def test_a_file_that_the_readme_names_exists():
    table = re.findall(r"^\| (`.*?`) \|", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    names = [name for cell in table for name in re.findall(r"`(.*?)`", cell)]
    names += re.findall(r"`((?:book|tests)/[\w./]+)`", (ROOT / "README.md").read_text())
    assert names and not [name for name in names if not (ROOT / name).exists()]
