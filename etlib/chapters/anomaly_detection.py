"""Parameters of chapter 5, graph anomaly detection."""

from typing import Literal, get_args

from pydantic import Field, field_validator, model_validator

from etlib.data.fraud import NAMES
from etlib.parameters import ChapterParameters, suggest

Model = Literal["et", "logistic", "boosting", "perceptron", "gcn", "wavelets"]

MODELS: tuple[Model, ...] = get_args(Model)


class Parameters(ChapterParameters):
    """What a reader may change; the defaults are the book's.

    Sizes of the model are those of the released command for Amazon at 1 %.
    """

    dataset: Literal[NAMES] = Field("synthetic", description="the set of the live run")
    download: bool = Field(False, description="fetch a set that is not in the data root")
    n_nodes: int = Field(3000, ge=100, description="nodes of the set synthetic")
    train_ratio: float = Field(0.4, gt=0, lt=1, description="share of labelled nodes to train on")
    seeds: tuple[int, ...] = Field(
        (0, 1, 2, 3, 4), description="each draws a split, and initial weights"
    )
    models: tuple[str, ...] = Field(MODELS, description="which models run")

    token_dim: int = Field(64, ge=2, description="D, token dimension")
    n_heads: int = Field(1, ge=1, description="H, attention heads")
    head_dim: int = Field(64, ge=1, description="Y, dimension of keys and queries")
    n_memories: int = Field(128, ge=1, description="K, rows of the memory matrix")
    n_hidden: int = Field(64, ge=1, description="hidden units of the readout")
    n_steps: int = Field(1, ge=1, description="T, descent steps")
    alpha: float = Field(1.0, gt=0, description="step size")
    beta: float | None = Field(None, gt=0, description="inverse temperature; None: 1/sqrt(Y)")
    self_attention: bool = Field(False, description="a node attends to itself (released code)")
    residual: Literal["token", "normalised"] = Field(
        "token", description="what a step adds to; normalised: as in the released code"
    )
    untied_last: bool = Field(False, description="the last step has weights of its own (released)")
    memory_dropout: float = Field(0.0, ge=0, lt=1, description="share of memories left out")
    relations: Literal["joined", "maximum"] = Field(
        "joined", description="kinds of edges; maximum: each by itself, as in the released code"
    )
    readout: Literal["perceptron", "linear"] = Field(
        "perceptron", description="from the tokens to the logit; linear: as in the released code"
    )

    epochs: int = Field(100, ge=1, description="steps of training on the whole graph")
    peak_lr: float = Field(3e-3, gt=0, description="learning rate of Adam")
    baseline_epochs: int = Field(100, ge=1, description="epochs, or trees, of a baseline")
    n_more_steps: int = Field(12, ge=1, description="descent steps of the section on energies")
    device: Literal["auto", "cpu", "gpu", "tpu"] = Field("auto", description="where JAX computes")

    @field_validator("models")
    @classmethod
    def _models_exist(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name not in MODELS:
                raise ValueError(f"there is no model {name!r}{suggest(name, MODELS)}")
        return value

    @model_validator(mode="after")
    def _something_runs(self) -> "Parameters":
        if not self.seeds or not self.models:
            raise ValueError("seeds and models name at least one of each")
        return self


PRESETS = {
    "smoke": Parameters(
        dataset="wdbc",
        n_more_steps=3,
        seeds=(0, 1),
        token_dim=8,
        head_dim=8,
        n_memories=16,
        epochs=5,
        baseline_epochs=5,
    ),
    "book": Parameters(),
    "paper": Parameters(dataset="yelp", peak_lr=1e-3),
}
