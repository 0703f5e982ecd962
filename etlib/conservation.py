"""Symmetries of an Energy Transformer's parameters, and what gradient descent conserves.

A model here is a dictionary of arrays and a pure function of it, so that a symmetry is a map of
dictionaries, its generator a derivative of that map, and a conserved quantity a function that
takes weights, gradients and velocities alike.

The image model is the released one without its CLS token: patches are encoded, masked ones
replaced, positions added; one block descends its energy for T steps; the block's own layer norm
and an affine map decode. Symbols and shapes as in `etlib.energy`; P is the values of a patch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, UInt8

from etlib import energy as en
from etlib.vision import patchify

AnyArray = Array | np.ndarray  # laws and actions take either
Params = Mapping[str, AnyArray]
TOKENS = ("encoder", "encoder_bias", "mask_token", "position")  # what makes the tokens x
WEIGHTS = ("Wk", "Wq", "Xi")  # what the energy multiplies g with
READERS = (*WEIGHTS, "decoder")  # everything that reads g
NORM = ("gamma", "delta")


# ---------------------------------------------------------------------------
# The image model
# ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """Size and dynamics of the masked-image model; `parts` are the energies that it keeps."""

    token_dim: int
    n_heads: int
    head_dim: int
    n_memories: int
    n_steps: int
    alpha: float
    beta: float | None = None
    activation: en.Activation = en.RELU
    parts: tuple[str, ...] = ("attention", "hopfield")

    def init(self, seed: int, n_tokens: int, patch_values: int, std: float = 0.1) -> Params:
        """Normal weights of deviation `std`; encoder and decoder keep the scale of their input.

        Tokens and positions start at order one, so that the variance is far above eps.
        """
        D, P = self.token_dim, patch_values
        heads = (self.n_heads, self.head_dim, D)
        deviations = {
            "encoder": ((D, P), P**-0.5),
            "encoder_bias": ((D,), std),
            "mask_token": ((D,), 1.0),
            "position": ((n_tokens, D), 0.5),
            "Wk": (heads, std),
            "Wq": (heads, std),
            "Xi": ((self.n_memories, D), std),
            "delta": ((D,), std),
            "decoder": ((P, D), D**-0.5),
            "decoder_bias": ((P,), std),
        }
        rng = np.random.default_rng(seed)
        params = {
            name: jnp.asarray(scale * rng.normal(size=shape), float)
            for name, (shape, scale) in deviations.items()
        }
        return params | {"gamma": jnp.ones(())}

    def __call__(
        self,
        params: Params,
        patches: Float[AnyArray, "*b N P"],
        masked: Bool[AnyArray, "*b N"],
        eps: float | Float[AnyArray, ""] = en.EPS,
    ) -> Float[AnyArray, "*b N P"]:
        """Reconstructed patches. A parameter `alpha` replaces the model's step size."""
        x = patches @ params["encoder"].T + params["encoder_bias"]
        x = jnp.where(masked[..., None], params["mask_token"], x) + params["position"]
        alpha = params.get("alpha", self.alpha)
        Wk, Wq, Xi = (params[name] for name in WEIGHTS)

        def step(x, _):
            g = _normalise(x, params, eps)
            gradient = jnp.zeros_like(x)
            if "attention" in self.parts:
                gradient += en.attention_gradient(g, Wk, Wq, self.beta)
            if "hopfield" in self.parts:
                gradient += en.hopfield_gradient(g, Xi, self.activation)
            return x - alpha * gradient, None

        x, _ = jax.lax.scan(step, x, length=self.n_steps)
        return _normalise(x, params, eps) @ params["decoder"].T + params["decoder_bias"]


def _normalise(x, params, eps):
    """`energy.layer_norm`, with an eps that may be differentiated by."""
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = jnp.sqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + eps)
    return params["gamma"] * centred / scale + params["delta"]


