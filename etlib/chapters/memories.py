"""Parameters of chapter 4, memories."""

from typing import Literal

from pydantic import Field

from etlib.chapters import masked_images


class Parameters(masked_images.Training):
    """What a reader may change; the defaults are the book's."""

    model: Literal["et"] = Field("et", description="a model with an energy")
    weights: str | None = Field(
        None,
        description="path of an npz file in the released layout; released: the authors', "
        "downloaded; None: train",
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


PRESETS = {
    "smoke": Parameters(
        **masked_images.PRESETS["smoke"].model_dump(
            include=set(masked_images.Training.model_fields)
        ),
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
