"""Training as a dynamical system: gradient flow, descent with finite steps, what theory predicts.

Time is t = learning rate times number of updates, so that runs of different steps compare. The
predictions are those of Kunin et al. 2021 for conserved quantities of degree 1 (translations)
and 2 (scalings and linear maps), where a quadratic quantity Q may be taken of a gradient too.
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from scipy.linalg import expm
from scipy.sparse.linalg import LinearOperator, eigsh

from etlib.errors import UserError

Params = Mapping[str, Array | np.ndarray]
Gradient = Callable[..., Any]

SOLVERS = {  # explicit Runge-Kutta methods, by their order
    "Euler": (None, 1),
    "Midpoint": (diffrax.Midpoint.tableau, 2),
    "Bosh3": (diffrax.Bosh3.tableau, 3),
    "Tsit5": (diffrax.Tsit5.tableau, 5),
}


class Diverged(UserError):
    """Training left the finite numbers."""


# ---------------------------------------------------------------------------
# Gradient flow
# ---------------------------------------------------------------------------


class Flow(NamedTuple):
    """Parameters at the times asked for, and the integral of the source up to them."""

    params: Params
    integral: Any


@partial(jax.jit, static_argnames=("gradient", "source"))
def flow(
    gradient: Gradient,
    params: Params,
    times: Float[Array | np.ndarray, " times"],
    *args: Any,
    weight_decay: float | Float[Array, ""] = 0.0,
    source: Callable[..., Any] | None = None,
    tolerance: float | Float[Array, ""] = 1e-10,
) -> Flow:
    """Solve d theta/dt = -gradient(theta, *args) - weight_decay theta (eq-training-flow) by Dopri8.

    Besides, dI/dt = source(theta, gradient, *args) - 2 weight_decay I, from I = 0: what a source
    of a quadratic quantity adds up to. Where `gradient` returns a tuple, its first member is the
    gradient by theta, and the source sees all of it. The error of a step stays below `tolerance`.
    """

    start = dict(params)
    shapes = ()
    if source:
        shapes = jax.eval_shape(lambda p: source(p, gradient(p, *args), *args), start)
    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    flat, rebuild = ravel_pytree((start, zero))

    def field(_, state, args):
        theta, integral = rebuild(state)
        slopes = gradient(theta, *args)
        slope = slopes[0] if isinstance(slopes, tuple) else slopes
        velocity = jax.tree.map(lambda g, p: -g - weight_decay * p, slope, theta)
        added = source(theta, slopes, *args) if source else ()
        rate = jax.tree.map(lambda s, i: s - 2 * weight_decay * i, added, integral)
        return ravel_pytree((velocity, rate))[0]

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Dopri8(),
        t0=times[0],
        t1=times[-1],
        dt0=None,
        y0=flat,
        args=args,
        saveat=diffrax.SaveAt(ts=times),
        stepsize_controller=diffrax.PIDController(rtol=tolerance, atol=tolerance),
        max_steps=100_000,
    )
    return Flow(*jax.vmap(rebuild)(solution.ys))


def fixed_steps(
    gradient: Gradient, params: Params, time: float, n_steps: int, solver: str
) -> Params:
    """Gradient flow up to `time` by equal steps of one of `SOLVERS` (coefficients: diffrax)."""
    tableau, _ = SOLVERS[solver]
    rows = [] if tableau is None else tableau.a_lower
    last = np.ones(1) if tableau is None else tableau.b_sol
    h, theta = time / n_steps, dict(params)
    for _ in range(n_steps):
        slopes = [gradient(theta)]
        for row in rows:
            slopes.append(gradient(_moved(theta, [-h * float(a) for a in row], slopes)))
        theta = _moved(theta, [-h * float(b) for b in last], slopes)
    return theta


def implicit_midpoint(
    gradient: Gradient, params: Params, time: float, n_steps: int, sweeps: int = 40
) -> Params:
    """Gradient flow by theta' = theta - h gradient((theta + theta')/2), solved by sweeps.

    Quadratic conserved quantities are kept at any h: Q(theta') - Q(theta) is -2h times the
    product of gradient and generator at the midpoint, which is zero (Cooper 1987).
    """
    h, theta = time / n_steps, dict(params)
    for _ in range(n_steps):
        slope = gradient(theta)
        for _ in range(sweeps):
            slope, before = gradient(_moved(theta, [-h / 2], [slope])), slope
            if all(np.allclose(slope[k], before[k], rtol=1e-15, atol=1e-16) for k in slope):
                break
        theta = _moved(theta, [-h], [slope])
    return theta


def _moved(theta: Params, factors: Any, directions: list[Params]) -> Params:
    """theta + sum of factor times direction, in NumPy: small arrays, many steps."""
    pairs = list(zip(factors, directions, strict=True))
    return {
        k: np.asarray(v) + sum(f * np.asarray(d[k]) for f, d in pairs) for k, v in theta.items()
    }


# ---------------------------------------------------------------------------
# Descent with finite steps
# ---------------------------------------------------------------------------


def descend(
    gradient: Gradient,
    params: Params,
    observe: Callable[[Params, Params, Params], Any],
    *,
    learning_rate: float,
    n_updates: int,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    adam: bool = False,
) -> tuple[Params, Any]:
    """v <- momentum v - gradient - weight_decay theta; theta <- theta + learning_rate v.

    This is eq-training-momentum. Returns the last parameters, and observe(theta, gradient, v) of
    every update, stacked: theta before it, its gradient, the v taken. With `adam`, v is
    Adam's direction instead (Kingma and Ba 2015, usual constants; no decay, no momentum): every
    weight divided by the size of its own gradients, a metric that is not the plain one.

    Raises Diverged when a parameter is no longer finite.
    """
    theta = {k: np.asarray(p) for k, p in params.items()}
    v = {k: np.zeros_like(p) for k, p in theta.items()}
    square, seen = v, []
    for n in range(1, n_updates + 1):
        slope = {k: np.asarray(g) for k, g in gradient(theta).items()}
        if adam:
            mean = {k: 0.9 * v[k] - 0.1 * slope[k] for k in v}
            square = {k: 0.999 * square[k] + 0.001 * slope[k] ** 2 for k in v}
            move = {
                k: mean[k] / (1 - 0.9**n) / (np.sqrt(square[k] / (1 - 0.999**n)) + 1e-8) for k in v
            }
        else:
            mean = {k: momentum * v[k] - slope[k] - weight_decay * theta[k] for k in v}
            move = mean
        v = mean
        seen.append(observe(theta, slope, move))
        theta = {k: p + learning_rate * move[k] for k, p in theta.items()}
    if not all(np.isfinite(p).all() for p in theta.values()):
        raise Diverged(f"training diverged: learning_rate {learning_rate} is too large")
    return theta, jax.tree.map(lambda *values: np.stack(values), *seen)


# ---------------------------------------------------------------------------
# Predictions for conserved quantities
# ---------------------------------------------------------------------------


def decay_rate(degree: int, weight_decay: float, learning_rate: float = 0.0) -> float:
    """Rate at which a quantity decays: degree times weight_decay in the flow (eq-weight-decay).

    At a finite step an update multiplies it by (1 - learning_rate weight_decay)^degree, which
    is the rate -degree log(1 - learning_rate weight_decay) / learning_rate.
    """
    if not learning_rate:
        return degree * weight_decay
    return -degree * np.log1p(-learning_rate * weight_decay) / learning_rate


def drift(
    initial: float | Float[Array | np.ndarray, "*q"],
    squares: Float[Array | np.ndarray, "updates *q"],
    learning_rate: float,
    weight_decay: float = 0.0,
) -> Float[np.ndarray, "updates *q"]:
    """A quadratic Q before each update of plain descent, from Q(0) and Q of the gradients.

    Q <- (1 - eta lambda)^2 Q + eta^2 Q(gradient), an identity (eq-one-step).
    """
    factor = (1 - learning_rate * weight_decay) ** 2

    values = [np.asarray(initial)]
    for square in squares[:-1]:
        values.append(factor * values[-1] + learning_rate**2 * np.asarray(square))
    return np.stack(values)


def oscillator(
    degree: int, learning_rate: float, weight_decay: float, momentum: float
) -> tuple[float, float]:
    """Damping Gamma and frequency Omega of Q'' + 2 Gamma Q' + Omega^2 Q = drive (eq-oscillator).

    Gamma = (1 - beta) / (eta (1 + beta)), Omega^2 = 2 degree lambda / (eta (1 + beta)): Kunin et
    al. 2021. Q rings where Omega > Gamma.
    """
    inertia = learning_rate * (1 + momentum) / 2
    return (1 - momentum) / (2 * inertia), float(np.sqrt(degree * weight_decay / inertia))


def oscillate(
    times: Float[np.ndarray, " times"],
    initial: float | Float[np.ndarray, "*q"],
    damping: float,
    frequency: float,
    drive: Float[np.ndarray, "times *q"] | None = None,
) -> Float[np.ndarray, "times *q"]:
    """Solve Q'' + 2 damping Q' + frequency^2 Q = drive from rest, at equally spaced times.

    The drive is taken as linear between the times, for which the solution is exact: a matrix
    exponential carries (Q, Q', drive, slope of the drive) across one interval.
    """
    initial = np.asarray(initial)
    drive = np.zeros((len(times), *initial.shape)) if drive is None else np.asarray(drive)
    h = times[1] - times[0]
    system = np.zeros((4, 4))
    system[0, 1] = system[1, 2] = system[2, 3] = 1
    system[1, 0], system[1, 1] = -(frequency**2), -2 * damping
    across = expm(h * system)[:2]
    states = [np.stack([initial, np.zeros_like(initial)])]
    for here, there in pairwise(drive):
        inputs = np.stack([*states[-1], here, (there - here) / h])
        states.append(np.tensordot(across, inputs, axes=1))
    return np.stack([state[0] for state in states])


# ---------------------------------------------------------------------------
# Curvature
# ---------------------------------------------------------------------------


@partial(jax.jit, static_argnames=("gradient",))
def _hessian_product(gradient: Gradient, params: Params, direction: Params) -> Params:
    return jax.jvp(gradient, (params,), (direction,))[1]


def sharpness(gradient: Gradient, params: Params, seed: int = 0, tolerance: float = 1e-3) -> float:
    """Largest eigenvalue of the Hessian, by Lanczos (SciPy) on Hessian-vector products.

    Compiled once for a gradient, so that it can be followed along an orbit.
    """
    params = {name: np.asarray(p) for name, p in params.items()}
    ends = np.cumsum([p.size for p in params.values()])
    dtype = np.result_type(*params.values())

    def matvec(v):
        parts = np.split(v.ravel(), ends[:-1])
        direction = {
            name: part.astype(p.dtype).reshape(p.shape)
            for (name, p), part in zip(params.items(), parts, strict=True)
        }
        product = _hessian_product(gradient, params, direction)
        return np.concatenate([np.ravel(product[name]) for name in params])

    operator = LinearOperator((ends[-1], ends[-1]), matvec, dtype=dtype)
    start = np.random.default_rng(seed).normal(size=ends[-1]).astype(dtype)
    return float(eigsh(operator, k=1, which="LA", v0=start, tol=tolerance)[0][0])
