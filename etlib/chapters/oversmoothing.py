"""Parameters of chapter 7, oversmoothing."""

from math import isqrt
from typing import Literal

from pydantic import Field, field_validator

from etlib.parameters import ChapterParameters


class Parameters(ChapterParameters):
    """What a reader may change; the defaults are the book's."""

    seed: int = Field(0, ge=0, description="seed of weights, noise and batches")
    photograph: Literal["astronaut", "chelsea", "coffee", "china", "flower", "rocket"] = Field(
        "astronaut", description="photograph to diffuse, and whose patches are the tokens"
    )
    picture_size: int = Field(48, ge=8, description="side of the diffused picture, in pixels")
    noise: float = Field(0.08, ge=0, description="standard deviation of the picture's noise")
    kappa: float = Field(0.08, gt=0, description="size of a difference that counts as an edge")
    diffusion_time: float = Field(4.0, gt=0, description="time that the local diffusions run")
    n_tokens: int = Field(36, ge=4, description="N, number of patches: a perfect square")
    token_dim: int = Field(16, ge=2, description="D, dimension of the photograph's tokens")
    n_layers: int = Field(5000, ge=1, description="layers of the linear iteration")
    sinkhorn_iterations: int = Field(60, ge=1, description="iterations of symmetric Sinkhorn")
    alpha: float = Field(0.5, gt=0, lt=1, description="weight of the tokens against A X W")
    n_flow: int = Field(200, ge=2, description="steps of the gradient flows")
    graph_nodes: int = Field(40, ge=8, description="nodes of the generated graph")
    spectrum: Literal["plus", "plain", "minus", "energy"] = Field(
        "minus", description="model that is trained here: sign of H's spectrum, or energy"
    )
    depth: int = Field(6, ge=1, description="its layers, or descent steps")
    train_fraction: float = Field(1.0, gt=0, le=1, description="share of the training images")
    n_steps: int = Field(400, ge=1, description="training steps")
    batch: int = Field(32, ge=1, description="images a step")
    hessian_images: int = Field(
        128, ge=0, description="training images of the loss landscape; 0 for none"
    )
    slice_points: int = Field(15, ge=0, description="points a side of the slice; 0 for none")
    slice_radius: float = Field(1.0, gt=0, description="reach of the slice, in filter norms")
    precision: Literal["float32", "float64"] = Field(
        "float64", description="floating-point type of everything but the training"
    )
    device: Literal["auto", "cpu", "gpu", "tpu"] = Field("auto", description="where JAX computes")

    @field_validator("n_tokens")
    @classmethod
    def _fills_a_square(cls, value: int) -> int:
        side = isqrt(value)
        if side * side != value:
            raise ValueError(
                f"the patches fill a square grid, so it takes a perfect square: "
                f"{side**2} or {(side + 1) ** 2}"
            )
        return value


PRESETS = {
    "smoke": Parameters(
        picture_size=24,
        n_tokens=9,
        token_dim=6,
        n_layers=200,
        n_flow=40,
        graph_nodes=16,
        depth=2,
        n_steps=20,
        hessian_images=0,
    ),
    "book": Parameters(),
    "paper": Parameters(
        picture_size=64, n_tokens=144, token_dim=64, n_layers=20000, graph_nodes=200, depth=12
    ),
}
