"""Settings that must be made before JAX is imported: two virtual CPU devices."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import tests.typechecking  # noqa: F401  (pyproject names it; jaxtyping does not import it)
