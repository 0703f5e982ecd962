"""Does a GPU compute what a CPU does, how fast is the paper's model on it, and does it learn?

`make gpu-check ARGS="--dataset imagefolder:/path/to/imagenet"` on a machine with a GPU, in at
most eight minutes: float32 against the CPU; the paper preset's training step, in bfloat16; a
training for the time that is left. What was found is written under runs/ as a result; copied to
book/results/ as 03-masked-images-gpu-check-NAME.json, chapter 3 shows it. Without a GPU: one
line, exit code 2. Numbers that do not agree: exit code 1.
"""

import time
from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import typer
from flax import nnx

from etlib import completion, cost, devices, runs
from etlib import masked_images as mi
from etlib.chapters.masked_images import Training
from etlib.data import images
from etlib.errors import UserError
from etlib.training import TrainConfig, data_mesh, initial_state, make_step, shard, train

TOLERANCE = {"energy": 1e-5, "update": 1e-4, "loss": 1e-4}  # of the largest value

PROTOCOL = (
    "float32 against the CPU, largest difference over largest value; the step with data in "
    "memory; then a short training, and the score of 256 held-out pictures before and after"
)


class Disagreement(UserError):
    """The device computes other numbers than the CPU."""


def verify(config: mi.MaskedImageConfig, device: jax.Device) -> dict[str, float]:
    """How far energies, their gradient and the losses of three steps are from the CPU's.

    Raises Disagreement where that is more than TOLERANCE.
    """
    n_steps, rng = 3, np.random.default_rng(0)
    x = rng.normal(size=(2, config.n_patches + 1, config.block.token_dim)).astype(np.float32)
    batch = {"image": rng.normal(size=(4, config.height, config.width, 3)).astype(np.float32)}

    def computed(on: jax.Device) -> dict[str, np.ndarray]:
        with jax.default_device(on), jax.default_matmul_precision("highest"):
            model = mi.MaskedImageModel(config, rngs=nnx.Rngs(0))
            g = model.block.norm(jnp.asarray(x))
            energy, update = sum(model.block.energies(g)), model.block.gradient(g)
            options = {"mesh": data_mesh([on]), "log_every": 1, "progress": False}
            settings, same = TrainConfig(n_steps=n_steps, peak_lr=1e-3), iter([batch] * n_steps)
            rows = train(model, mi.completion_loss(), same, settings, **options)
        values = {"energy": energy, "update": update, "loss": [row["loss"] for row in rows]}
        return {name: np.asarray(value) for name, value in values.items()}

    expected, found = computed(jax.devices("cpu")[0]), computed(device)
    off = {
        name: float(np.abs(found[name] - value).max() / np.abs(value).max())
        for name, value in expected.items()
    }
    for name, limit in TOLERANCE.items():
        if not off[name] <= limit:
            raise Disagreement(
                f"{name}: {device.device_kind} and CPU differ by {off[name]:.1e} of the largest "
                f"value; {limit:.0e} would do"
            )
    return {f"{name} off by": value for name, value in off.items()}


def time_step(p: Training, device: jax.Device, n_steps: int = 20) -> dict[str, float]:
    """Images a second of the training step, and the share of the stated peak where one is known.

    A batch that does not fit into the device's memory is halved.
    """
    config = completion.model_config(p)
    batch = p.batch
    while True:
        try:
            seconds = _seconds_a_step(p, config, device, batch, n_steps)
            break
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error) or batch == 1:
                raise
            batch //= 2
    found = {"batch": batch, "step seconds": seconds, "step images a second": batch / seconds}
    if peak := cost.peak(device.device_kind):
        found["share of peak"] = 3 * completion.product_flops(config) * batch / seconds / peak
    return found


def _seconds_a_step(
    p: Training, config: mi.MaskedImageConfig, device: jax.Device, batch: int, n_steps: int
) -> float:
    model, settings = mi.MaskedImageModel(config, rngs=nnx.Rngs(0)), TrainConfig(n_steps=n_steps)
    step = make_step(model, mi.completion_loss(p.loss, remat=p.remat), settings)
    pictures = np.random.default_rng(0).normal(size=(batch, config.height, config.width, 3))
    placed = shard({"image": pictures.astype(np.float32)}, data_mesh([device]))
    state = jax.device_put(initial_state(nnx.state(model, nnx.Param), settings), device)

    def once():
        nonlocal state
        state, _ = step(state, placed)

    once()  # compiles
    return _seconds_each(n_steps, once, lambda: jax.block_until_ready(state))


