"""What layers do to tokens: modes, symmetric attention, measures of smoothing, energies.

Tokens are the rows of X (N, D). A linear layer mixes tokens by A (N, N), row i holding the
weights with which token i reads the others, and features by H or W (D, D). Sources: the
research notes behind this book; Dovonon et al., arXiv:2401.04301 (modes); Wang et al.,
arXiv:2203.05962 (frequencies); Sander et al., arXiv:2110.11773 (Sinkhorn); Chamberlain et
al., arXiv:2106.10934 and Di Giovanni et al., arXiv:2206.10991 (graphs). Where a docstring
says "derived", the formula is this book's algebra and chapter 7 shows it.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

Tokens = Float[Array | np.ndarray, "*b N D"]
Mixing = Float[Array | np.ndarray, "N N"]
Features = Float[Array | np.ndarray, "D D"]


# ---------------------------------------------------------------------------
# Modes of X <- X + A X H
# ---------------------------------------------------------------------------


class Path(NamedTuple):
    """Directions X / |X| before the first and after every layer, and the norm's factor of each."""

    directions: Float[Array, "L1 N D"]
    growth: Float[Array, " L"]


@partial(jax.jit, static_argnames="n_layers")
def iterate(X: Float[Array, "N D"], A: Mixing, H: Features, n_layers: int) -> Path:
    """X <- X + A X H, with X scaled to norm one after every layer so that nothing overflows."""

    def step(X, _):
        after = X + A @ X @ H
        norm = jnp.linalg.norm(after)
        after = after / jnp.where(norm == 0, 1.0, norm)
        return after, (after, norm)

    X = X / jnp.linalg.norm(X)
    _, (directions, growth) = jax.lax.scan(step, X, length=n_layers)
    return Path(jnp.concatenate([X[None], directions]), growth)


class Dominating(NamedTuple):
    """The modes that win in the long run, and the real plane that they span."""

    factor: complex  # of one of them, the one with imaginary part >= 0
    lambda_A: complex
    lambda_H: complex
    plane: Float[np.ndarray, "k ND"]  # orthonormal rows, each a flattened (N, D)
    runner_up: float  # largest modulus of a factor that does not tie


def dominating(A: Mixing, H: Features, tie: float = 1e-9) -> Dominating:
    """The pairs of eigenvalues with the largest |1 + lambda_A lambda_H| (eq-dominating; derived).

    vec(X + A X H) = (I + H^T kron A) vec X, and a Kronecker product's eigenvalues are the
    products: each mode u w^T with A u = lambda_A u and w^T H = lambda_H w^T keeps its
    direction and multiplies by its factor (eq-modes).

    A real A and H leave X in the plane spanned by the real and imaginary parts of the winning
    modes: one line for a real winner, a plane in which X rotates for a complex one.
    """
    lambda_A, U = np.linalg.eig(np.asarray(A))
    lambda_H, W = np.linalg.eig(np.asarray(H).T)
    factors = 1 + np.outer(lambda_A, lambda_H)
    size = np.abs(factors)
    winners = np.argwhere(size >= size.max() * (1 - tie))
    modes = np.array([np.outer(U[:, a], W[:, h]).ravel() for a, h in winners])
    stacked = np.concatenate([modes.real, modes.imag])
    _, scales, rows = np.linalg.svd(stacked, full_matrices=False)
    best = max(winners, key=lambda w: factors[tuple(w)].imag)
    losers = size[size < size.max() * (1 - tie)]
    return Dominating(
        complex(factors[tuple(best)]),
        complex(lambda_A[best[0]]),
        complex(lambda_H[best[1]]),
        rows[scales > 1e-6 * scales[0]],
        float(losers.max()) if losers.size else 0.0,
    )


def outside(X: Float[Array | np.ndarray, "N D"], plane: Float[np.ndarray, "k ND"]) -> float:
    """The part of X outside a plane, |X - P X| / |X|: zero when the prediction holds."""
    flat = np.asarray(X).ravel()
    return float(np.linalg.norm(flat - plane.T @ (plane @ flat)) / np.linalg.norm(flat))


def spectrum_of(name: str, dim: int, seed: int, largest: float = 1.0) -> Float[np.ndarray, "D D"]:
    """A feature mixing with a spectrum of the named kind, in a random basis.

    plus: in (0, largest]; minus: in [-largest, 0); mixed: both signs, symmetric; complex: a
    rotation in each plane, of modulus up to `largest`; plain: Gaussian entries, of spectral
    radius `largest`. The first three are symmetric.
    """
    rng = np.random.default_rng(seed)
    Q, _ = np.linalg.qr(rng.normal(size=(dim, dim)))
    size = largest * np.linspace(0.4, 1.0, dim)
    if name == "plus":
        return Q * size @ Q.T
    if name == "minus":
        return Q * -size @ Q.T
    if name == "mixed":
        return Q * (size * np.where(np.arange(dim) % 2, 0.9, -1.0)) @ Q.T
    if name == "plain":
        H = rng.normal(size=(dim, dim))
        return largest * H / np.abs(np.linalg.eigvals(H)).max()
    if name == "complex":
        turn = np.zeros((dim, dim))
        for k in range(0, dim - 1, 2):
            turn[k, k + 1], turn[k + 1, k] = size[k + 1], -size[k + 1]
        return Q @ turn @ Q.T
    raise ValueError(f"no spectrum {name!r}: plus, minus, mixed, plain or complex")


