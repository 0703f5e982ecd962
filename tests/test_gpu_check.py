"""`make gpu-check` without a GPU: it says so; tried out on the CPU, it records a valid result."""

import os
import subprocess
import sys

import jax
import pytest

from benchmarks import gpu_check
from etlib import completion, results
from etlib.chapters.masked_images import PRESETS
from tests.build import ROOT

SMOKE = PRESETS["smoke"]


def check(folder, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    script = str(ROOT / "benchmarks" / "gpu_check.py")
    return subprocess.run(
        [sys.executable, script, *arguments],
        cwd=folder,
        env=environment,
        text=True,
        capture_output=True,
    )


def test_without_a_gpu_it_says_so(tmp_path):
    done = check(tmp_path)
    assert done.returncode == 2 and done.stdout == "" and not any(tmp_path.iterdir())
    (line,) = done.stderr.splitlines()
    assert line.startswith("gpu-check: device 'gpu' asked for, JAX sees 2 devices (cpu: cpu)")


def test_tried_out_on_the_cpu_it_records(tmp_path):
    options = "--device cpu --preset smoke --batch 8 --workers 0 --minutes 0"
    done = check(tmp_path, *options.split())
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("runs/*/result-gpu-check.json")
    result = results.read(path)
    assert (result.experiment, result.device.kind) == ("gpu-check", "cpu")
    assert result.metrics["loss off by"] == 0 and result.metrics["step images a second"] > 0
    assert "share of peak" not in result.metrics  # a CPU has no stated one
    assert len(result.metrics["training loss"]) == result.metrics["trained steps"] == 2


def test_other_numbers_than_the_cpu_are_named(monkeypatch):
    monkeypatch.setattr(gpu_check, "TOLERANCE", {"update": -1.0})
    with pytest.raises(gpu_check.Disagreement, match=r"update: cpu and CPU differ by 0\.0e\+00"):
        gpu_check.verify(completion.model_config(SMOKE), jax.devices()[1])
