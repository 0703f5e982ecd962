"""The Energy Transformer block: its parameters, and its descent of the energy."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key

from etlib import energy as en
from etlib import streamed

Remat = Literal["none", "cheap", "all"]

_SAVED = {
    "cheap": jax.checkpoint_policies.save_only_these_names(en.OVERLAPS),
    "all": jax.checkpoint_policies.nothing_saveable,
}


@dataclass(frozen=True)
class BlockConfig:
    """Size and dynamics of a block; the defaults are the paper's image model.

    The standard deviations of the initial weights are those of the released code: 0.002 for
    keys and queries, 0.02 for memories.
    """

    token_dim: int = 768
    n_heads: int = 12
    head_dim: int = 64
    n_memories: int = 3072
    n_steps: int = 12
    alpha: float = 0.1
    beta: float | None = None  # 1/sqrt(head_dim)
    learn_beta: bool = False  # one per head, starting at beta
    self_attention: bool = False
    activation: en.Activation = en.RELU
    eps: float = en.EPS
    attention_std: float = 0.002
    memory_std: float = 0.02
    query_block: int | None = None  # queries at a time (etlib.streamed); None is all of them
    compute_dtype: str | None = None  # of the products, e.g. "bfloat16"; None is the parameters'


class Trace(NamedTuple):
    """What `descend` saw: energies and tokens before each of the T steps and after the last."""

    attention: Float[Array, "T1 *b"]
    hopfield: Float[Array, "T1 *b"]
    tokens: Float[Array, "T1 *b N D"]
    update_norm: Float[Array, "T *b"]  # Frobenius norm of x(t+1) - x(t)

    @property
    def energy(self) -> Float[Array, "T1 *b"]:
        return self.attention + self.hopfield


class ETBlock(nnx.Module):
    """One block: a layer norm and the two energies over its output.

    Parameters: ``Wk``, ``Wq`` (H, Y, D), ``Xi`` (K, D), ``gamma`` (), ``delta`` (D,), and
    ``beta`` (H,) where it is learned. There is no value matrix and no bias in either energy.
    `block(x)` descends for ``config.n_steps``.
    """

    def __init__(self, config: BlockConfig, *, rngs: nnx.Rngs):
        self.config = config
        heads = (config.n_heads, config.head_dim, config.token_dim)
        memories = (config.n_memories, config.token_dim)
        self.Wk = nnx.Param(config.attention_std * jax.random.normal(rngs.params(), heads))
        self.Wq = nnx.Param(config.attention_std * jax.random.normal(rngs.params(), heads))
        self.Xi = nnx.Param(config.memory_std * jax.random.normal(rngs.params(), memories))
        self.gamma = nnx.Param(jnp.ones(()))
        self.delta = nnx.Param(jnp.zeros(config.token_dim))
        if config.learn_beta:
            self.beta = nnx.Param(en.per_head(config.beta, self.Wk[...]))

    @property
    def inverse_temperature(self) -> en.Beta:
        """beta: as learned, or the configuration's."""
        return self.beta[...] if self.config.learn_beta else self.config.beta

    def norm(self, x: Float[Array, "*b D"]) -> Float[Array, "*b D"]:
        """g, the normalised tokens."""
        return en.layer_norm(x, self.gamma[...], self.delta[...], self.config.eps)

    def _computed(self, *arrays: Array) -> list[Array]:
        """Arrays in the type of the products; what is summed stays float32 or better."""
        dtype = self.config.compute_dtype
        return [array if dtype is None else array.astype(dtype) for array in arrays]

    def energies(
        self, g: Float[Array, "*b N D"], **pairs
    ) -> tuple[Float[Array, "*b"], Float[Array, "*b"]]:
        """(E_ATT, E_HN) at the normalised tokens g; mask, weights and valid as in
        `energy.attention_energy`."""
        c = self.config
        g, Wk, Wq, Xi = self._computed(g, self.Wk[...], self.Wq[...], self.Xi[...])
        pairs = {"self_attention": c.self_attention, **pairs}
        beta = self.inverse_temperature
        if c.query_block is None:
            attention = en.attention_energy(g, Wk, Wq, beta, **pairs)
        else:
            attention = streamed.attention_energy(g, Wk, Wq, c.query_block, beta, **pairs)
        return attention, en.hopfield_energy(g, Xi, c.activation, valid=pairs.get("valid"))

    def gradient(self, g: Float[Array, "*b N D"], **pairs) -> Float[Array, "*b N D"]:
        """dE/dg at the normalised tokens g in closed form; options as in `energies`."""
        c = self.config
        g, Wk, Wq, Xi = self._computed(g, self.Wk[...], self.Wq[...], self.Xi[...])
        pairs = {"self_attention": c.self_attention, **pairs}
        beta = self.inverse_temperature
        if c.query_block is None:
            return en.energy_gradient(g, Wk, Wq, Xi, beta, c.activation, **pairs)
        attention = streamed.attention_gradient(g, Wk, Wq, c.query_block, beta, **pairs)
        return attention + en.hopfield_gradient(g, Xi, c.activation, valid=pairs.get("valid"))

    def __call__(self, x: Float[Array, "*b N D"], **options) -> Float[Array, "*b N D"]:
        """Tokens after the descent; options as in `descend`."""
        return descend(self, x, **options)[0]


def descend(
    block: ETBlock,
    x: Float[Array, "*b N D"],
    *,
    n_steps: int | None = None,
    alpha: float | Float[Array, ""] | None = None,
    noise_std: float = 0.0,
    key: Key[Array, ""] | None = None,
    remat: Remat = "none",
    trace: bool = False,
    **pairs,
) -> tuple[Float[Array, "*b N D"], Trace | None]:
    """T steps of x <- x - alpha dE/dg (eq-step), and their trace when asked for.

    n_steps, alpha: the block's own when None.
    noise_std:      > 0 adds sqrt(alpha) noise_std N(0, 1) to the tokens at each step (Langevin
                    noise; the paper's equation 27). Needs a `key`; step t uses fold_in(key, t).
    remat:          what the backward pass recomputes instead of storing: "none"; "cheap",
                    everything but the tokens and their overlaps with the memories, which are
                    the largest product; "all", everything but the tokens.
    pairs:          mask, weights and valid as in `energy.attention_energy`.

    Raises ValueError for noise without a key.
    """
    n_steps = block.config.n_steps if n_steps is None else n_steps
    alpha = block.config.alpha if alpha is None else alpha
    if noise_std > 0 and key is None:
        raise ValueError(f"noise_std is {noise_std}: give descend a key (jax.random.key(seed))")

    def step(x, t):
        g = block.norm(x)
        update = -alpha * block.gradient(g, **pairs)
        if noise_std > 0:
            noise = jax.random.normal(jax.random.fold_in(key, t), x.shape, x.dtype)
            update += jnp.sqrt(jnp.asarray(alpha, x.dtype)) * noise_std * noise
        if not trace:
            return x + update.astype(x.dtype), None
        norm = jnp.sqrt(jnp.sum(update**2, axis=(-2, -1)))
        return x + update.astype(x.dtype), (*block.energies(g, **pairs), x, norm)

    if remat != "none":
        step = jax.checkpoint(step, policy=_SAVED[remat])
    x, steps = jax.lax.scan(step, x, jnp.arange(n_steps))
    if not trace:
        return x, None
    *before, norms = steps
    last = (*block.energies(block.norm(x), **pairs), x)
    whole = [jnp.concatenate([b, a[None]]) for b, a in zip(before, last, strict=True)]
    return x, Trace(*whole, norms)
