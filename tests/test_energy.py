"""`etlib.energy` against brute-force loops, autodiff, the released code's numbers and hamux."""

import math
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hamux import HAM, NeuronLayer
from hamux.lagrangians import lagr_layernorm
from hypothesis import given, settings
from hypothesis import strategies as st

from etlib import energy as en
from tests.oracles import brute_force

ACTIVATIONS = {
    "relu": (en.Relu(), brute_force.relu_potential),
    "softmax": (en.Softmax(0.7), lambda h: brute_force.softmax_potential(h, 0.7)),
    "power": (en.Power(3), lambda h: brute_force.power_potential(h, 3)),
}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def random_problem(seed, N=5, D=6, H=2, Y=3, K=7):
    """Tokens, weights and per-head beta, large enough for the softmax to be far from flat."""
    rng = np.random.default_rng(seed)
    return {
        "g": rng.normal(size=(N, D)),
        "Wk": rng.normal(size=(H, Y, D)),
        "Wq": rng.normal(size=(H, Y, D)),
        "Xi": rng.normal(size=(K, D)),
        "beta": rng.uniform(0.3, 2.0, size=H),
    }


def jnp_problem(seed, **sizes):
    return {name: jnp.asarray(value) for name, value in random_problem(seed, **sizes).items()}


energy_jit, gradient_jit = jax.jit(en.energy), jax.jit(en.energy_gradient)


def random_graph(seed, N, H):
    """A mask with an empty column (a query with nothing to attend to), and edge weights."""
    rng = np.random.default_rng(seed + 1000)
    mask = rng.random((N, N)) < 0.5
    mask[:, 0] = False
    return mask, rng.normal(size=(H, N, N))


# --- layer norm -------------------------------------------------------------


def test_layer_norm_and_lagrangian_as_printed():
    rng = np.random.default_rng(0)
    x, delta = rng.normal(size=(4, 6)), rng.normal(size=6)
    g = en.layer_norm(jnp.asarray(x), 1.3, jnp.asarray(delta), 1e-2)
    L = en.lagrangian(jnp.asarray(x), 1.3, jnp.asarray(delta), 1e-2)
    for A in range(4):
        np.testing.assert_allclose(g[A], brute_force.layer_norm(x[A], 1.3, delta, 1e-2), rtol=1e-12)
        assert L[A] == pytest.approx(brute_force.lagrangian(x[A], 1.3, delta, 1e-2), rel=1e-12)


def test_layer_norm_is_the_gradient_of_the_lagrangian():
    rng = np.random.default_rng(1)
    x, delta = jnp.asarray(rng.normal(size=8)), jnp.asarray(rng.normal(size=8))
    np.testing.assert_allclose(
        jax.grad(en.lagrangian)(x, 0.7, delta), en.layer_norm(x, 0.7, delta), rtol=1e-12
    )


@given(seed=st.integers(0, 99), scale=st.floats(1.0, 100.0), gamma=st.floats(0.1, 5.0))
@settings(max_examples=25, deadline=None)
def test_neuron_energy_is_of_order_eps(seed, scale, gamma):
    rng = np.random.default_rng(seed)
    x, delta = jnp.asarray(scale * rng.normal(size=(3, 16))), jnp.asarray(rng.normal(size=16))
    energy = en.neuron_energy(x, gamma, delta, 1e-5)
    predicted = -16 * gamma * 1e-5 / np.sqrt(x.var(axis=-1) + 1e-5)
    magnitude = 16 * gamma * scale  # the two large terms whose difference it is
    np.testing.assert_allclose(energy, predicted, atol=1e-13 * magnitude + 1e-15)
    assert np.all(np.abs(energy) <= 16 * gamma * 1e-5 / x.std(axis=-1) + 1e-13 * magnitude)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_constant_token_maps_to_the_bias_with_finite_derivatives(value):
    x, delta = jnp.full(3, value), jnp.arange(3.0)
    np.testing.assert_array_equal(en.layer_norm(x, 1.0, delta), delta)
    assert np.isfinite(jax.jacobian(en.layer_norm)(x, 1.0, delta)).all()
    assert np.isfinite(jax.hessian(en.lagrangian)(x, 1.0, delta)).all()


