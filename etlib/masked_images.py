"""Completing images: occlusion, the masked-image Energy Transformer, and its losses.

Section 3 and appendix B of the paper. Patches become tokens by one affine map; some become
the MASK token; a CLS token and a position bias are added; one block descends its energy; the
block's own layer norm and one affine map give pixels back.
"""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from etlib.block import BlockConfig, ETBlock, Trace, descend
from etlib.errors import UserError
from etlib.transformer import Transformer, TransformerConfig
from etlib.vision import grid, patchify

SEEN, MASKED, KEPT = 0, 1, 2

PAPER_BLOCK = BlockConfig(self_attention=True)


@dataclass(frozen=True)
class MaskedImageConfig:
    """Image, patches, occlusion and block; the defaults are the paper's ImageNet model.

    Of the patches, `n_masked` become MASK tokens and `n_kept` stay as they are, and both are in
    the loss: the paper found the latter important for the memories. The block attends to all
    tokens, itself included (equation 13).

    Raises UserError when the patches do not divide the image, or are fewer than the occlusion.
    """

    height: int = 224
    width: int = 224
    patch: int = 16
    n_masked: int = 90
    n_kept: int = 10
    init_std: float = 0.002  # of CLS, MASK and positions, as released
    block: BlockConfig | TransformerConfig = PAPER_BLOCK

    def __post_init__(self):
        occluded = self.n_masked + self.n_kept
        if min(self.n_masked, self.n_kept) < 0 or not 1 <= occluded <= self.n_patches:
            raise UserError(
                f"n_masked + n_kept is {self.n_masked} + {self.n_kept}, of the {self.n_patches} "
                f"patches of a {self.height}x{self.width} image: occlude at least 1, at most all"
            )

    @property
    def n_patches(self) -> int:
        rows, columns = grid(self.height, self.width, self.patch)
        return rows * columns

    @property
    def patch_values(self) -> int:
        return 3 * self.patch**2


def draw_occlusion(
    key: Key[Array, ""], n_images: int, config: MaskedImageConfig
) -> Int[Array, "images N"]:
    """For every image, which patches are SEEN, MASKED or KEPT, uniformly at random."""
    score = jax.random.uniform(key, (n_images, config.n_patches))
    rank = score.argsort(axis=1).argsort(axis=1)
    kept = jnp.where(rank < config.n_masked + config.n_kept, KEPT, SEEN)
    return jnp.where(rank < config.n_masked, MASKED, kept)


class MaskedImageModel(nnx.Module):
    """An Energy Transformer (or, to compare, a standard one) that completes images.

    Parameters besides the block's: ``encoder`` and ``decoder`` (affine), ``CLS`` and ``MASK``
    (D,), ``positions`` (N + 1, D), whose row 0 is for CLS.
    """

    def __init__(self, config: MaskedImageConfig, *, rngs: nnx.Rngs):
        self.config = config
        D = config.block.token_dim

        def small(*shape):
            return nnx.Param(config.init_std * jax.random.normal(rngs.params(), shape))

        self.encoder = nnx.Linear(config.patch_values, D, rngs=rngs)
        self.CLS, self.MASK = small(D), small(D)
        self.positions = small(config.n_patches + 1, D)
        energy = isinstance(config.block, BlockConfig)
        self.block = (ETBlock if energy else Transformer)(config.block, rngs=rngs)
        self.decoder = nnx.Linear(D, config.patch_values, rngs=rngs)

    def tokens(
        self, patches: Float[Array, "*b N Z"], occlusion: Int[Array, "*b N"]
    ) -> Float[Array, "*b N1 D"]:
        """Tokens before the first step: CLS, then the patches, each with its position bias."""
        masked = (occlusion == MASKED)[..., None]
        x = jnp.where(masked, self.MASK[...], self.encoder(patches))
        cls = jnp.broadcast_to(self.CLS[...], (*x.shape[:-2], 1, x.shape[-1]))
        return jnp.concatenate([cls, x], axis=-2) + self.positions[...]

    def decode(self, x: Float[Array, "*b D"]) -> Float[Array, "*b Z"]:
        """Pixels of any vector of the token space: the block's layer norm, then affine."""
        return self.decoder(self.block.norm(x))

    def __call__(
        self, patches: Float[Array, "*b N Z"], occlusion: Int[Array, "*b N"], **options
    ) -> Float[Array, "*b N Z"]:
        """Completed patches; options as in `block.descend`."""
        return self.decode(self.block(self.tokens(patches, occlusion), **options)[..., 1:, :])

    def complete(
        self, patches: Float[Array, "*b N Z"], occlusion: Int[Array, "*b N"], **options
    ) -> tuple[Float[Array, "*b N Z"], Trace]:
        """Completed patches, and the energy descent that led there."""
        x, trace = descend(self.block, self.tokens(patches, occlusion), trace=True, **options)
        return self.decode(x[..., 1:, :]), trace


def squared_error(
    prediction: Float[Array, "images N Z"],
    target: Float[Array, "images N Z"],
    occlusion: Int[Array, "images N"],
) -> Float[Array, " images"]:
    """Mean squared error of each image over its occluded patches (appendix B)."""
    occluded = occlusion != SEEN
    per_patch = jnp.mean((prediction - target) ** 2, axis=-1)
    return jnp.sum(per_patch * occluded, axis=-1) / jnp.sum(occluded, axis=-1)


def released_error(
    prediction: Float[Array, "images N Z"],
    target: Float[Array, "images N Z"],
    occlusion: Int[Array, "images N"],
) -> Float[Array, ""]:
    """The loss of the released code: the root of the mean over the batch and *all* patches, with
    the patches that were seen set to zero. Its square, times N over the number of occluded
    patches, is the mean of `squared_error`."""
    occluded = (occlusion != SEEN)[..., None]
    mean = jnp.mean((occluded * (prediction - target)) ** 2)
    # The slope of a root at zero is infinite: a perfect completion has gradient zero here.
    return jnp.where(mean > 0, jnp.sqrt(jnp.where(mean > 0, mean, 1.0)), 0.0)


LossForm = Literal["text", "released"]


def completion_loss(form: LossForm = "text", **options):
    """The training loss of `training.train`, for batches with `image` (images, height, width, 3).

    "text" is the mean squared error over the occluded patches; "released" its other form.
    Options as in `block.descend`.
    """

    def loss(model: MaskedImageModel, batch, key):
        patches = patchify(batch["image"], model.config.patch)
        occlusion = draw_occlusion(key, len(patches), model.config)
        prediction = model(patches, occlusion, **options)
        mse = squared_error(prediction, patches, occlusion).mean()
        return (mse if form == "text" else released_error(prediction, patches, occlusion)), {
            "mse": mse
        }

    return loss
