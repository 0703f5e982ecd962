"""Parameters of chapter 4, memories."""

from typing import Literal

from pydantic import Field, model_validator

from etlib.chapters import masked_images

# What still counts when no model is trained: what is not in a file of weights.
WITHOUT_TRAINING = {"dataset", "model", "seed", "n_steps", "alpha", "beta", "unreadable", "device"}


class Parameters(masked_images.Training):
    """What a reader may change; the defaults are the book's."""

    model: Literal["et"] = Field("et", description="a model with an energy")
    weights: str = Field(
        "kept",
        description="kept: the model kept with the book; train: a new one; released: the "
        "authors', downloaded; or the path of an npz file in the released layout",
    )
    images: str | None = Field(
        None, description="folder of pictures to look at; None: the held-out ones of dataset"
    )
    n_pictures: int = Field(38, ge=1, description="held-out pictures to look at, at most")
    n_shown: int = Field(256, ge=1, description="memories shown, at most")
    n_top: int = Field(8, ge=1, description="patches shown for a memory")
    sweep_steps: int = Field(
        0, ge=0, description="optimiser steps of each model of the position sweep; 0: no sweep"
    )
    sweep_decays: tuple[float, ...] = Field(
        (0.0, 0.05, 0.5), min_length=1, description="weight decays of the sweep"
    )
    sweep_betas: tuple[float, ...] = Field(
        (0.25, 1.0, 4.0), min_length=1, description="inverse temperatures, times 1/sqrt(Y)"
    )

    train_steps: int = Field(150, ge=1, description="optimiser steps")
    n_memories: int = Field(256, ge=1, description="K, rows of the memory matrix")
    alpha: float = Field(0.3, gt=0, description="step size; the kept model was trained with 0.3")

    @model_validator(mode="after")
    def _nothing_given_in_vain(self, info) -> "Parameters":
        given = info.context["given"] if info.context else ()
        training = set(masked_images.Training.model_fields) - WITHOUT_TRAINING
        vain = [name for name in given if name in training]
        if vain and self.weights != "train" and not self.sweep_steps:
            raise ValueError(
                f"{', '.join(vain)} would change nothing, because weights is {self.weights!r} and "
                "no model is trained: add weights=train"
            )
        return self


PRESETS = {
    "smoke": Parameters(
        **masked_images.PRESETS["smoke"].model_dump(
            include=set(masked_images.Training.model_fields)
        ),
        weights="train",
        n_pictures=10,
        n_shown=24,
        n_top=4,
        sweep_steps=2,
        sweep_decays=(0.05,),
        sweep_betas=(4.0,),
    ),
    "book": Parameters(),
    # The released weights, which are of these sizes.
    "paper": Parameters(
        **masked_images.PRESETS["paper"].model_dump(
            include=set(masked_images.Training.model_fields)
        ),
        weights="released",
        n_shown=3072,
    ),
}
