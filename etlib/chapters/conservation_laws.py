"""Parameters of chapter 8, conservation laws."""

from typing import Literal

from pydantic import Field, model_validator

from etlib.data.photos import PHOTOGRAPHS
from etlib.parameters import ChapterParameters


class Parameters(ChapterParameters):
    """What a reader may change; the defaults are the book's."""

    seed: int = Field(0, ge=0, description="seed of weights, crops and directions")
    photograph: Literal[PHOTOGRAPHS] = Field("chelsea", description="photograph to train on")
    n_crops: int = Field(16, ge=1, description="crops of the photograph in the one batch")
    n_masked: int = Field(8, ge=1, le=15, description="masked tokens of a crop's 16")
    token_dim: int = Field(16, ge=3, description="D, token dimension")
    n_heads: int = Field(2, ge=1, description="H, attention heads")
    head_dim: int = Field(4, ge=1, description="Y, dimension of keys and queries")
    n_memories: int = Field(32, ge=2, description="K, rows of the memory matrix")
    n_steps: int = Field(4, ge=1, description="T, descent steps of the block")
    alpha: float = Field(0.5, gt=0, description="step size of the block")
    activation: Literal["softmax", "relu", "power"] = Field("softmax", description="the memories'")
    eps: float = Field(1e-5, gt=0, description="stabiliser of layer and batch norm")
    eps_values: tuple[float, ...] = Field(
        (1e-5, 1e-3, 1e-1), min_length=1, description="stabilisers of the broken symmetry"
    )
    imbalance: float = Field(1.5, gt=0, description="queries start this much larger, keys smaller")
    learning_rate: float = Field(0.05, gt=0, description="largest step of training")
    n_updates: int = Field(200, ge=8, description="updates at that step; smaller steps take more")
    n_halvings: int = Field(2, ge=1, le=6, description="how often the step is halved")
    weight_decay: float = Field(0.05, ge=0, description="lambda")
    momentum: float = Field(0.95, ge=0, lt=1, description="beta of the momentum runs")
    adam_rate: float = Field(0.003, gt=0, description="learning rate of Adam")
    tolerance: float | None = Field(
        None,
        gt=0,
        description="error of a step of the gradient flow; None: 1e-10, with relu 1e-6",
    )
    n_hidden: int = Field(32, ge=1, description="hidden units of the digits network")
    digits_rate: float = Field(0.1, gt=0, description="learning rate of the digits network")
    digits_updates: int = Field(200, ge=8, description="updates of the digits network")
    precision: Literal["float32", "float64"] = Field(
        "float64", description="floating-point type; float32 shows its own rounding"
    )
    device: Literal["auto", "cpu", "gpu", "tpu"] = Field("auto", description="where JAX computes")

    @model_validator(mode="after")
    def _decay_shrinks(self) -> "Parameters":
        if max(self.learning_rate, self.digits_rate) * self.weight_decay >= 1:
            raise ValueError(
                "an update multiplies the weights by 1 - learning rate * weight_decay, which "
                "must stay positive: lower weight_decay or the rates"
            )
        if self.head_dim > self.token_dim:
            raise ValueError("balancing needs head_dim no larger than token_dim")
        return self


PRESETS = {
    "smoke": Parameters(
        n_crops=4,
        token_dim=8,
        n_heads=1,
        n_memories=8,
        n_steps=2,
        n_updates=16,
        n_halvings=1,
        eps_values=(1e-3,),
        n_hidden=8,
        digits_updates=16,
    ),
    "book": Parameters(),
    "paper": Parameters(
        n_crops=64,
        token_dim=64,
        n_heads=4,
        head_dim=16,
        n_memories=256,
        n_steps=12,
        alpha=0.1,
        n_updates=1000,
        n_halvings=3,
        n_hidden=128,
        digits_updates=1000,
    ),
}
