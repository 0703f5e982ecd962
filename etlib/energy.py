"""The energy of an Energy Transformer block, written as pure functions.

Every function takes any leading batch axes. Symbols, array letters and equation labels are
the paper's and the book's: tokens ``x`` and normalised tokens ``g`` have shape (N, D); keys
and queries (H, N, Y) come from ``Wk`` and ``Wq`` (H, Y, D); memories ``Xi`` have shape
(K, D); B runs over keys and C over queries.

Energies are accumulated in float32 or better, whatever the type of the tokens.
"""

import re
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float

EPS = 1e-5
OVERLAPS = "overlaps"  # what `jax.checkpoint` knows the products with the memories by

Beta = float | Float[Array, ""] | Float[Array, " H"] | None


# ---------------------------------------------------------------------------
# Layer norm: the activation of the token layer
# ---------------------------------------------------------------------------


def _centre_and_scale(x: Float[Array, "*b D"], eps: float):
    """Deviations from the token's mean, and sqrt(variance + eps)."""
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = jnp.sqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + eps)
    return centred, scale


def layer_norm(
    x: Float[Array, "*b D"],
    gamma: float | Float[Array, ""],
    delta: Float[Array, " D"],
    eps: float = EPS,
) -> Float[Array, "*b D"]:
    """Normalised token g = gamma (x - mean) / sqrt(var + eps) + delta (eq-layer-norm).

    gamma is one scalar for the whole token, so that g is the gradient of `lagrangian`.
    A constant token maps to delta, with a finite derivative, for any eps > 0.
    """
    centred, scale = _centre_and_scale(x, eps)
    return gamma * centred / scale + delta


def lagrangian(
    x: Float[Array, "*b D"],
    gamma: float | Float[Array, ""],
    delta: Float[Array, " D"],
    eps: float = EPS,
) -> Float[Array, "*b"]:
    """Lagrangian of each token, L = D gamma sqrt(var + eps) + delta . x (eq-lagrangian).

    Its gradient by x is `layer_norm`.
    """
    _, scale = _centre_and_scale(x, eps)
    return x.shape[-1] * gamma * scale[..., 0] + x @ delta


def neuron_energy(
    x: Float[Array, "*b D"],
    gamma: float | Float[Array, ""],
    delta: Float[Array, " D"],
    eps: float = EPS,
) -> Float[Array, "*b"]:
    """Energy of each token's neurons, the Legendre transform x . g - L (eq-neuron-energy).

    Equal to -D gamma eps / sqrt(var + eps): of order eps, which is why the paper drops it.
    """
    g = layer_norm(x, gamma, delta, eps)
    return jnp.sum(x * g, axis=-1) - lagrangian(x, gamma, delta, eps)


# ---------------------------------------------------------------------------
# Attention
# ---------------------------------------------------------------------------


def _product(spec: str, a: Array, b: Array) -> Array:
    """Matrix product accumulated, and returned, in float32 or better."""
    dtype = jnp.result_type(a, b)
    narrow = jnp.promote_types(dtype, jnp.float32) != dtype
    return _narrow_product(spec, a, b) if narrow else jnp.einsum(spec, a, b)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _narrow_product(spec: str, a: Array, b: Array) -> Array:
    """A product of bfloat16 whose backward products are of bfloat16 too.

    JAX's own rule would multiply a float32 cotangent with a bfloat16 operand, as a product of
    float32, which the matrix units of a GPU or TPU do many times slower. There is no forward
    mode: derivatives of derivatives are for float32.
    """
    return jnp.einsum(spec, a, b, preferred_element_type=jnp.float32)


def _narrow_forward(spec: str, a: Array, b: Array):
    return _narrow_product(spec, a, b), (a, b)


