"""Devices: settings that JAX would ignore in silence, and accelerators that are not there."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from etlib import devices
from etlib.errors import DeviceError

COUNT = "--xla_force_host_platform_device_count="


def python(code, **environment):
    """Run code in a fresh interpreter, where JAX has not started yet."""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    return done.stdout + done.stderr


def test_named_and_automatic_devices():
    assert devices.require("cpu") == devices.require() == devices.require(n_devices=2)
    assert devices.describe(devices.require()) == {"platform": "cpu", "kind": "cpu", "count": 2}


def test_gpu_on_a_machine_without_one():
    with pytest.raises(DeviceError) as error:
        devices.require("gpu")
    assert "device 'gpu' asked for, JAX sees 2 devices (cpu: cpu)" in str(error.value)
    assert "pip install 'etlib[cuda]'" in str(error.value)


def test_more_devices_than_there_are():
    with pytest.raises(DeviceError, match="8 devices asked for, JAX sees 2 devices"):
        devices.require(n_devices=8)


def test_flag_set_after_jax_has_started():
    code = f"""
import os, jax
jax.devices()
os.environ["XLA_FLAGS"] = "{COUNT}8"
from etlib import devices
devices.require()"""
    message = "1 device visible, 8 requested by XLA_FLAGS; restart the kernel"
    assert message in python(code, JAX_PLATFORMS="cpu")


def test_flag_set_in_time():
    code = f"""
import os, jax
os.environ["XLA_FLAGS"] = "{COUNT}3"
from etlib import devices
print(len(devices.require()))"""
    assert python(code, JAX_PLATFORMS="cpu") == "3\n"


def test_quick_compilation_is_understood_and_keeps_the_flags_already_set():
    code = f"""
import os
os.environ["XLA_FLAGS"] = "{COUNT}3"
from etlib import devices
os.environ |= devices.quick_compilation()
import jax
print(len(devices.require()), jax.config.read("jax_disable_most_optimizations"))
print(jax.numpy.ones(3).sum())"""
    assert python(code, JAX_PLATFORMS="cpu") == "3 True\n3.0\n"


def test_platform_set_after_jax_was_imported():
    code = """
import os, jax
os.environ["JAX_PLATFORMS"] = "cuda"
from etlib import devices
devices.require()"""
    assert "JAX_PLATFORMS=cuda was set after JAX was imported" in python(code)


@pytest.mark.parametrize("dash", ["–", "—", "‑", "−"])
def test_typographic_dash_is_named(monkeypatch, dash):
    monkeypatch.setenv("XLA_FLAGS", COUNT.replace("--", dash) + "8")
    with pytest.raises(DeviceError, match=f"typographic dash in '{dash}xla_force"):
        devices.require()


def test_what_a_sweep_compiled_is_kept_while_it_runs_and_not_after(tmp_path):
    def compiled():  # a function that JAX has not seen
        jax.jit(lambda x: (x @ x).sum() + len(str(tmp_path)))(
            jnp.ones((64, 64))
        ).block_until_ready()

    before = jax.config.jax_compilation_cache_dir
    with devices.compilation_cache():
        folder = Path(jax.config.jax_compilation_cache_dir)
        assert folder.is_dir() and str(folder) != before
        compiled()
    assert jax.config.jax_compilation_cache_dir == before and not folder.exists()
    compiled()  # writing into the folder that is gone would warn
