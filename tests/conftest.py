"""Settings that must be made before JAX is imported: two virtual CPU devices, quick compilation.

Tests compile much and compute little: see `etlib.devices.quick_compilation`.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=2 --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1"
)

import tests.typechecking  # noqa: F401  (pyproject names it; jaxtyping does not import it)
