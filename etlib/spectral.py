"""Vision transformers whose attention has a spectrum of known sign, and the Energy
Transformer as a classifier of the same shape.

One attention head mixes tokens by A and features by H. What decides between smoothing and
sharpening is the sign of H's eigenvalues, so the three models here differ in nothing else:

    plus    H = V diag(sigmoid(psi)) V^T        eigenvalues in (0, 1)
    plain   H free                              eigenvalues anywhere, complex too
    minus   H = -V diag(sigmoid(psi)) V^T       eigenvalues in (-1, 0)

V is the orthogonal factor of QR(Theta). The construction V Lambda V^-1 with V from a QR
decomposition is known to us from reviews of arXiv:2401.04301 only; the sigmoid, the common
initial norm of H and the placing of the layer norms are this book's own choices.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from etlib import energy as en
from etlib import vision
from etlib.block import BlockConfig, ETBlock, descend

Spectrum = Literal["plus", "plain", "minus"]
Name = Literal["plus", "plain", "minus", "energy"]

SIGN = {"plus": 1.0, "minus": -1.0}


@dataclass(frozen=True)
class ClassifierConfig:
    """Sizes shared by all four models; a step of the Energy Transformer counts as a layer."""

    name: Name = "plain"
    depth: int = 12
    token_dim: int = 24
    mlp_dim: int = 48
    n_heads: int = 4  # energy only; the others have one head
    head_dim: int = 12  # energy only; the others' head is as wide as a token
    n_memories: int = 192  # energy only
    step_size: float = 0.3  # energy only
    image_size: int = 8
    patch: int = 2
    n_classes: int = 10

    @property
    def n_tokens(self) -> int:
        """Patches and the class token."""
        return (self.image_size // self.patch) ** 2 + 1


class Trajectory(NamedTuple):
    """Tokens before the first and after every layer, and the attention of every layer."""

    tokens: Float[Array, "L1 b N D"]
    attention: Float[Array, "L b N N"]


def normalise(x: Float[Array, "*b D"]) -> Float[Array, "*b D"]:
    """Layer norm without scale or bias: a learned scale could flip the sign of H."""
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / jnp.sqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)


class Classifier(nnx.Module):
    """Patches, class token and positions in; the class token, normalised, read by a linear head.

    `layers` maps tokens to tokens; `steps(x)` also says what it saw on the way.
    """

    def __init__(self, config: ClassifierConfig, *, rngs: nnx.Rngs):
        self.config = c = config
        values = c.patch**2

        def normal(*shape, std):
            return nnx.Param(std * jax.random.normal(rngs.params(), shape))

        self.embed = normal(values, c.token_dim, std=values**-0.5)
        self.class_token = normal(c.token_dim, std=1.0)
        self.positions = normal(c.n_tokens, c.token_dim, std=0.5)
        self.readout = nnx.Param(jnp.zeros((c.token_dim, c.n_classes)))
        self.bias = nnx.Param(jnp.zeros(c.n_classes))
        self.layers = (
            EnergyLayers(c, rngs=rngs) if c.name == "energy" else SpectralLayers(c, rngs=rngs)
        )

    def tokens(self, images: Float[Array, "b s s"]) -> Float[Array, "b N D"]:
        """The tokens that enter the first layer."""
        patches = vision.patchify(images[..., None], self.config.patch) @ self.embed[...]
        first = jnp.broadcast_to(self.class_token[...], (*patches.shape[:-2], 1, patches.shape[-1]))
        return jnp.concatenate([first, patches], axis=-2) + self.positions[...]

    def read(self, x: Float[Array, "b N D"]) -> Float[Array, "b classes"]:
        """Logits from the class token."""
        return normalise(x[..., 0, :]) @ self.readout[...] + self.bias[...]

    def __call__(self, images: Float[Array, "b s s"]) -> Float[Array, "b classes"]:
        return self.read(self.layers(self.tokens(images)))

    def trajectory(self, images: Float[Array, "b s s"]) -> Trajectory:
        """What the tokens do between the embedding and the readout."""
        return self.layers.trajectory(self.tokens(images))


class SpectralLayers(nnx.Module):
    """L layers of x <- x + A x^ H, then x <- x + MLP(x^), with x^ the normalised tokens.

    A is the softmax of one head's scores; see the head of this module for H.
    """

    def __init__(self, config: ClassifierConfig, *, rngs: nnx.Rngs):
        self.config = c = config
        L, D, M = c.depth, c.token_dim, c.mlp_dim

        def normal(*shape, std):
            return nnx.Param(std * jax.random.normal(rngs.params(), (L, *shape)))

        self.Wq, self.Wk = normal(D, D, std=D**-0.5), normal(D, D, std=D**-0.5)
        # sigmoid(0) = 1/2: all three start with |H|_F^2 = D/4.
        if c.name == "plain":
            self.W = normal(D, D, std=0.5 * D**-0.5)
        else:
            self.Theta = normal(D, D, std=1.0)
            self.psi = nnx.Param(jnp.zeros((L, D)))
        self.W1, self.b1 = normal(D, M, std=D**-0.5), nnx.Param(jnp.zeros((L, M)))
        self.W2, self.b2 = normal(M, D, std=0.5 * M**-0.5), nnx.Param(jnp.zeros((L, D)))

    def H(self) -> Float[Array, "L D D"]:
        """The feature mixing of every layer."""
        if self.config.name == "plain":
            return self.W[...]
        V, _ = jnp.linalg.qr(self.Theta[...])
        eigenvalues = SIGN[self.config.name] * jax.nn.sigmoid(self.psi[...])
        return jnp.einsum("Lij,Lj,Lkj->Lik", V, eigenvalues, V)

    def weights(self) -> tuple[Float[Array, "L ..."], ...]:
        """Everything that a layer needs, one slice a layer."""
        parts = (self.Wq, self.Wk, self.W1, self.b1, self.W2, self.b2)
        return (self.H(), *(part[...] for part in parts))

    def __call__(self, x: Float[Array, "b N D"]) -> Float[Array, "b N D"]:
        return jax.lax.scan(lambda x, w: (layer(x, w)[0], None), x, self.weights())[0]

    def one(self, x: Float[Array, "*b N D"], index: int | Int[Array, ""]) -> Float[Array, "*b N D"]:
        """Layer number `index` alone."""
        return layer(x, tuple(part[index] for part in self.weights()))[0]

    def trajectory(self, x: Float[Array, "b N D"]) -> Trajectory:
        def step(x, w):
            after, attention = layer(x, w)
            return after, (after, attention)

        _, (tokens, attention) = jax.lax.scan(step, x, self.weights())
        return Trajectory(jnp.concatenate([x[None], tokens]), attention)


def layer(x: Float[Array, "*b N D"], weights) -> tuple[Float[Array, "*b N D"], Array]:
    """One layer of `SpectralLayers`; the second value is A, row i the weights of token i."""
    H, Wq, Wk, W1, b1, W2, b2 = weights
    g = normalise(x)
    scores = jnp.einsum("...id,dy,...jy->...ij", g, Wq, g @ Wk) * Wq.shape[-1] ** -0.5
    attention = jax.nn.softmax(scores, axis=-1)
    x = x + attention @ g @ H
    return x + jax.nn.gelu(normalise(x) @ W1 + b1) @ W2 + b2, attention


class EnergyLayers(nnx.Module):
    """T = depth descent steps of one Energy Transformer block, self-attention allowed."""

    def __init__(self, config: ClassifierConfig, *, rngs: nnx.Rngs):
        self.config = c = config
        block = BlockConfig(
            token_dim=c.token_dim,
            n_heads=c.n_heads,
            head_dim=c.head_dim,
            n_memories=c.n_memories,
            n_steps=c.depth,
            alpha=c.step_size,
            self_attention=True,
            attention_std=c.token_dim**-0.5,
            memory_std=c.token_dim**-0.5,
        )
        self.block = ETBlock(block, rngs=rngs)

    def __call__(self, x: Float[Array, "b N D"]) -> Float[Array, "b N D"]:
        return self.block(x)

    def one(self, x: Float[Array, "*b N D"], index: int | Int[Array, ""]) -> Float[Array, "*b N D"]:
        """One step; all are alike, whatever the `index`."""
        return descend(self.block, x, n_steps=1)[0]

    def trajectory(self, x: Float[Array, "b N D"]) -> Trajectory:
        """The attention is that of the heads, averaged; row i the weights of query i."""
        _, trace = descend(self.block, x, trace=True)
        g = self.block.norm(trace.tokens[:-1])
        keys, queries = en.keys_queries(g, self.block.Wk[...], self.block.Wq[...])
        beta = en.per_head(self.block.config.beta, self.block.Wk[...])
        logits = en.attention_logits(keys, queries, beta)
        attention = jax.nn.softmax(logits, axis=-2).swapaxes(-1, -2)
        return Trajectory(trace.tokens, attention.mean(axis=-3))
