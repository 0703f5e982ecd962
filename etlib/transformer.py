"""The standard Transformer that the Energy Transformer is compared with.

Pre-norm blocks {x + attention(norm(x)), then x + mlp(norm(x))}, applied `depth` times: with
weights of its own each (equal compute to an Energy Transformer of as many steps), or all with
the same weights (equal parameters, at half the width of the memories).
"""

from dataclasses import dataclass

import jax
from flax import nnx
from jaxtyping import Array, Float


@dataclass(frozen=True)
class TransformerConfig:
    """Size of a Transformer. `shared` applies one block `depth` times."""

    token_dim: int
    n_heads: int
    mlp_dim: int
    depth: int
    shared: bool = False


class TransformerBlock(nnx.Module):
    """Attention, then a two-layer perceptron, each on normalised tokens and added back."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        D = config.token_dim
        self.n_heads = config.n_heads
        self.norm1, self.norm2 = nnx.LayerNorm(D, rngs=rngs), nnx.LayerNorm(D, rngs=rngs)
        self.qkv, self.out = nnx.Linear(D, 3 * D, rngs=rngs), nnx.Linear(D, D, rngs=rngs)
        self.up = nnx.Linear(D, config.mlp_dim, rngs=rngs)
        self.down = nnx.Linear(config.mlp_dim, D, rngs=rngs)

    def __call__(self, x: Float[Array, "b N D"]) -> Float[Array, "b N D"]:
        q, k, v = (
            part.reshape(*part.shape[:-1], self.n_heads, -1)
            for part in jax.numpy.split(self.qkv(self.norm1(x)), 3, axis=-1)
        )
        mixed = jax.nn.dot_product_attention(q, k, v)
        x = x + self.out(mixed.reshape(x.shape))
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class Transformer(nnx.Module):
    """The stack; `norm` is the last layer norm, which a decoder reads through."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        self.depth = config.depth
        n_blocks = 1 if config.shared else config.depth
        self.blocks = nnx.List([TransformerBlock(config, rngs=rngs) for _ in range(n_blocks)])
        self.norm = nnx.LayerNorm(config.token_dim, rngs=rngs)

    def __call__(self, x: Float[Array, "b N D"]) -> Float[Array, "b N D"]:
        for layer in range(self.depth):
            x = self.blocks[layer % len(self.blocks)](x)
        return x
