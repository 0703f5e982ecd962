"""Which devices JAX has, checked before a chapter computes anything.

JAX reads its settings once, when it is imported or first used; a setting made later is
ignored in silence. These checks turn that silence into one line.
"""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from etlib.errors import DeviceError

if TYPE_CHECKING:
    import jax

DASHES = "‐‑‒–—―−﹘﹣－"


def check_flags() -> None:
    """Refuse a typographic dash in XLA_FLAGS: XLA would abort the whole process on it."""
    flags = os.environ.get("XLA_FLAGS", "")
    for word in flags.split():
        if any(dash in word for dash in DASHES):
            raise DeviceError(
                f"XLA_FLAGS holds a typographic dash in {word!r}: type plain hyphens, "
                "e.g. --xla_force_host_platform_device_count=8"
            )


def quick_compilation() -> dict[str, str]:
    """Return the environment in which a new process compiles fast, to programs that run slowly.

    For runs that compile more than they compute: most of LLVM's optimisations are left out, and
    loops are emitted directly instead of through MLIR, and a program is compiled in one piece.
    Flags already set take precedence.
    """
    quick = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    flags = f"{quick} {os.environ.get('XLA_FLAGS', '')}".strip()
    return {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "XLA_FLAGS": flags}


@contextmanager
def compilation_cache() -> Iterator[None]:
    """Keep what is compiled on disk meanwhile: the many runs of a sweep share it."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache as cache

    before = jax.config.jax_compilation_cache_dir
    with tempfile.TemporaryDirectory() as folder:
        try:
            jax.config.update("jax_compilation_cache_dir", folder)
            cache.reset_cache()  # JAX looks at the setting once
            yield
        finally:
            jax.config.update("jax_compilation_cache_dir", before)
            cache.reset_cache()


def requested_host_devices() -> int | None:
    """Return the number of virtual CPU devices that XLA_FLAGS asks for, if it asks."""
    found = re.findall(
        r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", "")
    )
    return int(found[-1]) if found else None


def require(device: str = "auto", n_devices: int | None = None) -> "list[jax.Device]":
    """Return the devices to compute on, or say in one line why they are not there.

    ``device`` is "auto" (what JAX prefers), "cpu", "gpu" or "tpu"; a named one becomes JAX's
    default. ``n_devices`` is the least number that the caller needs.
    """
    check_flags()
    import jax  # not at the top: flags can be set until here

    default = jax.devices()
    wanted = os.environ.get("JAX_PLATFORMS")
    if wanted and not jax.config.jax_platforms:
        raise DeviceError(
            f"JAX_PLATFORMS={wanted} was set after JAX was imported, which computes on "
            f"{_seen(default)}; restart the kernel and set it first"
        )
    requested = requested_host_devices()
    if requested and (visible := len(jax.devices("cpu"))) != requested:
        raise DeviceError(
            f"{_count(visible)} visible, {requested} requested by XLA_FLAGS; restart the kernel "
            "and set XLA_FLAGS before JAX is first used"
        )
    devices = default if device == "auto" else _named(device, default)
    if n_devices and len(devices) < n_devices:
        raise DeviceError(
            f"{n_devices} devices asked for, JAX sees {_seen(devices)}; for virtual CPU devices "
            f"set XLA_FLAGS=--xla_force_host_platform_device_count={n_devices} before JAX starts"
        )
    return devices


def describe(devices: "list[jax.Device]") -> dict[str, str | int]:
    """Return platform, kind and number of devices; nothing that names the machine."""
    first = devices[0]
    return {"platform": first.platform, "kind": first.device_kind, "count": len(devices)}


def _named(device: str, default: "list[jax.Device]") -> "list[jax.Device]":
    import jax

    try:
        devices = jax.devices(device)
    except RuntimeError:
        extra = {"gpu": "cuda", "tpu": "tpu"}.get(device)
        advice = f"; pip install 'etlib[{extra}]', or choose device cpu or auto" if extra else ""
        raise DeviceError(
            f"device {device!r} asked for, JAX sees {_seen(default)}{advice}"
        ) from None
    jax.config.update("jax_default_device", devices[0])
    return devices


def _seen(devices: "list[jax.Device]") -> str:
    return f"{_count(len(devices))} ({devices[0].platform}: {devices[0].device_kind})"


def _count(number: int) -> str:
    return f"{number} device{'' if number == 1 else 's'}"
