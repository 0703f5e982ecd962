"""Parameters of chapter 2, cost."""

from typing import Literal

from pydantic import Field

from etlib.parameters import ChapterParameters


class Parameters(ChapterParameters):
    """What a reader may change; the defaults are the book's."""

    n_tokens: int = Field(65, ge=2, description="N, tokens of an image")
    token_dim: int = Field(128, ge=2, description="D, token dimension")
    n_heads: int = Field(4, ge=1, description="H, attention heads")
    head_dim: int = Field(32, ge=1, description="Y, dimension of keys and queries")
    n_memories: int = Field(512, ge=1, description="K, rows of the memory matrix")
    n_steps: int = Field(8, ge=1, description="T, descent steps of the block")
    batch: int = Field(8, ge=1, description="images in a batch")
    depths: tuple[int, ...] = Field(
        (2, 6, 12), min_length=2, description="numbers of steps whose memory is looked at"
    )
    repeats: int = Field(3, ge=1, description="runs, of which the fastest counts")
    device: Literal["auto", "cpu", "gpu", "tpu"] = Field("auto", description="where JAX computes")


PRESETS = {
    "smoke": Parameters(
        n_tokens=9,
        token_dim=16,
        n_heads=2,
        head_dim=8,
        n_memories=32,
        n_steps=2,
        batch=2,
        depths=(2, 3),
        repeats=1,
    ),
    "book": Parameters(),
    "paper": Parameters(
        n_tokens=197, token_dim=768, n_heads=12, head_dim=64, n_memories=3072, n_steps=12
    ),
}