def _narrow_backward(spec: str, operands: tuple[Array, Array], cotangent: Array):
    a, b = operands
    left, right, out = re.split(",|->", spec)
    # Axes behind the ellipsis need names: of an operand that lacks them the sum runs over them.
    named = "abcdefgh"[: cotangent.ndim - len(out.removeprefix("..."))]
    left, right, out = (axes.replace("...", named) for axes in (left, right, out))
    c = cotangent.astype(a.dtype)
    of_a = jnp.einsum(f"{out},{right}->{left}", c, b, preferred_element_type=jnp.float32)
    of_b = jnp.einsum(f"{out},{left}->{right}", c, a, preferred_element_type=jnp.float32)
    return of_a.astype(a.dtype), of_b.astype(b.dtype)


_narrow_product.defvjp(_narrow_forward, _narrow_backward)


def keys_queries(
    g: Float[Array, "*b N D"], Wk: Float[Array, "H Y D"], Wq: Float[Array, "H Y D"]
) -> tuple[Float[Array, "*b H N Y"], Float[Array, "*b H N Y"]]:
    """Keys Wk g and queries Wq g of every head, in the type of g (eq-keys-queries)."""
    keys = _product("...ND,HYD->...HNY", g, Wk).astype(g.dtype)
    queries = _product("...ND,HYD->...HNY", g, Wq).astype(g.dtype)
    return keys, queries


def per_head(beta: Beta, Wk: Float[Array, "H Y D"]) -> Float[Array, " H"]:
    """One inverse temperature per head, in float32 or better; 1/sqrt(Y) where beta is None."""
    n_heads, head_dim, _ = Wk.shape
    beta = jnp.asarray(head_dim**-0.5 if beta is None else beta)
    return jnp.broadcast_to(beta.astype(jnp.promote_types(Wk.dtype, jnp.float32)), (n_heads,))


def attention_pairs(
    n_tokens: int,
    self_attention: bool,
    mask: Bool[Array, "*m N N"] | None,
    valid: Bool[Array, "*v N"] | None,
) -> Bool[Array, "*p N N"]:
    """The pairs (key B, query C) that attention may use.

    A pair is used when `mask` allows it, both tokens are `valid`, and B differs from C
    unless `self_attention` is on: the diagonal of a mask counts only then.
    """
    pairs = (
        jnp.ones((n_tokens, n_tokens), bool) if self_attention else ~jnp.eye(n_tokens, dtype=bool)
    )
    if mask is not None:
        pairs = pairs & mask
    if valid is not None:
        pairs = pairs & valid[..., :, None] & valid[..., None, :]
    return pairs


def attention_logits(
    keys: Float[Array, "*b H N Y"],
    queries: Float[Array, "*b H C Y"],
    beta: Float[Array, " H"],
    weights: Float[Array, "*w #H N C"] | None = None,
) -> Float[Array, "*b H N C"]:
    """beta_h A_hBC, times the edge weights where given; axes (head, key B, query C)."""
    logits = beta[:, None, None] * _product("...HBY,...HCY->...HBC", keys, queries)
    return logits if weights is None else logits * weights


def attention_energy(
    g: Float[Array, "*b N D"],
    Wk: Float[Array, "H Y D"],
    Wq: Float[Array, "H Y D"],
    beta: Beta = None,
    *,
    self_attention: bool = False,
    mask: Bool[Array, "*m N N"] | None = None,
    weights: Float[Array, "*w #H N N"] | None = None,
    valid: Bool[Array, "*v N"] | None = None,
) -> Float[Array, "*b"]:
    """E_ATT = -sum_h 1/beta_h sum_C log sum_B exp(beta_h A_hBC).

    With `self_attention` off the sum over B leaves out C itself (eq-attention-energy); on,
    it runs over all tokens (eq-attention-energy-self, the paper's equation 13).

    beta:    one number, or one per head; 1/sqrt(Y) when None.
    mask:    True where key B (second-to-last axis) may be attended to by query C (last).
    weights: multiply the logits beta A before the sum. A weight of zero makes a pair
             neutral, it does not remove it: `mask` does.
    valid:   False for padding, which then neither attends nor is attended to.

    A query with nothing to attend to contributes zero.
    """
    beta = per_head(beta, Wk)
    logits = attention_logits(*keys_queries(g, Wk, Wq), beta, weights)
    pairs = attention_pairs(g.shape[-2], self_attention, mask, valid)
    return -jnp.sum(log_sums(logits, pairs).sum(axis=-1) / beta, axis=-1)


