"""Parameters of chapter 6, graph classification, and of any training for it."""

from typing import Literal

from pydantic import Field, model_validator

from etlib.evaluation import N_FOLDS
from etlib.parameters import ChapterParameters


class Training(ChapterParameters):
    """A data set, a protocol and a model: what `etlib.graph_training` takes."""

    dataset: str = Field("csl", description="csl, pains, or the name of a TU set such as MUTAG")
    download: bool = Field(False, description="fetch a TU set that is not in the data root")
    n_molecules: int = Field(400, ge=2, description="molecules of the set pains")
    fallback: Literal["degree", "constant"] = Field(
        "degree", description="node features of a set without any"
    )
    protocol: Literal["cross-validation", "resubstitution"] = Field(
        "cross-validation", description="ten folds with held-out graphs; or fit to all graphs"
    )
    first_fold: int = Field(0, ge=0, lt=N_FOLDS, description="number of the first fold that runs")
    folds: int = Field(N_FOLDS, ge=1, le=N_FOLDS, description="how many of the ten folds run")
    epochs: int = Field(300, ge=1, description="passes over the training graphs")
    seed: int = Field(0, ge=0, description="seed of folds, weights, batches and noise")

    variant: Literal["text", "released"] = Field(
        "text", description="the model of the paper's text; or as the released code computes it"
    )
    token_dim: int = Field(128, ge=2, description="D, token dimension")
    n_heads: int = Field(12, ge=1, description="H, attention heads")
    head_dim: int = Field(64, ge=1, description="Y, dimension of keys and queries")
    n_memories: int = Field(512, ge=1, description="K, rows of the memory matrix of a block")
    n_blocks: int = Field(4, ge=1, description="S, blocks")
    n_steps: int = Field(1, ge=1, description="T, descent steps of a block")
    alpha: float = Field(0.1, gt=0, description="step size")
    n_eigenvectors: int = Field(15, ge=0, description="k, Laplacian eigenvectors; 0: none")
    encoding_scale: float = Field(1.0, gt=0, description="factor on the eigenvectors, of length 1")
    attention_std: float = Field(0.002, gt=0, description="standard deviation of W^K, W^Q at first")
    kernel: int = Field(
        3, ge=0, description="side of equation 25's convolution, odd; 1: order-free; 0: none"
    )
    noise_std: float = Field(0.02, ge=0, description="noise of a step in training")
    label_smoothing: float = Field(0.05, ge=0, lt=1, description="share of the uniform label")

    batch: int = Field(64, ge=1, description="graphs in a batch, at most")
    peak_lr: float = Field(1e-3, gt=0, description="learning rate after the warm-up")
    warmup_epochs: int | None = Field(
        None, ge=0, description="epochs of linear warm-up; None: a sixth, released 50 of 300"
    )
    weight_decay: float = Field(0.05, ge=0, description="AdamW's decay")
    device: Literal["auto", "cpu", "gpu", "tpu"] = Field("auto", description="where JAX computes")

    @model_validator(mode="after")
    def _folds_exist(self) -> "Training":
        if self.protocol == "cross-validation" and self.first_fold + self.folds > N_FOLDS:
            raise ValueError(
                f"first_fold {self.first_fold} and folds {self.folds} ask for fold "
                f"{self.first_fold + self.folds - 1}: they are numbered 0 to {N_FOLDS - 1}"
            )
        if self.kernel and self.kernel % 2 == 0:
            raise ValueError(f"kernel is {self.kernel}: it is centred, so an odd number, or 0")
        return self


class Parameters(Training):
    """What a reader may change; the defaults are the book's: a model that learns in seconds."""

    epochs: int = Field(50, ge=1, description="passes over the training graphs")
    molecule_folds: int = Field(
        2, ge=1, le=N_FOLDS, description="how many of the ten folds of pains run"
    )
    token_dim: int = Field(32, ge=2, description="D, token dimension")
    n_heads: int = Field(2, ge=1, description="H, attention heads")
    head_dim: int = Field(16, ge=1, description="Y, dimension of keys and queries")
    n_memories: int = Field(32, ge=1, description="K, rows of the memory matrix of a block")
    n_blocks: int = Field(1, ge=1, description="S, blocks")
    n_steps: int = Field(2, ge=1, description="T, descent steps of a block")
    alpha: float = Field(1.0, gt=0, description="step size")
    encoding_scale: float = Field(6.0, gt=0, description="factor on the eigenvectors, of length 1")
    attention_std: float = Field(0.1, gt=0, description="standard deviation of W^K, W^Q at first")
    kernel: int = Field(
        1, ge=0, description="side of equation 25's convolution, odd; 1: order-free; 0: none"
    )
    batch: int = Field(20, ge=1, description="graphs in a batch, at most")
    peak_lr: float = Field(1e-2, gt=0, description="learning rate after the warm-up")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's decay")


_RELEASED = {name: field.default for name, field in Training.model_fields.items()}

PRESETS = {
    "smoke": Parameters(folds=1, epochs=1, n_molecules=20, molecule_folds=1, n_eigenvectors=4),
    "book": Parameters(),
    "paper": Parameters(**_RELEASED | {"dataset": "MUTAG", "n_molecules": 1680}),
}