# ---------------------------------------------------------------------------
# How smooth are the tokens?
# ---------------------------------------------------------------------------


def _norm(x: Array, axis) -> Array:
    """A norm whose slope at zero is zero instead of NaN."""
    square = jnp.sum(x**2, axis=axis)
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)


@jax.jit
def high_low_ratio(X: Tokens) -> Float[Array, "*b"]:
    """HFC/LFC = |X - mean| / |mean|, the mean over tokens (after Wang et al., eq-frequency).

    Zero for equal tokens; infinite where the mean vanishes and the tokens do not; zero for
    tokens that are all zero.
    """
    mean = jnp.broadcast_to(jnp.mean(X, axis=-2, keepdims=True), X.shape)
    high, low = _norm(X - mean, (-2, -1)), _norm(mean, (-2, -1))
    ratio = high / jnp.where(low > 0, low, 1.0)
    return jnp.where(low > 0, ratio, jnp.where(high > 0, jnp.inf, 0.0))


@jax.jit
def mean_cosine(X: Tokens) -> Float[Array, "*b"]:
    """The mean cosine between distinct tokens: 1 when all point the same way (eq-angle).

    A zero token has no direction: its cosine with any token counts as zero.
    """
    N = X.shape[-2]
    length = _norm(X, -1)[..., None]
    unit = X / jnp.where(length > 0, length, 1.0)
    total = jnp.sum(jnp.sum(unit, axis=-2) ** 2, axis=-1) - jnp.sum(unit**2, axis=(-2, -1))
    return total / max(N * (N - 1), 1)


@jax.jit
def effective_rank(X: Tokens) -> Float[Array, "*b"]:
    """exp(entropy of the singular values over their sum) (Roy and Vetterli 2007).

    Between 1, for a matrix of rank one, and min(N, D); 0 for the zero matrix.
    """
    s = jnp.linalg.svd(X, compute_uv=False)
    total = s.sum(axis=-1, keepdims=True)
    p = s / jnp.where(total > 0, total, 1.0)
    entropy = -jnp.sum(p * jnp.log(jnp.where(p > 0, p, 1.0)), axis=-1)
    return jnp.where(total[..., 0] > 0, jnp.exp(entropy), 0.0)


# ---------------------------------------------------------------------------
# Symmetric doubly-stochastic attention
# ---------------------------------------------------------------------------


class Sinkhorn(NamedTuple):
    """A = exp(S + f_i + f_j), its potentials f, and how far its row sums are from one."""

    A: Float[Array, "*b N N"]
    f: Float[Array, "*b N"]
    residual: Float[Array, "*b"]


@partial(jax.jit, static_argnames="n_iterations")
def sinkhorn(
    S: Float[Array, "*b N N"],
    n_iterations: int = 50,
    mask: Bool[Array, "*m N N"] | None = None,
) -> Sinkhorn:
    """Symmetric Sinkhorn in the log domain: f <- (f - LSE_j(S_ij + f_j)) / 2 (eq-sinkhorn).

    S and the mask (True where a pair may be used) are symmetric. The number of iterations is
    fixed: scores too large to converge, or a mask that no doubly-stochastic matrix fits, show
    in `residual`, the largest |row sum - 1|, and never loop. After one iteration or more no
    entry exceeds one (derived), so nothing overflows.
    """
    S = S if mask is None else jnp.where(mask, S, -jnp.inf)

    def step(f, _):
        # A token with no pair has an empty sum, log 0: leave its potential where it is.
        lse = jax.nn.logsumexp(S + f[..., None, :], axis=-1)
        return (f - jnp.where(jnp.isfinite(lse), lse, -f)) / 2, None

    f, _ = jax.lax.scan(step, jnp.zeros(S.shape[:-1], S.dtype), length=n_iterations)
    A = jnp.exp(S + (f[..., :, None] + f[..., None, :]))
    return Sinkhorn(A, f, jnp.max(jnp.abs(A.sum(axis=-1) - 1), axis=-1))


@partial(jax.jit, static_argnames="n_steps")
def sinkhorn_alternating(S: Float[Array, "*b N N"], n_steps: int) -> Float[Array, "*b N N"]:
    """Row, column, row, ... normalisation in the log domain (Sander et al.); step 1 is softmax.

    Symmetric only in the limit, whatever S.
    """

    def step(S, _):  # rows; then, of the transpose, columns
        return (S - jax.nn.logsumexp(S, axis=-1, keepdims=True)).swapaxes(-1, -2), None

    S, _ = jax.lax.scan(step, S, length=n_steps)
    return jnp.exp(S if n_steps % 2 == 0 else S.swapaxes(-1, -2))