# --- attention --------------------------------------------------------------


@pytest.mark.parametrize("self_attention", [True, False])
@pytest.mark.parametrize("graph", ["none", "mask", "weights", "mask and weights"])
def test_attention_energy_as_printed(self_attention, graph):
    p = random_problem(2)
    N, H = 5, 2
    mask, weights = random_graph(2, N, H)
    mask = mask if "mask" in graph else None
    weights = weights if "weights" in graph else None
    allowed = np.ones((N, N), bool) if mask is None else mask
    if not self_attention:
        allowed = allowed & ~np.eye(N, dtype=bool)

    def brute(g):
        return brute_force.attention_energy(g, p["Wk"], p["Wq"], p["beta"], allowed, weights)

    options = {"self_attention": self_attention, "mask": mask, "weights": weights}
    options = {
        k: jnp.asarray(v) if k != "self_attention" else v
        for k, v in options.items()
        if v is not None
    }
    arguments = [jnp.asarray(p[k]) for k in ("g", "Wk", "Wq", "beta")]
    assert en.attention_energy(*arguments, **options) == pytest.approx(brute(p["g"]), rel=1e-12)
    np.testing.assert_allclose(
        en.attention_gradient(*arguments, **options),
        brute_force.finite_difference(brute, p["g"]),
        atol=1e-7,
    )


def test_two_token_example_by_hand():
    """Scalar keys = queries = (1, 2), beta 1: the example that the first chapter computes."""
    g, one = jnp.array([[1.0], [2.0]]), jnp.ones((1, 1, 1))
    with_self = -(math.log(math.exp(1) + math.exp(2)) + math.log(math.exp(2) + math.exp(4)))
    assert with_self == pytest.approx(-6.4402, abs=1e-4)
    assert en.attention_energy(g, one, one, 1.0, self_attention=True) == pytest.approx(with_self)
    assert en.attention_energy(g, one, one, 1.0) == pytest.approx(-4.0)


def test_single_token_has_no_one_to_attend_to():
    p = jnp_problem(3, N=1)
    assert en.attention_energy(p["g"], p["Wk"], p["Wq"]) == 0.0
    np.testing.assert_array_equal(en.attention_gradient(p["g"], p["Wk"], p["Wq"]), 0.0)
    autodiff = jax.grad(en.attention_energy)(p["g"], p["Wk"], p["Wq"])
    np.testing.assert_array_equal(autodiff, 0.0)


def test_default_beta_is_one_over_root_head_dim():
    p = jnp_problem(4)
    assert en.attention_energy(p["g"], p["Wk"], p["Wq"]) == pytest.approx(
        float(en.attention_energy(p["g"], p["Wk"], p["Wq"], 3**-0.5))
    )


def test_huge_logits_stay_finite():
    p = jnp_problem(5)
    g = 1e4 * p["g"]
    assert np.isfinite(en.attention_energy(g, p["Wk"], p["Wq"], p["beta"]))
    assert np.isfinite(en.attention_gradient(g, p["Wk"], p["Wq"], p["beta"])).all()


# --- Hopfield ---------------------------------------------------------------


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_hopfield_energy_as_printed(name):
    activation, potential = ACTIVATIONS[name]
    p = random_problem(6)

    def brute(g):
        return brute_force.hopfield_energy(g, p["Xi"], potential)

    g, Xi = jnp.asarray(p["g"]), jnp.asarray(p["Xi"])
    assert en.hopfield_energy(g, Xi, activation) == pytest.approx(brute(p["g"]), rel=1e-12)
    np.testing.assert_allclose(
        en.hopfield_gradient(g, Xi, activation),
        brute_force.finite_difference(brute, p["g"]),
        atol=1e-6,
    )


def test_power_two_is_relu():
    p = jnp_problem(7)
    np.testing.assert_allclose(
        en.hopfield_gradient(p["g"], p["Xi"], en.Power(2)),
        en.hopfield_gradient(p["g"], p["Xi"], en.Relu()),
        rtol=1e-12,
    )


