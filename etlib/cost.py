"""What a training step costs: operations and stored values counted, time and memory measured.

Counts are of matrix products, in which a product of (a, b) with (b, c) is 2abc floating-point
operations; everything else is small beside them. N tokens, D wide; H heads of Y; K memories.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from etlib import energy as en
from etlib.block import BlockConfig, ETBlock, Remat
from etlib.transformer import TransformerConfig

# Stated by the makers, dense products in bfloat16, in operations a second; the first name that
# is part of what JAX calls a device counts.
PEAK = {
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "H200": 989e12,
    "B200": 2250e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "TPU v5 lite": 197e12,
}


def peak(device_kind: str) -> float | None:
    """The stated bfloat16 peak of a device, or None for one that is not listed."""
    return next((value for name, value in PEAK.items() if name in device_kind), None)


# ---------------------------------------------------------------------------
# Counted
# ---------------------------------------------------------------------------


def step_products(n_tokens: int, c: BlockConfig) -> dict[str, int]:
    """Operations of one descent step in closed form, by product (eq-step-cost)."""
    N, D, HY, K = n_tokens, c.token_dim, c.n_heads * c.head_dim, c.n_memories
    return {
        "keys and queries": 4 * N * D * HY,
        "scores": 2 * N**2 * HY,
        "as a query": 2 * N**2 * HY + 2 * N * D * HY,
        "as a key": 2 * N**2 * HY + 2 * N * D * HY,
        "memories": 4 * N * K * D,
    }


def layer_products(n_tokens: int, c: TransformerConfig) -> dict[str, int]:
    """Operations of one standard Transformer layer, by product (eq-layer-cost)."""
    N, D = n_tokens, c.token_dim
    return {
        "keys, queries, values": 6 * N * D**2,
        "scores": 2 * N**2 * D,
        "values mixed, and out": 2 * N**2 * D + 2 * N * D**2,
        "perceptron": 4 * N * D * c.mlp_dim,
    }


def block_parameters(c: BlockConfig) -> int:
    """Wk and Wq, Xi, delta and gamma: 2 H Y D + K D + D + 1."""
    return 2 * c.n_heads * c.head_dim * c.token_dim + (c.n_memories + 1) * c.token_dim + 1


def layer_parameters(c: TransformerConfig) -> int:
    """Four square matrices, two of the perceptron, their biases, and two layer norms."""
    D, M = c.token_dim, c.mlp_dim
    return 4 * D**2 + 2 * D * M + (4 * D + M + D) + 4 * D


def stored_values(n_tokens: int, c: BlockConfig, remat: Remat) -> int:
    """Numbers kept for the backward pass of one step of one image, as `block.descend` has them.

    "all" keeps the tokens before the step, "cheap" also their overlaps with the memories. For
    "none", what is kept depends on what the compiler fuses: no closed form.
    """
    if remat == "all":
        return n_tokens * c.token_dim
    if remat == "cheap":
        return n_tokens * (c.token_dim + c.n_memories)
    raise ValueError(f"no closed form for remat {remat!r}: all or cheap")


# ---------------------------------------------------------------------------
# Measured
# ---------------------------------------------------------------------------


class Cost(NamedTuple):
    """Of one run of a compiled function: the fastest of several, and what compiling took."""

    seconds: float
    mebibytes: float  # temporary memory: without arguments and results
    compile_seconds: float


def loss(remat: Remat, block: ETBlock, x: Float[Array, "b N D"]) -> Float[Array, ""]:
    """Something to take a gradient of, at the end of the descent of `block.descend`."""
    return jnp.sum(block(x, remat=remat) ** 2)


def usual_loss(block: ETBlock, x: Float[Array, "b N D"]) -> Float[Array, ""]:
    """The same as one would first write it: autodiff of the energy, steps unrolled."""
    c = block.config
    options = {"self_attention": c.self_attention}

    def total(g):
        weights = block.Wk[...], block.Wq[...], block.Xi[...]
        return en.energy(g, *weights, c.beta, c.activation, **options).sum()

    for _ in range(c.n_steps):
        x = x - c.alpha * jax.grad(total)(block.norm(x))
    return jnp.sum(x**2)


def bare_products(
    block: ETBlock, x: Float[Array, "b N D"], pairs: bool = True
) -> Float[Array, "b N D"]:
    """The matrix products of one descent step and nothing else; `pairs`: those of all pairs."""
    Wk, Wq, Xi = block.Wk[...], block.Wq[...], block.Xi[...]
    as_query = keys = jnp.einsum("bnd,hyd->bhny", x, Wk)
    as_key = queries = jnp.einsum("bnd,hyd->bhny", x, Wq)
    if pairs:
        scores = jnp.einsum("bhky,bhqy->bhkq", keys, queries)
        as_query = jnp.einsum("bhkq,bhky->bhqy", scores, keys)
        as_key = jnp.einsum("bhkq,bhqy->bhky", scores, queries)
    x = jnp.einsum("bhny,hyd->bnd", as_query, Wq) + jnp.einsum("bhny,hyd->bnd", as_key, Wk)
    return x + jnp.einsum("bnk,kd->bnd", jnp.einsum("bnd,kd->bnk", x, Xi), Xi)


def compiled(function: Callable, *arguments) -> tuple[Callable, float, float]:
    """(what runs, MiB of temporary memory, seconds that compiling took)."""
    start = time.perf_counter()
    program = jax.jit(function).lower(*arguments).compile()
    seconds = time.perf_counter() - start
    return program, program.memory_analysis().temp_size_in_bytes / 2**20, seconds


def measure(function: Callable, *arguments, repeats: int = 3) -> Cost:
    """Compile and run a function on the default device; the fastest of `repeats` runs counts."""
    program, memory, compile_seconds = compiled(function, *arguments)
    jax.block_until_ready(program(*arguments))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(program(*arguments))
        times.append(time.perf_counter() - start)
    return Cost(min(times), memory, compile_seconds)


VARIANTS: dict[str, Callable] = {
    "the usual way": usual_loss,
    "scanned": partial(loss, "none"),
    "scanned, cheap again": partial(loss, "cheap"),
    "scanned, all again": partial(loss, "all"),
}


def training_step(
    config: BlockConfig, n_tokens: int, batch: int, repeats: int = 3
) -> tuple[dict[str, Cost], float]:
    """The cost of each of `VARIANTS`, a gradient by the parameters, and the floor in seconds.

    The floor is the time of the bare products of all steps, three times over: forward, and
    two products backward for each.
    """
    block = ETBlock(config, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (batch, n_tokens, config.token_dim))
    found = {n: measure(jax.grad(f), block, x, repeats=repeats) for n, f in VARIANTS.items()}
    floor = measure(bare_products, block, x, repeats=repeats).seconds
    return found, 3 * config.n_steps * floor


def as_metrics(found: dict[str, Cost], floor: float) -> dict[str, float]:
    """What `training_step` found, flat, as a recorded result holds it."""
    metrics = {
        f"{name}: {field}": value
        for name, cost in found.items()
        for field, value in cost._asdict().items()
    }
    return metrics | {"floor: seconds": floor}


def from_metrics(metrics: dict[str, float]) -> tuple[dict[str, Cost], float]:
    """The inverse of `as_metrics`."""
    found = {n: Cost(*(metrics[f"{n}: {f}"] for f in Cost._fields)) for n in VARIANTS}
    return found, metrics["floor: seconds"]
