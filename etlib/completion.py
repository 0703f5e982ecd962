"""How well images are completed: the models trained for it, one fixed task, and fillings.

The task: of every held-out picture half of the patches are hidden, always the same ones. The
score is the mean squared error over the hidden patches, in ImageNet-normalised units, averaged
over pictures.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int
from skimage.restoration import inpaint_biharmonic

from etlib import cost
from etlib import masked_images as mi
from etlib.block import BlockConfig
from etlib.data import images
from etlib.training import Row, TrainConfig, data_mesh, shard, train
from etlib.transformer import TransformerConfig
from etlib.vision import patchify, unpatchify

if TYPE_CHECKING:
    from etlib.chapters.masked_images import Training


def model_config(p: "Training") -> mi.MaskedImageConfig:
    """The model that the parameters of the chapter on masked images describe.

    An Energy Transformer's step costs what a Transformer's layer does when the perceptron is
    as wide as the memories are many: model "transformer". One layer shared by all depths has
    the Energy Transformer's parameters when its perceptron is K / 2 - D wide:
    4 D^2 + 2 D (K/2 - D) = 2 D^2 + K D. Model "transformer-shared".
    """
    if p.model == "et":
        block = BlockConfig(
            token_dim=p.token_dim,
            n_heads=p.n_heads,
            head_dim=p.head_dim,
            n_memories=p.n_memories,
            n_steps=p.n_steps,
            alpha=p.alpha,
            beta=p.beta,
            self_attention=p.self_attention,
            compute_dtype=None if p.compute == "float32" else p.compute,
        )
    else:
        shared = p.model == "transformer-shared"
        width = p.n_memories // 2 - p.token_dim if shared else p.n_memories
        block = TransformerConfig(p.token_dim, p.n_heads, width, p.n_steps, shared)
    return mi.MaskedImageConfig(
        height=p.image_size,
        width=p.image_size,
        patch=p.patch,
        n_masked=p.n_masked,
        n_kept=p.n_kept,
        block=block,
    )


def fit(
    p: "Training", *, progress: bool = True, evaluate_every: int | None = None
) -> tuple[mi.MaskedImageModel, list[Row]]:
    """Train the model of the parameters on their data; rows also hold `score` on the task.

    With `p.folder` the run keeps its log and checkpoints there, and goes on from them.
    """
    model = mi.MaskedImageModel(model_config(p), rngs=nnx.Rngs(p.seed))
    mesh = data_mesh()
    process = jax.process_index(), jax.process_count()
    options = {"size": p.image_size, "workers": p.workers, "process": process}
    train_data = images.source(p.dataset, "train", unreadable=p.unreadable)
    held_out = images.source(p.dataset, "val", unreadable=p.unreadable)
    batches = images.training_batches(train_data, batch=p.batch, seed=p.seed, **options)
    complete = nnx.jit(lambda model, *inputs: model(*inputs))

    def evaluate(model):
        size = -(-50 // mesh.size) * mesh.size  # a share for every device
        found = images.evaluation_batches(held_out, batch=size, **options)
        shared = (shard(batch, mesh) for batch in found)
        return {"score": score(partial(complete, model), shared, model.config)}

    descent = {"remat": p.remat} if p.model == "et" else {}
    with batches:
        rows = train(
            model,
            mi.completion_loss(p.loss, **descent),
            batches,
            TrainConfig(
                n_steps=p.train_steps,
                warmup_steps=p.warmup_steps,
                peak_lr=p.peak_lr,
                weight_decay=p.weight_decay,
                decay_all=p.decay_all,
                accumulate=p.accumulate,
                seed=p.seed,
            ),
            folder=Path(p.folder) if p.folder else None,
            checkpoint_every=p.checkpoint_every if p.folder else None,
            evaluate=evaluate,
            evaluate_every=evaluate_every,
            log_every=10,
            progress=progress,
            mesh=mesh,
        )
    return model, rows


@partial(jax.jit, static_argnums=1)
def task(numbers: Int[Array, " images"], config: mi.MaskedImageConfig) -> Int[Array, "images N"]:
    """The occlusion of each picture, from its number alone: half MASKED, none KEPT."""
    halves = replace(config, n_masked=config.n_patches // 2, n_kept=0)
    keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(2302_07253)))(numbers)
    return jax.vmap(lambda key: mi.draw_occlusion(key, 1, halves)[0])(keys)


def score(
    complete: Callable[[Array, Array], Array],
    batches: Iterable[dict[str, np.ndarray]],
    config: mi.MaskedImageConfig,
) -> float:
    """Mean over the valid pictures of the squared error of `complete(patches, occlusion)`."""
    total, count, seen = 0.0, 0, 0
    for batch in batches:
        patches = patchify(jnp.asarray(batch["image"]), config.patch)
        occlusion = task(seen + jnp.arange(len(patches)), config)
        errors = mi.squared_error(complete(patches, occlusion), patches, occlusion)
        total += float(jnp.sum(jnp.where(batch["valid"], errors, 0.0)))
        count += int(batch["valid"].sum())
        seen += len(patches)
    return total / count


def held_out(p: "Training", n: int) -> dict[str, np.ndarray]:
    """The first `n` held-out pictures, or all if they are fewer, as one evaluation batch."""
    source = images.source(p.dataset, "val", unreadable=p.unreadable)
    options = {"size": p.image_size, "batch": min(n, len(source))}
    with images.evaluation_batches(source, **options) as batches:
        return next(batches)


class Steps(NamedTuple):
    """What happens to pictures along the descent, before each step and after the last."""

    energy: Float[Array, "T1 images"]
    error: Float[Array, "T1 images"]  # `squared_error`, when decoded there


@nnx.jit(static_argnames="n_steps")
def along_steps(
    model: mi.MaskedImageModel,
    patches: Float[Array, "images N Z"],
    occlusion: Int[Array, "images N"],
    *,
    n_steps: int,
) -> Steps:
    """Energy and error of each picture along `n_steps`, which may be more than were trained."""
    _, trace = model.complete(patches, occlusion, n_steps=n_steps)

    def error(x):
        return mi.squared_error(model.decode(x[:, 1:]), patches, occlusion)

    return Steps(trace.energy, jax.lax.map(error, trace.tokens))


def product_flops(config: mi.MaskedImageConfig) -> int:
    """Floating-point operations of the matrix products of one Energy Transformer completion.

    A training step costs three times as much. See `etlib.cost`.
    """
    step = sum(cost.step_products(config.n_patches + 1, config.block).values())
    affine = 4 * config.n_patches * config.patch_values * config.block.token_dim
    return config.block.n_steps * step + affine


# --- fillings that learn nothing, as completions ------------------------------


def fill_with_mean(patches: Float[Array, "images N Z"], occlusion: Int[Array, "images N"]):
    """The mean of ImageNet, which is zero in normalised units."""
    return jnp.zeros_like(patches)


def fill_with_visible_mean(patches: Float[Array, "images N Z"], occlusion: Int[Array, "images N"]):
    """The mean colour of the picture's own visible patches."""
    pixels = patches.reshape(*patches.shape[:2], -1, 3)
    visible = (occlusion == mi.SEEN)[..., None, None]
    colour = jnp.sum(pixels * visible, axis=(1, 2)) / (visible.sum(axis=(1, 2)) * pixels.shape[2])
    return jnp.broadcast_to(colour[:, None, None], pixels.shape).reshape(patches.shape)


def fill_biharmonic(config: mi.MaskedImageConfig):
    """Biharmonic inpainting (scikit-image): the smoothest surface through the visible pixels."""

    def complete(patches: Float[Array, "images N Z"], occlusion: Int[Array, "images N"]):
        size = config.height, config.width, config.patch
        images = np.asarray(unpatchify(patches, *size), np.float64)
        hidden = np.broadcast_to(np.asarray(occlusion != mi.SEEN)[..., None], patches.shape)
        holes = np.ascontiguousarray(unpatchify(hidden, *size)[..., 0])
        filled = [
            inpaint_biharmonic(i, h, channel_axis=-1) for i, h in zip(images, holes, strict=True)
        ]
        return patchify(jnp.asarray(np.stack(filled), patches.dtype), config.patch)

    return complete