# --- the whole --------------------------------------------------------------


@partial(jax.jit, static_argnames=("activation", "self_attention"))
def closed_form_and_autodiff(g, *parameters, activation, **options):
    return (
        en.energy_gradient(g, *parameters, activation, **options),
        jax.grad(en.energy)(g, *parameters, activation, **options),
    )


@given(
    seed=st.integers(0, 10_000),
    N=st.sampled_from([1, 5]),
    self_attention=st.booleans(),
    activation=st.sampled_from([a for a, _ in ACTIVATIONS.values()]),
    masked=st.booleans(),
    weighted=st.booleans(),
    n_valid=st.integers(1, 5),
)
@settings(max_examples=60, deadline=None)
def test_closed_form_is_the_gradient(
    seed, N, self_attention, activation, masked, weighted, n_valid
):
    p = random_problem(seed, N=N)
    mask, weights = random_graph(seed, N, 2)
    closed, autodiff = closed_form_and_autodiff(
        *(p[k] for k in ("g", "Wk", "Wq", "Xi", "beta")),
        activation=activation,
        self_attention=self_attention,
        mask=mask if masked else np.ones_like(mask),
        weights=weights if weighted else np.ones_like(weights),
        valid=np.arange(N) < n_valid,
    )
    np.testing.assert_allclose(closed, autodiff, atol=1e-12 * (1 + np.abs(autodiff).max()))


def test_leading_batch_axes():
    """A (2, 3) batch, with graphs of its own or one for all, equals its elements."""
    batch = [[jnp_problem(10 * i + j) for j in range(3)] for i in range(2)]
    p = batch[0][0]
    g = jnp.stack([jnp.stack([q["g"] for q in row]) for row in batch])
    arguments = (p["Wk"], p["Wq"], p["Xi"], p["beta"])
    masks = jnp.asarray(np.random.default_rng(0).random((2, 3, 5, 5)) < 0.6)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(1, 5, 5)))
    whole = en.energy(g, *arguments, mask=masks, weights=weights)
    gradient = en.energy_gradient(g, *arguments, mask=masks, weights=weights)
    assert whole.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            one = {"mask": masks[i, j], "weights": weights}
            assert whole[i, j] == pytest.approx(float(en.energy(g[i, j], *arguments, **one)))
            np.testing.assert_allclose(
                gradient[i, j], en.energy_gradient(g[i, j], *arguments, **one), rtol=1e-10
            )


@given(seed=st.integers(0, 10_000), extra=st.sampled_from([1, 3]))
@settings(max_examples=20, deadline=None)
def test_padding_changes_nothing(seed, extra):
    p = jnp_problem(seed)
    rest = (p["Wk"], p["Wq"], p["Xi"], p["beta"])
    junk = 10 * jnp.asarray(np.random.default_rng(seed).normal(size=(extra, 6)))
    padded, valid = jnp.concatenate([p["g"], junk]), jnp.arange(5 + extra) < 5
    alone, beside = energy_jit(p["g"], *rest), energy_jit(padded, *rest, valid=valid)
    assert beside == pytest.approx(float(alone), rel=1e-12)
    gradient = gradient_jit(padded, *rest, valid=valid)
    np.testing.assert_allclose(gradient[:5], gradient_jit(p["g"], *rest), rtol=1e-10)
    np.testing.assert_array_equal(gradient[5:], 0.0)


def test_permuting_tokens_permutes_the_gradient():
    p = jnp_problem(8)
    rest = (p["Wk"], p["Wq"], p["Xi"], p["beta"])
    order = jnp.array([3, 1, 4, 0, 2])
    assert en.energy(p["g"][order], *rest) == pytest.approx(float(en.energy(p["g"], *rest)))
    np.testing.assert_allclose(
        en.energy_gradient(p["g"][order], *rest),
        en.energy_gradient(p["g"], *rest)[order],
        rtol=1e-10,
    )