def log_sums(
    logits: Float[Array, "*b H N C"], pairs: Bool[Array, "*p N C"]
) -> Float[Array, "*b H C"]:
    """log sum_B exp(logit) of each query over the pairs it may use; 0 where there is none."""
    pairs = jnp.broadcast_to(pairs[..., None, :, :], logits.shape)
    return jnp.where(pairs.any(axis=-2), jax.nn.logsumexp(logits, axis=-2, where=pairs), 0.0)


def attention_gradient(
    g: Float[Array, "*b N D"],
    Wk: Float[Array, "H Y D"],
    Wq: Float[Array, "H Y D"],
    beta: Beta = None,
    *,
    self_attention: bool = False,
    mask: Bool[Array, "*m N N"] | None = None,
    weights: Float[Array, "*w #H N N"] | None = None,
    valid: Bool[Array, "*v N"] | None = None,
) -> Float[Array, "*b N D"]:
    """dE_ATT/dg in closed form (eq-attention-update, with the sign of a gradient).

    With P the softmax of the logits over the keys, token C as a query pulls towards the keys
    it attends to, and token B as a key towards the queries that attend to it:
    -dE/dg_C = sum_h Wq^T sum_B K_B P_BC + sum_h Wk^T sum_C' Q_C' P_CC'.
    """
    keys, queries = keys_queries(g, Wk, Wq)
    pairs = attention_pairs(g.shape[-2], self_attention, mask, valid)
    as_query, as_key = pulls(keys, queries, per_head(beta, Wk), pairs, weights)
    return to_tokens(as_query.astype(g.dtype), as_key.astype(g.dtype), Wk, Wq)


def pulls(
    keys: Float[Array, "*b H N Y"],
    queries: Float[Array, "*b H C Y"],
    beta: Float[Array, " H"],
    pairs: Bool[Array, "*p N C"],
    weights: Float[Array, "*w #H N C"] | None = None,
) -> tuple[Float[Array, "*b H C Y"], Float[Array, "*b H N Y"]]:
    """sum_B K_B P_BC of each of the queries, and sum_C Q_C P_BC of each key over them."""
    logits = attention_logits(keys, queries, beta, weights)
    pairs = jnp.broadcast_to(pairs[..., None, :, :], logits.shape)
    attention = jax.nn.softmax(logits, axis=-2, where=pairs)
    if weights is not None:
        attention = attention * weights
    attention = attention.astype(keys.dtype)
    as_query = _product("...HBC,...HBY->...HCY", attention, keys)
    return as_query, _product("...HBC,...HCY->...HBY", attention, queries)


def to_tokens(
    as_query: Float[Array, "*b H N Y"],
    as_key: Float[Array, "*b H N Y"],
    Wk: Float[Array, "H Y D"],
    Wq: Float[Array, "H Y D"],
) -> Float[Array, "*b N D"]:
    """dE_ATT/dg from what pulls each token as a query and as a key."""
    return -_product("...HNY,HYD->...ND", as_query, Wq) - _product("...HNY,HYD->...ND", as_key, Wk)


# ---------------------------------------------------------------------------
# Hopfield network
# ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Relu:
    """G(h) = relu(h)^2 / 2, rate r(h) = relu(h): the paper's memories."""

    def potential(self, h: Float[Array, "*b K"]) -> Float[Array, "*b"]:
        return 0.5 * jnp.sum(jax.nn.relu(h) ** 2, axis=-1)

    def rate(self, h: Float[Array, "*b K"]) -> Float[Array, "*b K"]:
        return jax.nn.relu(h)


