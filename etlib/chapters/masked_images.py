"""Parameters of chapter 3, masked images, and of any training for it."""

from typing import Literal

from pydantic import Field, model_validator

from etlib.parameters import ChapterParameters


class Training(ChapterParameters):
    """A model, its data and its training: what `etlib.completion.fit` takes."""

    dataset: str = Field("photos", description="photos, or imagefolder:PATH in ImageNet's layout")
    model: Literal["et", "transformer", "transformer-shared"] = Field(
        "et", description="Energy Transformer; or a standard one of equal compute, of equal size"
    )
    seed: int = Field(0, ge=0, description="seed of weights, crops and occlusions")

    image_size: int = Field(64, ge=2, description="pixels a side")
    patch: int = Field(8, ge=1, description="pixels a side of a patch")
    n_masked: int = Field(29, ge=0, description="patches that become the MASK token in training")
    n_kept: int = Field(3, ge=0, description="patches that stay but are in the training loss")
    loss: Literal["text", "released"] = Field("text", description="mean square; released: its root")

    token_dim: int = Field(128, ge=2, description="D, token dimension")
    n_heads: int = Field(4, ge=1, description="H, attention heads")
    head_dim: int = Field(32, ge=1, description="Y, dimension of keys and queries")
    n_memories: int = Field(512, ge=1, description="K, rows of the memory matrix")
    n_steps: int = Field(8, ge=1, description="T, descent steps (layers of a Transformer)")
    alpha: float = Field(0.1, gt=0, description="step size")
    beta: float | None = Field(None, gt=0, description="inverse temperature; None: 1/sqrt(Y)")
    self_attention: bool = Field(True, description="a token attends to itself (equation 13)")
    compute: Literal["float32", "bfloat16"] = Field("float32", description="type of the products")
    remat: Literal["none", "cheap", "all"] = Field("none", description="recomputed, not stored")

    batch: int = Field(32, ge=1, description="images in a batch, over all devices")
    train_steps: int = Field(500, ge=1, description="optimiser steps")
    warmup_steps: int = Field(50, ge=0, description="steps of linear warm-up")
    peak_lr: float = Field(2e-3, gt=0, description="learning rate after the warm-up")
    weight_decay: float = Field(0.05, ge=0, description="AdamW's decay")
    decay_all: bool = Field(False, description="decay biases and norms too, as released")
    accumulate: int = Field(1, ge=1, description="parts of a batch, one after the other")

    workers: int = Field(0, ge=0, description="reading processes; 0 reads in a thread")
    unreadable: Literal["stop", "skip"] = Field("stop", description="an image that cannot be read")
    folder: str | None = Field(
        None, description="keeps log and checkpoints; a run in the same folder goes on from there"
    )
    checkpoint_every: int = Field(200, ge=1, description="steps between checkpoints")
    device: Literal["auto", "cpu", "gpu", "tpu"] = Field("auto", description="where JAX computes")

    @model_validator(mode="after")
    def _patches_fit(self) -> "Parameters":
        if self.image_size % self.patch:
            raise ValueError(f"image_size {self.image_size} is no multiple of patch {self.patch}")
        n_patches, occluded = (self.image_size // self.patch) ** 2, self.n_masked + self.n_kept
        if not 1 <= occluded <= n_patches:
            raise ValueError(
                f"n_masked + n_kept is {occluded}, of {n_patches} patches: occlude at least 1, "
                "at most all"
            )
        if self.model == "transformer-shared" and self.n_memories <= 2 * self.token_dim:
            raise ValueError(
                f"model transformer-shared has a perceptron n_memories / 2 - token_dim wide: "
                f"n_memories is {self.n_memories}, it takes more than {2 * self.token_dim}"
            )
        return self


class Parameters(Training):
    """What a reader may change; the defaults are the book's."""

    n_compare: int = Field(
        100, ge=1, description="held-out pictures on which model and fillings are compared"
    )
    n_examples: int = Field(4, ge=1, description="completions shown")
    n_more_steps: int = Field(40, ge=1, description="descent steps beyond those of training")


PRESETS = {
    "smoke": Parameters(
        image_size=32,
        n_masked=7,
        n_kept=1,
        token_dim=32,
        n_heads=2,
        head_dim=16,
        n_memories=96,
        n_steps=3,
        batch=16,
        train_steps=20,
        warmup_steps=5,
        n_compare=10,
        n_examples=2,
        n_more_steps=6,
    ),
    "book": Parameters(),
    "paper": Parameters(
        image_size=224,
        patch=16,
        n_masked=90,
        n_kept=10,
        token_dim=768,
        n_heads=12,
        head_dim=64,
        n_memories=3072,
        n_steps=12,
        alpha=0.1,
        compute="bfloat16",
        remat="cheap",
        batch=768,
        # 100 epochs of ImageNet-1k's 1,281,167 training images, 2 of them warm-up.
        train_steps=166_800,
        warmup_steps=3_336,
        peak_lr=5e-4,
        workers=8,
    ),
}