def test_bfloat16_tokens_give_float32_energies():
    p = {k: v.astype(jnp.bfloat16) for k, v in jnp_problem(9).items()}
    exact = {k: v.astype(jnp.float64) for k, v in p.items()}
    rounded = en.energy(*(p[k] for k in ("g", "Wk", "Wq", "Xi", "beta")))
    reference = en.energy(*(exact[k] for k in ("g", "Wk", "Wq", "Xi", "beta")))
    assert rounded.dtype == jnp.float32
    assert rounded == pytest.approx(float(reference), rel=2e-2)


def test_wrong_shapes_are_named():
    p = jnp_problem(11)
    with pytest.raises(Exception, match="Wq"):
        en.attention_energy(p["g"], p["Wk"], p["Wq"][:, :, :-1])


# --- independent programs ---------------------------------------------------


def test_hamux_gives_the_layer_norm_side_and_the_gradient():
    """The authors' HAMUX: one neuron layer a token, since its layer-norm Lagrangian counts delta
    once for every row of an array. It keeps the leak, so its gradient by g is x plus ours."""
    rng = np.random.default_rng(12)
    x, delta, gamma = rng.normal(size=(5, 6)), jnp.asarray(rng.normal(size=6)), 1.3
    p = jnp_problem(12)
    rest = (p["Wk"], p["Wq"], p["Xi"], p["beta"])
    names = tuple(f"token {A}" for A in range(5))
    layer = NeuronLayer(partial(lagr_layernorm, gamma=gamma, delta=delta), (6,))
    ham = HAM(
        neurons=dict.fromkeys(names, layer),
        hypersynapses={"energy": lambda *tokens: en.energy(jnp.stack(tokens), *rest)},
        connections=[(names, "energy")],
    )
    states = dict(zip(names, jnp.asarray(x), strict=True))
    activations = ham.activations(states)
    g = en.layer_norm(jnp.asarray(x), gamma, delta)
    np.testing.assert_allclose(jnp.stack([activations[n] for n in names]), g, rtol=1e-12)

    for name, token in states.items():
        ours = en.lagrangian(token, gamma, delta)
        assert ours == pytest.approx(float(layer.lagrangian(token)), rel=1e-13)
        theirs = layer.energy(activations[name], token)
        # The difference of two large terms: both round them.
        assert en.neuron_energy(token, gamma, delta) == pytest.approx(float(theirs), abs=1e-13)

    energy, gradient = ham.dEdact(activations, states, return_energy=True)
    whole = en.energy(g, *rest) + en.neuron_energy(jnp.asarray(x), gamma, delta).sum()
    assert whole == pytest.approx(float(energy), rel=1e-12)
    leaky = jnp.stack([gradient[n] for n in names])
    np.testing.assert_allclose(leaky - x, en.energy_gradient(g, *rest), atol=1e-12)


RELEASED = Path(__file__).parents[2] / "shared" / "oracles" / "released_image_block.npz"


def test_numbers_of_the_released_image_code():
    """Values computed by the authors' released JAX code on random weights, in float64."""
    if not RELEASED.exists():
        pytest.skip("the released code's numbers (shared/oracles) are not on this machine")
    d = {k: jnp.asarray(v) for k, v in np.load(RELEASED, allow_pickle=False).items()}
    g = en.layer_norm(d["x"], d["gamma"], d["delta"])
    np.testing.assert_allclose(g, d["g0"], atol=1e-14)
    gradient = en.energy_gradient(g, d["Wk"], d["Wq"], d["Xi"], self_attention=True)
    np.testing.assert_allclose(gradient, d["grad0"], atol=1e-13)
    energy = en.energy(g, d["Wk"], d["Wq"], d["Xi"], self_attention=True)
    assert energy == pytest.approx(float(d["energies"][0]), rel=1e-14)
    softmax = en.Softmax(float(d["softmax_hopfield_beta"]))
    assert en.hopfield_energy(g, d["Xi"], softmax) == pytest.approx(
        float(d["softmax_hopfield_energy0"]), rel=1e-13
    )
    np.testing.assert_allclose(
        en.hopfield_gradient(g, d["Xi"], softmax), d["softmax_hopfield_grad0"], atol=1e-13
    )
