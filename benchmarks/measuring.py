"""What every benchmark needs: one way to measure, the floor's products, one kind of table."""

import time

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table


def measure(function, *arguments, repeats):
    """(seconds a run, MiB of temporary memory, seconds to compile)."""
    start = time.perf_counter()
    compiled = jax.jit(function).lower(*arguments).compile()
    compile_time = time.perf_counter() - start
    jax.block_until_ready(compiled(*arguments))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        times.append(time.perf_counter() - start)
    return min(times), compiled.memory_analysis().temp_size_in_bytes / 2**20, compile_time


def products(block, x, pairs=True):
    """The matrix products of one descent step and nothing else; `pairs`: those of all pairs."""
    Wk, Wq, Xi = block.Wk[...], block.Wq[...], block.Xi[...]
    as_query = keys = jnp.einsum("bnd,hyd->bhny", x, Wk)
    as_key = queries = jnp.einsum("bnd,hyd->bhny", x, Wq)
    if pairs:
        logits = jnp.einsum("bhky,bhqy->bhkq", keys, queries)
        as_query = jnp.einsum("bhkq,bhky->bhqy", logits, keys)
        as_key = jnp.einsum("bhkq,bhqy->bhky", logits, queries)
    x = jnp.einsum("bhny,hyd->bnd", as_query, Wq) + jnp.einsum("bhny,hyd->bnd", as_key, Wk)
    return x + jnp.einsum("bnk,kd->bnd", jnp.einsum("bnd,kd->bnk", x, Xi), Xi)


def show(title, columns, rows):
    """Print a table with the device in its title."""
    device = jax.devices()[0]
    table = Table(title=f"{title}, on {device.device_kind} ({device.platform})")
    for column in columns:
        table.add_column(column, justify="right" if column else "left")
    for row in rows:
        table.add_row(*row)
    Console(width=110).print(table)
