"""Run make with the environment that runs the tests."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def make(*arguments: str, tree: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run make in a tree; stdout and stderr come back together as ``stdout``."""
    outer = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "XLA_FLAGS")  # of `make test` and conftest.py
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    environment["PYTHONPATH"] = str(tree)  # the tree's etlib, not the installed one
    return subprocess.run(
        # INSTALLED: the environment stands; never install a copy of the tree into it.
        ["make", f"VENV={sys.prefix}", "INSTALLED=", *arguments],
        cwd=tree,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