@jax.jit
def gram_scores(X: Float[Array, "*b N D"], V: Float[Array, "Y D"]) -> Float[Array, "*b N N"]:
    """S_ij = x_i^T V^T V x_j: symmetric and positive semi-definite."""
    projected = X @ V.T
    return projected @ projected.swapaxes(-1, -2)


def doubly_stochastic_layer(
    X: Float[Array, "N D"], A: Mixing, W: Features, alpha: float
) -> Float[Array, "N D"]:
    """alpha X + (1 - alpha) A X W (eq-ds-layer).

    |result| <= (alpha + (1 - alpha) |W|_2) |X| for a symmetric doubly-stochastic A, so the
    trajectory stays bounded when no eigenvalue of the symmetric W exceeds one in size.
    """
    return alpha * X + (1 - alpha) * A @ X @ W


def largest_safe_eigenvalue(A: Mixing, smallest: float, alpha: float) -> float:
    """How large |eigenvalue| of W = -L^T L may be before the constant mode wins (eq-ds-bound).

    For A with eigenvalues in [0, 1], the smallest lambda_min, and W's smallest |eigenvalue|
    `smallest`: the bound is 2 alpha / (1 - alpha) - smallest lambda_min (derived).
    """
    lambda_min = float(np.linalg.eigvalsh(np.asarray(A))[0])
    return 2 * alpha / (1 - alpha) - smallest * lambda_min


# ---------------------------------------------------------------------------
# Energies whose descent the layers are
# ---------------------------------------------------------------------------


def parametrised_energy(
    X: Float[Array, "N D"], A: Mixing, W: Features, Omega: Features | None = None
) -> Float[Array, ""]:
    """E = -<X, A X W>/2 + <X, X Omega>/2 (eq-parametrised-energy; after Di Giovanni et al.).

    For symmetric A, W, Omega its negative gradient is A X W - X Omega.
    """
    energy = -jnp.sum(X * (A @ X @ W)) / 2
    return energy if Omega is None else energy + jnp.sum(X * (X @ Omega)) / 2


def attraction_repulsion(
    X: Float[Array, "N D"], A: Mixing, W: Features
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The parts of -<X, A X W>/2 of W's positive and of its negative eigenvalues.

    Descending the first makes neighbours alike, descending the second makes them differ.
    """
    values, Q = jnp.linalg.eigh(W)
    parts = [Q * jnp.clip(values, lower, upper) @ Q.T for lower, upper in ((0, None), (None, 0))]
    return parametrised_energy(X, A, parts[0]), parametrised_energy(X, A, parts[1])


def sinkhorn_energy(
    X: Float[Array, "N D"], V: Float[Array, "Y D"], sign: float, n_iterations: int = 200
) -> Float[Array, ""]:
    """E = sign * (sum_i f_i - N/2), f the converged Sinkhorn potentials (eq-sinkhorn-energy).

    dX/dt = sign * A(X) X V^T V is -dE/dX: the flow with W = V^T V for sign = 1 and with
    W = -V^T V for sign = -1. Derived: N/2 - sum f is half the maximum of
    <P, S> - sum P (log P - 1) over the doubly-stochastic P, whose slope by S is its
    maximiser A.
    """
    f = sinkhorn(gram_scores(X, V), n_iterations).f
    return sign * (f.sum() - X.shape[-2] / 2)


def jacobian_asymmetry(field: Callable[[Array], Array], X: Float[Array, "N D"]) -> Float[Array, ""]:
    """|J - J^T| / |J| for the Jacobian J of a vector field at X: zero for a gradient field."""
    J = jax.jacfwd(field)(X).reshape(X.size, X.size)
    return jnp.linalg.norm(J - J.T) / jnp.linalg.norm(J)


# ---------------------------------------------------------------------------
# Graphs
# ---------------------------------------------------------------------------


def normalised_adjacency(adjacency: Float[np.ndarray, "N N"]) -> Float[np.ndarray, "N N"]:
    """D^-1/2 A D^-1/2; a node without edges keeps a row of zeros."""
    degree = adjacency.sum(axis=1)
    scale = np.where(degree > 0, 1 / np.sqrt(np.where(degree > 0, degree, 1)), 0.0)
    return scale[:, None] * adjacency * scale


def dirichlet_energy(X: Float[Array, "N D"], A: Mixing) -> Float[Array, ""]:
    """<X, (I - A) X> for a normalised adjacency A: sum over edges |x_i/√d_i - x_j/√d_j|^2."""
    return jnp.sum(X * (X - A @ X))


def rayleigh_quotient(X: Float[Array, "N D"], A: Mixing) -> Float[Array, ""]:
    """Dirichlet energy over |X|^2: the mean graph frequency of X, in [0, 2]; 0 for X = 0."""
    square = jnp.sum(X**2)
    return dirichlet_energy(X, A) / jnp.where(square > 0, square, 1.0)
