"""Parameters of chapter 1, the energy."""

from math import isqrt
from typing import Literal

from pydantic import Field, field_validator

from etlib.data.photos import PHOTOGRAPHS
from etlib.parameters import ChapterParameters


class Parameters(ChapterParameters):
    """What a reader may change; the defaults are the book's."""

    seed: int = Field(0, ge=0, description="seed of the weights and of the hidden patches")
    photograph: Literal[PHOTOGRAPHS] = Field(
        "chelsea", description="photograph whose patches are the tokens"
    )
    n_tokens: int = Field(64, ge=4, description="N, number of patches: a perfect square")
    token_dim: int = Field(
        64, ge=3, le=768, description="D, token dimension; a patch has 768 values"
    )
    n_heads: int = Field(4, ge=1, description="H, attention heads")
    head_dim: int = Field(16, ge=1, description="Y, dimension of keys and queries")
    n_memories: int = Field(256, ge=1, description="K, rows of the memory matrix")
    alpha: float = Field(0.1, gt=0, description="step size")
    n_steps: int = Field(12, ge=1, description="T, descent steps of the block")
    n_long_steps: int = Field(1000, ge=2, description="descent steps of the long run")
    beta: float | None = Field(
        None, gt=0, description="inverse temperature; None means 1/sqrt(head_dim)"
    )
    precision: Literal["float32", "float64"] = Field(
        "float64", description="floating-point type of the descent; checks are in float64"
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
        n_tokens=9, token_dim=16, n_heads=2, head_dim=8, n_memories=32, n_long_steps=100
    ),
    "book": Parameters(),
    "paper": Parameters(
        n_tokens=196,
        token_dim=768,
        n_heads=12,
        head_dim=64,
        n_memories=3072,
        precision="float32",
    ),
}