def masked_crops(
    photograph: UInt8[np.ndarray, "height width 3"],
    seed: int,
    n_crops: int,
    side: int,
    patch: int,
    n_masked: int,
    shrink: int = 4,
) -> tuple[Float[np.ndarray, "B N P"], Bool[np.ndarray, "B N"]]:
    """Patches of random square crops of a shrunken photograph, and which of them are masked.

    Values have mean 0 and deviation 1 over the whole photograph. Raises ValueError when the
    shrunken photograph is smaller than a crop, or when no token would be masked or seen.
    """
    height, width = (length // shrink for length in photograph.shape[:2])
    n_tokens = (side // patch) ** 2
    if side > min(height, width):
        raise ValueError(f"no {side}x{side} crop in a photograph shrunk to {height}x{width}")
    if not 0 < n_masked < n_tokens:
        raise ValueError(f"{n_masked} masked of {n_tokens} tokens: mask some and leave some")
    blocks = photograph[: height * shrink, : width * shrink].astype(float)
    image = blocks.reshape(height, shrink, width, shrink, 3).mean(axis=(1, 3))
    image = (image - image.mean()) / image.std()
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, height - side + 1, n_crops)
    columns = rng.integers(0, width - side + 1, n_crops)
    crops = [image[r : r + side, c : c + side] for r, c in zip(rows, columns, strict=True)]
    masked = rng.permuted(np.tile(np.arange(n_tokens) < n_masked, (n_crops, 1)), axis=1)
    return patchify(np.stack(crops), patch), masked


def masked_error(
    model: Model,
    patches: Float[AnyArray, "*b N P"],
    masked: Bool[AnyArray, "*b N"],
) -> Callable[..., Float[AnyArray, ""]]:
    """loss(params, eps): mean squared error over the values of the masked patches."""

    def loss(params: Params, eps: float | Float[AnyArray, ""] = en.EPS) -> Float[AnyArray, ""]:
        error = jnp.mean((model(params, patches, masked, eps) - patches) ** 2, axis=-1)
        return jnp.mean(error, where=masked)

    return loss


# ---------------------------------------------------------------------------
# Symmetries of the image model: maps of parameters that leave its output alone
# ---------------------------------------------------------------------------


def _scaled(params: Params, powers: Mapping[str, float], c) -> Params:
    return dict(params) | {name: params[name] * c**power for name, power in powers.items()}


def _powers(names, power) -> dict[str, float]:
    return dict.fromkeys(names, power)


def mix_heads(params: Params, M: Float[AnyArray, "H Y Y"]) -> Params:
    """(Wk, Wq) -> (M Wk, M^-T Wq) in every head: keys . queries stay (eq-head-symmetry)."""
    Wk = M @ params["Wk"]
    Wq = jnp.linalg.solve(M.swapaxes(-1, -2), params["Wq"])
    return dict(params) | {"Wk": Wk, "Wq": Wq}


def shift_tokens(params: Params, shift: Params) -> Params:
    """Add multiples of (1, ..., 1) to what makes tokens: layer norm removes them (eq-token-shift).

    `shift` holds (P,) for the encoder, () for its bias and the mask token, (N,) for positions.
    """
    ones = jnp.ones(params["delta"].shape)
    moved = {
        "encoder": params["encoder"] + jnp.outer(ones, shift["encoder"]),
        "encoder_bias": params["encoder_bias"] + shift["encoder_bias"],
        "mask_token": params["mask_token"] + shift["mask_token"],
        "position": params["position"] + jnp.outer(shift["position"], ones),
    }
    return dict(params) | moved


def rescale_mean(params: Params, c: float | Float[AnyArray, ""]) -> Params:
    """Mean of delta times c, row means of everything that reads g over c (eq-mean-channel).

    g's mean over its D entries is delta's, and the readers see it times their own row means.
    """
    means = {name: params[name].mean(axis=-1, keepdims=True) for name in (*READERS, "delta")}
    moved = {name: params[name] + means[name] * (1 / c - 1) for name in READERS}
    return dict(params) | moved | {"delta": params["delta"] + means["delta"] * (c - 1)}


def scale_tokens(params: Params, c: float | Float[AnyArray, ""]) -> Params:
    """Tokens and readers times c, layer norm's gain and bias over c (eq-token-scale).

    Exact for eps = 0; at eps it is the same model at eps / c^2.
    """
    return _scaled(params, _powers((*TOKENS, *READERS), 1) | _powers(NORM, -1), c)


def scale_step(params: Params, c: float | Float[AnyArray, ""]) -> Params:
    """Gain, bias and step size times c, readers over c: exact, where `alpha` is a parameter."""
    return _scaled(params, _powers((*NORM, "alpha"), 1) | _powers(READERS, -1), c)


def scale_memories(params: Params, c: float | Float[AnyArray, ""]) -> Params:
    """Gain and bias times c, decoder over c, memories over sqrt(c): exact without attention.

    A ReLU is homogeneous, so Xi^T relu(Xi g) stays; attention's update does not.
    """
    return _scaled(params, _powers(NORM, 1) | {"decoder": -1, "Xi": -0.5}, c)


def rotate_tokens(params: Params, R: Float[AnyArray, "D D"]) -> Params:
    """Rotate token space by an orthogonal R with R 1 = 1; needs layer norm's gain to be scalar."""
    moved = {name: params[name] @ R.T for name in (*READERS, "delta", "mask_token", "position")}
    moved |= {"encoder": R @ params["encoder"], "encoder_bias": R @ params["encoder_bias"]}
    return dict(params) | moved


def permute_memories(params: Params, order: Any) -> Params:
    """Memories in another order: a symmetry without a generator."""
    return dict(params) | {"Xi": params["Xi"][order]}


def generator(action: Callable[[Float[AnyArray, ""]], Params]) -> Params:
    """d/ds action(s) at s = 0: the direction in which a one-parameter symmetry sets out."""
    return jax.jvp(action, (jnp.zeros(()),), (jnp.ones(()),))[1]


def inner(a: Params, b: Params) -> float:
    """Sum of the products of all entries: the plain metric of parameter space."""
    return float(sum(np.vdot(a[name], b[name]) for name in a if name in b))


def norm(a: Params) -> float:
    return inner(a, a) ** 0.5


# ---------------------------------------------------------------------------
# Conserved quantities
# ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Law:
    """A quantity, linear (degree 1) or quadratic (degree 2) in the parameters.

    Being homogeneous, it may be taken of gradients and velocities as well; the predictions
    below do that.
    """

    degree: int
    value: Callable[[Params], AnyArray]


def head_balance(params: Params) -> Float[AnyArray, "*b H Y Y"]:
    """Wq Wq^T - Wk Wk^T of each head (eq-head-law); Du et al. 2018 for linear networks."""
    Wk, Wq = params["Wk"], params["Wq"]
    return Wq @ Wq.swapaxes(-1, -2) - Wk @ Wk.swapaxes(-1, -2)


def head_sum(params: Params) -> Float[AnyArray, "*b H Y Y"]:
    """Wq Wq^T + Wk Wk^T: as good a quadratic form as `head_balance`, and not conserved."""
    Wk, Wq = params["Wk"], params["Wq"]
    return Wq @ Wq.swapaxes(-1, -2) + Wk @ Wk.swapaxes(-1, -2)


def token_sums(params: Params) -> Float[AnyArray, " sums"]:
    """Sums over the D entries of encoder columns, encoder bias, mask token and positions."""
    return jnp.concatenate(
        [
            params["encoder"].sum(axis=0),
            params["encoder_bias"].sum()[None],
            params["mask_token"].sum()[None],
            params["position"].sum(axis=1),
        ]
    )


def _squares(params: Params, names) -> Float[AnyArray, ""]:
    return sum(jnp.sum(params[name] ** 2) for name in names)


def mean_channel(params: Params) -> Float[AnyArray, ""]:
    """((1 . delta)^2 - sum over readers ||W 1||^2) / D (eq-mean-law)."""
    sums = {name: params[name].sum(axis=-1) for name in (*READERS, "delta")}
    return (_squares(sums, ["delta"]) - _squares(sums, READERS)) / params["delta"].size


def token_scale(params: Params) -> Float[AnyArray, ""]:
    """||tokens||^2 + ||readers||^2 - gamma^2 - ||delta||^2 (eq-scale-law)."""
    return _squares(params, (*TOKENS, *READERS)) - _squares(params, NORM)


def step_scale(params: Params) -> Float[AnyArray, ""]:
    """gamma^2 + ||delta||^2 + alpha^2 - ||readers||^2, where alpha is trained."""
    return _squares(params, (*NORM, "alpha")) - _squares(params, READERS)


def memory_scale(params: Params) -> Float[AnyArray, ""]:
    """gamma^2 + ||delta||^2 - ||decoder||^2 - ||Xi||^2 / 2, in a model without attention."""
    return _squares(params, (*NORM,)) - _squares(params, ["decoder"]) - _squares(params, ["Xi"]) / 2


LAWS = {
    "heads": Law(2, head_balance),
    "token sums": Law(1, token_sums),
    "mean channel": Law(2, mean_channel),
    "token scale": Law(2, token_scale),
}


def balance(
    Wk: Float[AnyArray, "H Y D"], Wq: Float[AnyArray, "H Y D"]
) -> tuple[Float[AnyArray, "H Y D"], Float[AnyArray, "H Y D"]]:
    """The keys and queries of the same energy with Wk Wk^T = Wq Wq^T (eq-balance).

    With A = Wk Wk^T and B = Wq Wq^T of full rank, M^T M = A^-1/2 (A^1/2 B A^1/2)^1/2 A^-1/2
    does it. It is the shortest pair on the orbit of M, and gradient flow keeps it balanced.
    """
    A, B = Wk @ Wk.swapaxes(-1, -2), Wq @ Wq.swapaxes(-1, -2)
    root, inverse = _power(A, 0.5), _power(A, -0.5)
    M = _power(inverse @ _power(root @ B @ root, 0.5) @ inverse, 0.5)
    return M @ Wk, jnp.linalg.solve(M.swapaxes(-1, -2), Wq)


def _power(S: Float[AnyArray, "H Y Y"], exponent: float) -> Float[AnyArray, "H Y Y"]:
    """Power of symmetric positive definite matrices."""
    values, vectors = jnp.linalg.eigh(S)
    return (vectors * values[..., None, :] ** exponent) @ vectors.swapaxes(-1, -2)


# ---------------------------------------------------------------------------
# A digits network with the three symmetries of Kunin et al. 2021
# ---------------------------------------------------------------------------


def digits_network(seed: int, n_inputs: int, n_hidden: int, n_classes: int) -> Params:
    """Two hidden layers of as many units: batch norm after the first, softmax at the end."""
    sizes = {
        "scale": (n_hidden, n_inputs),
        "inner": (n_hidden, n_hidden),
        "outer": (n_classes, n_hidden),
    }
    rng = np.random.default_rng(seed)
    weights = {
        name: jnp.asarray((2 / shape[1]) ** 0.5 * rng.normal(size=shape), float)
        for name, shape in sizes.items()
    }
    return weights | {"inner_bias": jnp.zeros(n_hidden), "outer_bias": jnp.zeros(n_classes)}


def digits_loss(
    inputs: Float[AnyArray, "B inputs"], labels: Float[AnyArray, "B classes"], eps: float
) -> Callable[[Params], Float[AnyArray, ""]]:
    """loss(params): cross entropy over one batch, whose own mean and variance normalise it."""

    def loss(params: Params) -> Float[AnyArray, ""]:
        h = inputs @ params["scale"].T
        h = jax.nn.relu((h - h.mean(axis=0)) / jnp.sqrt(h.var(axis=0) + eps))
        h = jax.nn.relu(h @ params["inner"].T + params["inner_bias"])
        logits = h @ params["outer"].T + params["outer_bias"]
        return -jnp.mean(jnp.sum(labels * jax.nn.log_softmax(logits), axis=1))

    return loss


# Translation: the same vector added to all classes. Scale: a unit before batch norm. Rescale: a
# unit between two layers, in / c and out * c.
DIGITS_LAWS = {
    "translation": Law(1, lambda p: jnp.append(p["outer"].sum(axis=0), p["outer_bias"].sum())),
    "scale": Law(2, lambda p: jnp.sum(p["scale"] ** 2, axis=1)),
    "rescale": Law(
        2,
        lambda p: (
            jnp.sum(p["outer"] ** 2, axis=0)
            - jnp.sum(p["inner"] ** 2, axis=1)
            - p["inner_bias"] ** 2
        ),
    ),
}
