"""Time, memory and compile time of one training step, against stated references, in one run.

`make bench` runs it; `ARGS="--batch 2"` for a smaller machine, `ARGS="--part graphs"` for a
part. The block of the first part is the paper's (N=197, D=768, H=12, Y=64, K=3072, T=12).
References: the same descent written the usual way (a Python loop over the steps, the update by
autodiff of the energy), and the floor, the bare matrix products of the same shapes, three times
over for forward and backward.
"""

from functools import partial
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import typer
from flax import nnx
from graphs import graph_classifier
from measuring import measure, products, show

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


def image_block(batch, repeats):
    """One training step of the paper's image block."""
    config = BlockConfig()
    block = ETBlock(config, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (batch, N_TOKENS, config.token_dim))
    rows = {"the usual way": measure(jax.grad(loss_usual), block, x, repeats=repeats)}
    for remat in ("none", "cheap", "all"):
        step = jax.grad(partial(loss_ours, remat))
        rows[f"etlib, remat={remat}"] = measure(step, block, x, repeats=repeats)
    floor = 3 * config.n_steps * measure(products, block, x, repeats=repeats)[0]

    usual = rows["the usual way"]
    shown = [
        (
            name,
            f"{seconds:.2f}",
            f"{seconds / floor:.2f}",
            f"{seconds / usual[0]:.2f}",
            f"{memory:.0f}",
            f"{memory / usual[1]:.3f}",
            f"{compile_time:.1f}",
            f"{compile_time / usual[2]:.2f}",
        )
        for name, (seconds, memory, compile_time) in rows.items()
    ]
    columns = (
        "",
        "time (s)",
        "x floor",
        "x usual",
        "memory (MiB)",
        "x usual",
        "compile (s)",
        "x usual",
    )
    shown.append(("matrix-product floor", f"{floor:.2f}", "1.00"))
    show(f"One training step, batch {batch}", columns, shown)


Part = Literal["images", "graphs"]


def main(
    batch: Annotated[int, typer.Option(help="images in a batch")] = 8,
    repeats: Annotated[int, typer.Option(help="runs, of which the fastest counts")] = 3,
    part: Annotated[Part | None, typer.Option(help="one part only")] = None,
):
    """Measure training steps on the default device."""
    if part in (None, "images"):
        image_block(batch, repeats)
    if part in (None, "graphs"):
        graph_classifier(repeats)


if __name__ == "__main__":
    typer.run(main)
