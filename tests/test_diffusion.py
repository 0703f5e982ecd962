"""Diffusion of images against SciPy and against loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage

from etlib import diffusion as df

KINDS = ("heat", "perona-malik", "total-variation")


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def image(seed=0, height=7, width=5, channels=3):
    return np.random.default_rng(seed).random((height, width, channels))


def test_heat_is_the_laplacian_with_closed_borders():
    x = image()
    expected = x + 0.2 * ndimage.laplace(x, mode="nearest", axes=(0, 1))
    np.testing.assert_allclose(df.diffuse(jnp.asarray(x), "heat", 1), expected, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_as_printed(kind):
    x, kappa, dt = image(), 0.3, 0.2
    g = {
        "heat": lambda s: 1.0,
        "perona-malik": lambda s: np.exp(-((s / kappa) ** 2)),
        "total-variation": lambda s: 1 / np.sqrt(1 + (s / kappa) ** 2),
    }[kind]
    expected = x.copy()
    for i, j in np.ndindex(7, 5):
        for k, m in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)):
            if 0 <= k < 7 and 0 <= m < 5:
                difference = x[k, m] - x[i, j]
                expected[i, j] += dt * g(np.linalg.norm(difference)) * difference
    ours = df.diffuse(jnp.asarray(x), kind, 1, kappa, dt)
    np.testing.assert_allclose(ours, expected, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_mean_stays_and_no_value_leaves_the_range(kind):
    x = image(1)
    after = df.diffuse(jnp.asarray(x), kind, 300, 0.2)
    np.testing.assert_allclose(after.mean((0, 1)), x.mean((0, 1)))
    assert x.min() <= after.min() and after.max() <= x.max()


def test_an_edge_survives_perona_malik_and_not_heat():
    step = np.zeros((4, 10, 1))
    step[:, 5:] = 1
    jump = {
        kind: float(jnp.diff(df.diffuse(jnp.asarray(step), kind, 100, 0.1)[0, 4:6, 0])[0])
        for kind in KINDS
    }
    assert jump["perona-malik"] > 0.999 > jump["total-variation"] > jump["heat"]


def test_neighbourhood_of_a_pixel():
    x = image(channels=2)
    patches = df.neighbourhoods(jnp.asarray(x))
    assert patches.shape == (35, 18)
    middle = np.sort(np.asarray(patches).reshape(7, 5, 18)[3, 2])
    np.testing.assert_array_equal(middle, np.sort(x[2:5, 1:4].ravel()))


def test_nonlocal_weights_as_printed_and_as_attention():
    p = np.random.default_rng(0).normal(size=(6, 4))
    kernel = np.exp(-((p[:, None] - p[None]) ** 2).sum(-1) / 0.7**2)
    expected = kernel / kernel.sum(1, keepdims=True)
    np.testing.assert_allclose(df.nonlocal_weights(jnp.asarray(p), 0.7), expected)
    unit = jnp.asarray(p / np.linalg.norm(p, axis=1, keepdims=True))
    np.testing.assert_allclose(df.attention_weights(unit, 0.7), df.nonlocal_weights(unit, 0.7))


def test_a_nonlocal_step_of_time_one_averages():
    x = image()
    A = df.nonlocal_weights(df.neighbourhoods(jnp.asarray(x)), 1.0)
    expected = (A @ x.reshape(35, 3)).reshape(x.shape)
    np.testing.assert_allclose(df.nonlocal_diffuse(jnp.asarray(x), A, 1), expected)


def test_another_conductivity_is_refused():
    with pytest.raises(ValueError, match="heat, perona-malik or total-variation"):
        df.diffuse(jnp.asarray(image()), "magic", 1)
