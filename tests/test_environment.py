"""requirements.lock, environment.yml and pyproject.toml name the same packages and versions."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INSTALLED_EXTRAS = ("chapters", "graphs", "book", "test", "lab")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(lines) -> dict[str, str]:
    matches = (re.match(r"([\w.-]+)==([^\s;]+)", line) for line in lines)
    return {normal(m[1]): m[2] for m in matches if m}


LOCK = pins((ROOT / "requirements.lock").read_text().splitlines())
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
CONDA_PINS = pins(next(item["pip"] for item in CONDA if isinstance(item, dict)))

DEPENDENCIES = [
    *PROJECT["dependencies"],
    *(d for extra in INSTALLED_EXTRAS for d in PROJECT["optional-dependencies"][extra]),
]


@pytest.mark.parametrize("dependency", DEPENDENCIES)
def test_a_dependency_is_locked_and_pinned_for_conda(dependency):
    name, wanted = re.match(r"([\w.-]+)(?:\[.*\])?(?:==(.+))?$", dependency).groups()
    locked = LOCK.get(normal(name))
    assert locked, f"{name} is not in requirements.lock: make lock"
    assert wanted in (None, locked)
    assert CONDA_PINS.get(normal(name)) == locked, f"environment.yml should pin {name}=={locked}"


def test_conda_pins_nothing_that_is_not_locked():
    assert CONDA_PINS.items() <= LOCK.items()


def test_conda_takes_a_supported_python_and_the_rest_from_the_lock():
    assert "python=3.11" in CONDA
    pip = next(item["pip"] for item in CONDA if isinstance(item, dict))
    assert "--constraint requirements.lock" in pip