def _seconds_each(n: int, once: Callable, finish: Callable = lambda: None) -> float:
    finish()
    start = time.perf_counter()
    for _ in range(n):
        once()
    finish()
    return (time.perf_counter() - start) / n


def learn(p: Training, device: jax.Device, step: float, seconds: float) -> dict[str, float]:
    """Train on the data for about `seconds`, of steps that take `step` when data is there."""
    config = completion.model_config(p)
    model = mi.MaskedImageModel(config, rngs=nnx.Rngs(p.seed))
    held = completion.held_out(p, 256)
    complete = nnx.jit(lambda model, *inputs: model(*inputs))

    def score() -> float:
        return completion.score(lambda *inputs: complete(model, *inputs), [held], config)

    before = score()
    source = images.source(p.dataset, "train", unreadable=p.unreadable)
    options = {"size": p.image_size, "batch": p.batch, "seed": p.seed, "workers": p.workers}
    with images.training_batches(source, **options) as batches:
        next(batches)  # starts the readers
        start = time.perf_counter()
        reading = _seconds_each(5, lambda: next(batches))
        left = seconds - 5 * reading
        n_steps = max(2, int(left / max(step, reading)))
        rows = train(
            model,
            mi.completion_loss(p.loss, remat=p.remat),
            batches,
            TrainConfig(n_steps=n_steps, warmup_steps=n_steps // 10, peak_lr=p.peak_lr),
            log_every=max(1, n_steps // 20),
            mesh=data_mesh([device]),
        )
    print(f"trained {n_steps} steps in {time.perf_counter() - start:.0f} s", flush=True)
    return {
        "read images a second": p.batch / reading,
        "trained steps": n_steps,
        "trained images a second": p.batch * n_steps / rows[-1]["seconds"],
        "training loss": [row["loss"] for row in rows],
        "score before": before,
        "score after": score(),
    }


def main(
    dataset: Annotated[str, typer.Option(help="photos, or imagefolder:PATH")] = "photos",
    batch: Annotated[int, typer.Option(help="images in a batch, at most")] = 256,
    workers: Annotated[int, typer.Option(help="reading processes")] = 8,
    minutes: Annotated[float, typer.Option(help="how long all of it may take")] = 8.0,
    device: Annotated[str, typer.Option(help="gpu; cpu only tries this script out")] = "gpu",
    preset: Annotated[str, typer.Option(help="paper; smoke only tries this script out")] = "paper",
):
    """Verify, time and train the image model on a GPU, and record the result."""
    end = time.monotonic() + 60 * minutes - 30  # to score, and to write
    try:
        (chosen, *_) = devices.require(device)
        given = {"dataset": dataset, "batch": batch, "workers": workers, "device": device}
        p = runs.configure("masked-images", {"preset": preset, **given})
    except UserError as error:
        typer.echo(f"gpu-check: {error}", err=True)
        raise typer.Exit(2) from None
    try:
        exact = p.model_copy(update={"compute": "float32"})
        metrics = verify(completion.model_config(exact), chosen)
        print(", ".join(f"{name} {value:.0e}" for name, value in metrics.items()), flush=True)
        metrics |= time_step(p, chosen)
        print(f"{metrics['step images a second']:.1f} images a second", flush=True)
        p = p.model_copy(update={"batch": metrics["batch"]})
        metrics |= learn(p, chosen, metrics["step seconds"], end - time.monotonic())
        print(f"score {metrics['score before']:.3f} to {metrics['score after']:.3f}")
    except UserError as error:
        typer.echo(f"gpu-check: {error}", err=True)
        raise typer.Exit(1) from None
    title = f"The image model on {chosen.device_kind}"
    print("recorded:", runs.record("gpu-check", metrics, title=title, protocol=PROTOCOL))


if __name__ == "__main__":
    typer.run(main)
