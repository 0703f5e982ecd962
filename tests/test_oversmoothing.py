"""The digit classifiers, their measures, their loss landscape, and the data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from etlib import landscape, oversmoothing
from etlib.data import digits as dg
from etlib.oversmoothing import Experiment
from etlib.spectral import Classifier, ClassifierConfig, normalise

NAMES = ("plus", "plain", "minus", "energy")
SMALL = {"depth": 2, "token_dim": 8, "mlp_dim": 16, "n_heads": 2, "head_dim": 4, "n_memories": 12}


@pytest.fixture(scope="module")
def data():
    return dg.digits()


@pytest.fixture(scope="module", params=NAMES)
def model(request):
    return Classifier(ClassifierConfig(name=request.param, **SMALL), rngs=nnx.Rngs(0))


# --- data ---------------------------------------------------------------------


def test_split_is_fixed_whole_and_disjoint(data):
    assert [len(part.labels) for part in data] == [1077, 360, 360]
    rows = [image.tobytes() for part in data for image in part.images]
    assert len(rows) == 1797 and len(set(rows)) > 1790  # a few digits are drawn alike
    for again, part in zip(dg.digits(), data, strict=True):
        np.testing.assert_array_equal(again.images, part.images)
    assert all(set(part.labels) == set(range(10)) for part in data)


@given(fraction=st.floats(0.001, 1.0), seed=st.integers(0, 9))
@settings(max_examples=15, deadline=None)
def test_subset_keeps_every_class_in_proportion(fraction, seed):
    split = dg.Split(
        np.zeros((100, 8, 8), np.float32), np.repeat(np.arange(10, dtype=np.int32), 10)
    )
    part = dg.subset(split, fraction, seed)
    counts = np.bincount(part.labels, minlength=10)
    assert (counts == max(1, round(fraction * 10))).all()


def test_subset_refuses_a_fraction_that_is_none(data):
    with pytest.raises(ValueError, match=r"not in \(0, 1\]"):
        dg.subset(data.train, 0.0, 0)


def test_corruptions(data):
    images = data.test.images[:20]
    noisy = dg.corrupt(images, "noise", 0.3)
    assert np.std(noisy - images) == pytest.approx(0.3, rel=0.05)
    np.testing.assert_array_equal(noisy, dg.corrupt(images, "noise", 0.3))
    blurred = dg.corrupt(images, "blur", 1.0)
    assert blurred.std(axis=(1, 2)).mean() < images.std(axis=(1, 2)).mean()
    pale = dg.corrupt(images, "contrast", 0.2)
    np.testing.assert_allclose(pale.std(axis=(1, 2)), 0.2 * images.std(axis=(1, 2)), rtol=1e-5)
    assert all(dg.corrupt(images, k, 0.5).dtype == np.float32 for k in dg.SEVERITIES)
    with pytest.raises(ValueError, match="noise, blur, contrast"):
        dg.corrupt(images, "rain", 1.0)


# --- models -------------------------------------------------------------------


def test_trajectory_ends_where_the_model_reads(model, data):
    images = jnp.asarray(data.test.images[:5])
    path = model.trajectory(images)
    assert path.tokens.shape == (3, 5, 17, 8) and path.attention.shape == (2, 5, 17, 17)
    np.testing.assert_allclose(model.read(path.tokens[-1]), model(images), atol=1e-5)
    np.testing.assert_allclose(path.attention.sum(-1), 1, atol=1e-5)
    once = model.layers.one(path.tokens[1], 1)
    np.testing.assert_allclose(once, path.tokens[2], atol=1e-5)


@pytest.mark.parametrize("name, lower, upper", [("plus", 0, 1), ("minus", -1, 0)])
def test_sign_of_the_spectrum_holds_whatever_the_parameters(name, lower, upper):
    model = Classifier(ClassifierConfig(name=name, **SMALL), rngs=nnx.Rngs(1))
    model.layers.psi[...] = 3 * jax.random.normal(jax.random.key(0), model.layers.psi.shape)
    H = np.asarray(model.layers.H())
    np.testing.assert_allclose(H, H.swapaxes(1, 2), atol=1e-6)
    values = np.linalg.eigvalsh(H)
    assert lower - 1e-6 < values.min() and values.max() < upper + 1e-6


def test_the_three_start_with_the_same_norm_of_H():
    config = {"depth": 4, "token_dim": 32}
    norms = [
        float(
            jnp.linalg.norm(
                Classifier(ClassifierConfig(name=n, **config), rngs=nnx.Rngs(0)).layers.H()
            )
        )
        for n in ("plus", "plain", "minus")
    ]
    assert norms == pytest.approx([norms[0]] * 3, rel=0.05)


def test_normalise_is_a_layer_norm_without_parameters():
    x = np.random.default_rng(0).normal(size=(3, 16)).astype(np.float32)
    expected = nnx.LayerNorm(16, epsilon=1e-5, rngs=nnx.Rngs(0))(jnp.asarray(x))
    np.testing.assert_allclose(normalise(jnp.asarray(x)), expected, atol=1e-5)


def test_jacobian_of_an_energy_step_has_real_eigenvalues(data):
    model = Classifier(ClassifierConfig(name="energy", **SMALL), rngs=nnx.Rngs(2))
    found = oversmoothing.layer_jacobians(model, data.test.images[0], 2)
    assert max(found["jacobian_turn"]) < 1e-6
    assert all(0 <= share <= 1 + 1e-9 for share in found["jacobian_constant"])


# --- training and measures ------------------------------------------------------


def test_training_lowers_the_loss(data):
    config = ClassifierConfig(name="minus", **SMALL)
    trained = oversmoothing.fit(Experiment(config, 60, 32, train_fraction=0.5, seed=3), data)
    images, labels = map(jnp.asarray, data.validation)
    assert oversmoothing.mean_loss(trained, images, labels) < 0.95 * np.log(10)


@pytest.mark.parametrize("name", ["plus", "minus"])
def test_measures_of_a_model(name, data):
    model = Classifier(ClassifierConfig(name=name, **SMALL), rngs=nnx.Rngs(0))
    metrics = oversmoothing.measure(model, data, n_images=4)
    assert len(metrics["high_low"]) == len(metrics["cosine"]) == 3
    images, labels = data.test
    expected = (np.asarray(model(jnp.asarray(images))).argmax(-1) == labels).mean()
    assert metrics["accuracy"] == pytest.approx(expected)
    assert all(len(metrics[f"accuracy_{kind}"]) == 4 for kind in dg.SEVERITIES)
    assert metrics["constant_wins"] == [float(name == "plus")] * 2


# --- loss landscape -------------------------------------------------------------


def test_hessian_ends_against_the_dense_hessian():
    def loss(params):
        return jnp.sum(jnp.tanh(params["a"] @ params["b"]) ** 2) + jnp.prod(params["b"])

    params = {"a": jax.random.normal(jax.random.key(0), (3, 4)), "b": jnp.arange(1.0, 5) / 4}
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    dense = np.linalg.eigvalsh(jax.hessian(lambda v: loss(unravel(v)))(flat))
    smallest, largest = landscape.hessian_ends(loss, params, 2, 1e-6)
    np.testing.assert_allclose(smallest, dense[:2], atol=1e-4)
    np.testing.assert_allclose(largest, dense[-2:], atol=1e-4)


@pytest.mark.parametrize("name", ["minus", "energy"])
def test_directions_are_filter_normalised(name):
    model = Classifier(ClassifierConfig(name=name, **SMALL), rngs=nnx.Rngs(0))
    params = nnx.state(model, nnx.Param)
    stacked = oversmoothing.stacked_layers(params)
    direction = landscape.filter_normalised(params, jax.random.key(0), stacked)
    for d, p, many in zip(*map(jax.tree.leaves, (direction, params, stacked)), strict=True):
        if p.ndim - many < 2:
            assert not np.any(d)
        else:
            np.testing.assert_allclose(
                np.linalg.norm(d, axis=-2), np.linalg.norm(p, axis=-2), rtol=1e-4, atol=1e-7
            )


def test_middle_of_a_slice_is_the_loss(data):
    model = Classifier(ClassifierConfig(name="minus", **SMALL), rngs=nnx.Rngs(0))
    plane = oversmoothing.slice_around(model, data, 16, 0.5, 3)
    loss, params = oversmoothing.as_loss(model, *(part[:16] for part in data.train))
    assert plane.shape == (3, 3) and plane[1, 1] == pytest.approx(float(loss(params)), rel=1e-5)


def test_untrained_models_guess(model, data):
    images, labels = map(jnp.asarray, data.validation)
    assert oversmoothing.mean_loss(model, images, labels) == pytest.approx(np.log(10), rel=1e-5)