@dataclass(frozen=True)
class Softmax:
    """G = log sum_mu exp(beta h_mu) / beta, rate softmax(beta h): exponential capacity."""

    beta: float = 1.0

    def potential(self, h: Float[Array, "*b K"]) -> Float[Array, "*b"]:
        return jax.nn.logsumexp(self.beta * h, axis=-1) / self.beta

    def rate(self, h: Float[Array, "*b K"]) -> Float[Array, "*b K"]:
        return jax.nn.softmax(self.beta * h, axis=-1)


@dataclass(frozen=True)
class Power:
    """G(h) = relu(h)^n / n, rate relu(h)^(n-1): dense associative memory of order n >= 2."""

    n: float = 3.0

    def potential(self, h: Float[Array, "*b K"]) -> Float[Array, "*b"]:
        return jnp.sum(jax.nn.relu(h) ** self.n, axis=-1) / self.n

    def rate(self, h: Float[Array, "*b K"]) -> Float[Array, "*b K"]:
        return jax.nn.relu(h) ** (self.n - 1)


Activation = Relu | Softmax | Power

RELU = Relu()


def hopfield_energy(
    g: Float[Array, "*b N D"],
    Xi: Float[Array, "K D"],
    activation: Activation = RELU,
    *,
    valid: Bool[Array, "*v N"] | None = None,
) -> Float[Array, "*b"]:
    """E_HN = -sum_B G(Xi g_B) over the tokens that are not padding (eq-hopfield-energy)."""
    per_token = activation.potential(_product("...ND,KD->...NK", g, Xi))
    if valid is not None:
        per_token = jnp.where(valid, per_token, 0.0)
    return -per_token.sum(axis=-1)


def hopfield_gradient(
    g: Float[Array, "*b N D"],
    Xi: Float[Array, "K D"],
    activation: Activation = RELU,
    *,
    valid: Bool[Array, "*v N"] | None = None,
) -> Float[Array, "*b N D"]:
    """dE_HN/dg_B = -sum_mu Xi_mu r(Xi_mu . g_B) in closed form (eq-hopfield-update)."""
    overlaps = checkpoint_name(_product("...ND,KD->...NK", g, Xi), OVERLAPS)
    rates = activation.rate(overlaps).astype(g.dtype)
    gradient = -_product("...NK,KD->...ND", rates, Xi)
    return gradient if valid is None else jnp.where(valid[..., None], gradient, 0.0)


# ---------------------------------------------------------------------------
# Together
# ---------------------------------------------------------------------------


def energy(
    g: Float[Array, "*b N D"],
    Wk: Float[Array, "H Y D"],
    Wq: Float[Array, "H Y D"],
    Xi: Float[Array, "K D"],
    beta: Beta = None,
    activation: Activation = RELU,
    *,
    valid: Bool[Array, "*v N"] | None = None,
    **pairs,
) -> Float[Array, "*b"]:
    """E = E_ATT + E_HN (eq-total-energy); `pairs` are the options of `attention_energy`."""
    attention = attention_energy(g, Wk, Wq, beta, valid=valid, **pairs)
    return attention + hopfield_energy(g, Xi, activation, valid=valid)


def energy_gradient(
    g: Float[Array, "*b N D"],
    Wk: Float[Array, "H Y D"],
    Wq: Float[Array, "H Y D"],
    Xi: Float[Array, "K D"],
    beta: Beta = None,
    activation: Activation = RELU,
    *,
    valid: Bool[Array, "*v N"] | None = None,
    **pairs,
) -> Float[Array, "*b N D"]:
    """dE/dg in closed form; tokens move along its negative (eq-dynamics)."""
    attention = attention_gradient(g, Wk, Wq, beta, valid=valid, **pairs)
    return attention + hopfield_gradient(g, Xi, activation, valid=valid)
