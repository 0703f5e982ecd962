"""Time, memory and compile time of one training step, against stated references, in one run.

`make bench` runs it; `ARGS="--batch 2"` for a smaller machine. The block is the paper's
(N=197, D=768, H=12, Y=64, K=3072, T=12). References: the same descent written the usual way
(a Python loop over the steps, the update by autodiff of the energy), and the floor, the bare
matrix products of the same shapes, three times over for forward and backward.
"""

import time
from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
import typer
from flax import nnx
from rich.console import Console
from rich.table import Table

from etlib import energy as en
from etlib.block import BlockConfig, ETBlock

N_TOKENS = 197


def loss_ours(remat, block, x):
    return jnp.sum(block(x, remat=remat) ** 2)


def loss_usual(block, x):
    """The block as one would first write it: autodiff of the energy, steps unrolled."""
    c = block.config

    def total(g):
        return en.energy(g, block.Wk[...], block.Wq[...], block.Xi[...]).sum()

    for _ in range(c.n_steps):
        x = x - c.alpha * jax.grad(total)(block.norm(x))
    return jnp.sum(x**2)


def products(block, x):
    """The matrix products of one descent step and nothing else."""
    Wk, Wq, Xi = block.Wk[...], block.Wq[...], block.Xi[...]
    keys = jnp.einsum("bnd,hyd->bhny", x, Wk)
    queries = jnp.einsum("bnd,hyd->bhny", x, Wq)
    logits = jnp.einsum("bhky,bhqy->bhkq", keys, queries)
    as_query = jnp.einsum("bhkq,bhky->bhqy", logits, keys)
    as_key = jnp.einsum("bhkq,bhqy->bhky", logits, queries)
    x = jnp.einsum("bhny,hyd->bnd", as_query, Wq) + jnp.einsum("bhny,hyd->bnd", as_key, Wk)
    return x + jnp.einsum("bnk,kd->bnd", jnp.einsum("bnd,kd->bnk", x, Xi), Xi)


def measure(function, block, x, repeats):
    """(seconds a run, MiB of temporary memory, seconds to compile)."""
    start = time.perf_counter()
    compiled = jax.jit(function).lower(block, x).compile()
    compile_time = time.perf_counter() - start
    jax.block_until_ready(compiled(block, x))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(compiled(block, x))
        times.append(time.perf_counter() - start)
    return min(times), compiled.memory_analysis().temp_size_in_bytes / 2**20, compile_time


def main(
    batch: Annotated[int, typer.Option(help="images in a batch")] = 8,
    repeats: Annotated[int, typer.Option(help="runs, of which the fastest counts")] = 3,
):
    """Measure one training step of the paper's image block on the default device."""
    config = BlockConfig()
    block = ETBlock(config, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (batch, N_TOKENS, config.token_dim))
    rows = {"the usual way": measure(jax.grad(loss_usual), block, x, repeats)}
    for remat in ("none", "cheap", "all"):
        step = jax.grad(partial(loss_ours, remat))
        rows[f"etlib, remat={remat}"] = measure(step, block, x, repeats)
    floor = 3 * config.n_steps * measure(products, block, x, repeats)[0]

    device = jax.devices()[0]
    table = Table(
        title=f"One training step, batch {batch}, on {device.device_kind} ({device.platform})"
    )
    for column in (
        "",
        "time (s)",
        "x floor",
        "x usual",
        "memory (MiB)",
        "x usual",
        "compile (s)",
        "x usual",
    ):
        table.add_column(column, justify="right" if column else "left")
    usual = rows["the usual way"]
    for name, (seconds, memory, compile_time) in rows.items():
        table.add_row(
            name,
            f"{seconds:.2f}",
            f"{seconds / floor:.2f}",
            f"{seconds / usual[0]:.2f}",
            f"{memory:.0f}",
            f"{memory / usual[1]:.3f}",
            f"{compile_time:.1f}",
            f"{compile_time / usual[2]:.2f}",
        )
    table.add_row("matrix-product floor", f"{floor:.2f}", "1.00")
    Console(width=110).print(table)


if __name__ == "__main__":
    typer.run(main)
