"""Symmetries, conserved quantities and their predicted decay, drift and oscillation."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from etlib import conservation as co
from etlib import energy as en
from etlib import learning_dynamics as ld
from etlib.chapters.conservation_laws import PRESETS
from etlib.data.photos import photograph

D, H, Y, N, P, EPS = 6, 2, 3, 4, 12, 1e-5
MODEL = co.Model(D, H, Y, 5, 2, 0.5, activation=en.Softmax(1.0))
SEEDS = st.integers(0, 10_000)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def example(seed, model=MODEL):
    """Parameters of order one, and a batch of patches."""
    rng = np.random.default_rng(seed)
    params = {k: v + 0.1 * rng.normal(size=v.shape) for k, v in model.init(seed, N, P).items()}
    params["alpha"] = jnp.asarray(model.alpha, float)  # trained too, for the law that needs it
    masked = rng.permuted(np.tile([True, True, False, False], (3, 1)), axis=1)
    return params, rng.normal(size=(3, N, P)), masked


@partial(jax.jit, static_argnames="model")
def slopes(params, patches, masked, eps, model=MODEL):
    """Loss, its gradient by the parameters and by eps."""
    loss = co.masked_error(model, patches, masked)
    value, (by_params, by_eps) = jax.value_and_grad(loss, argnums=(0, 1))(params, eps)
    return value, by_params, by_eps


def gradient_of(patches, masked, eps=EPS):
    return lambda params: slopes(params, patches, masked, eps)[1]


def antisymmetric(rng):
    C = np.eye(D) - 1 / D
    A = rng.normal(size=(D, D))
    return C @ (A - A.T) @ C


def cosine(a, b):
    return float(co.inner(a, b) / co.norm(a) / co.norm(b))


@jax.jit
def moved_and_generators(params, seed_arrays, s):
    B, A, shift = seed_arrays
    one = jnp.eye(D)
    families = {
        "heads": lambda s: co.mix_heads(params, jnp.eye(Y) + s * B),
        "token sums": lambda s: co.shift_tokens(params, jax.tree.map(lambda v: s * v, shift)),
        "mean channel": lambda s: co.rescale_mean(params, jnp.exp(s)),
        "token scale": lambda s: co.scale_tokens(params, jnp.exp(s)),
        "step scale": lambda s: co.scale_step(params, jnp.exp(s)),
        "rotation": lambda s: co.rotate_tokens(
            params, jnp.linalg.solve(one - s * A / 2, one + s * A / 2)
        ),
    }
    return {name: (action(s), co.generator(action)) for name, action in families.items()}


def directions(seed):
    rng = np.random.default_rng(seed)
    shift = {
        "encoder": rng.normal(size=P),
        "encoder_bias": np.asarray(rng.normal()),
        "mask_token": np.asarray(rng.normal()),
        "position": rng.normal(size=N),
    }
    return rng.normal(size=(H, Y, Y)) / Y, antisymmetric(rng), shift


@given(seed=SEEDS, s=st.floats(-0.3, 0.3))
@settings(max_examples=20, deadline=None)
def test_a_symmetry_leaves_the_loss_and_the_gradient_has_no_component_along_it(seed, s):
    params, patches, masked = example(seed)
    for name, (moved, generator) in moved_and_generators(params, directions(seed), s).items():
        eps = 0.0 if name == "token scale" else EPS
        value, gradient, _ = slopes(params, patches, masked, eps)
        assert slopes(moved, patches, masked, eps)[0] == pytest.approx(float(value), rel=1e-9), name
        assert abs(cosine(gradient, generator)) < 1e-10, name


@given(seed=SEEDS)
@settings(max_examples=10, deadline=None)
def test_eps_breaks_the_token_scale_at_the_predicted_rate(seed):
    params, patches, masked = example(seed)
    _, generator = moved_and_generators(params, directions(seed), 0.1)["token scale"]
    for eps in (1e-5, 1e-1):
        _, gradient, by_eps = slopes(params, patches, masked, eps)
        found = co.inner(gradient, generator)
        np.testing.assert_allclose(found, -2 * eps * by_eps, rtol=1e-7, atol=1e-13)
        scaled = slopes(co.scale_tokens(params, 2.0), patches, masked, eps)[0]
        same = slopes(params, patches, masked, eps / 4)[0]
        assert scaled == pytest.approx(float(same), rel=1e-10)


def test_the_memories_own_law_needs_relu_and_no_attention():
    params, patches, masked = example(2)
    alone = co.Model(D, H, Y, 5, 2, 0.5, parts=("hopfield",))
    for model, exact in ((alone, True), (MODEL, False)):
        value = slopes(params, patches, masked, EPS, model)[0]
        moved = slopes(co.scale_memories(params, 1.5), patches, masked, EPS, model)[0]
        assert bool(abs(moved / value - 1) < 1e-12) is exact


def test_laws_are_gradients_of_their_generators_and_rotations_are_not():
    """grad Q = 2 v for quadratic laws; the rotation's Jacobian is antisymmetric."""
    params, _, _ = example(3)
    found = moved_and_generators(params, directions(3), 0.1)
    memories = co.generator(lambda s: co.scale_memories(params, jnp.exp(s)))
    found["memory scale"] = (None, memories)
    laws = {
        "mean channel": co.mean_channel,
        "token scale": co.token_scale,
        "step scale": co.step_scale,
        "memory scale": co.memory_scale,
    }
    for name, law in laws.items():
        generator = found[name][1]
        by_law = jax.grad(law)(params)
        for name in params:
            np.testing.assert_allclose(by_law[name], 2 * generator[name], atol=1e-12)
    B = np.zeros((H, Y, Y))
    B[0, 0, 1] = B[0, 1, 0] = 1
    heads = co.generator(lambda s: co.mix_heads(params, jnp.eye(Y) + s * B))
    by_law = jax.grad(lambda q: -2 * co.head_balance(q)[0, 0, 1])(params)
    for name in ("Wk", "Wq"):
        np.testing.assert_allclose(by_law[name], 2 * heads[name], atol=1e-12)


def test_the_order_of_memories_does_not_matter_and_twins_stay_twins():
    params, patches, masked = example(4)
    value = slopes(params, patches, masked, EPS)[0]
    permuted = co.permute_memories(params, np.array([3, 1, 4, 0, 2]))
    assert slopes(permuted, patches, masked, EPS)[0] == pytest.approx(float(value), rel=1e-13)
    params["Xi"] = params["Xi"].at[1].set(params["Xi"][0])
    trained, _ = ld.descend(
        gradient_of(patches, masked), params, lambda *_: 0, learning_rate=0.1, n_updates=5
    )
    np.testing.assert_allclose(trained["Xi"][0], trained["Xi"][1], rtol=1e-13)
    assert not np.allclose(trained["Xi"][0], params["Xi"][0], rtol=1e-6)


# --- training ----------------------------------------------------------------


def laws_of(theta, gradient, v):
    kinds = {"law": theta, "gradient": gradient, "velocity": v}
    return {
        k: {n: np.asarray(law.value(tree)) for n, law in co.LAWS.items()}
        for k, tree in kinds.items()
    }


@given(seed=SEEDS, rate=st.sampled_from([0.02, 0.1]), decay=st.sampled_from([0.0, 0.3]))
@settings(max_examples=6, deadline=None)
def test_one_step_identity(seed, rate, decay):
    """Q <- (1 - eta lambda)^2 Q + eta^2 Q(gradient), exactly; linear laws only decay."""
    params, patches, masked = example(seed)
    gradient = gradient_of(patches, masked)
    _, seen = ld.descend(
        gradient, params, laws_of, learning_rate=rate, n_updates=6, weight_decay=decay
    )
    for name in ("heads", "mean channel"):
        Q = seen["law"][name]
        expected = ld.drift(Q[0], seen["gradient"][name], rate, decay)
        np.testing.assert_allclose(Q, expected, atol=1e-12)
    sums = seen["law"]["token sums"]
    factors = (1 - rate * decay) ** np.arange(6)[:, None]
    np.testing.assert_allclose(sums, factors * sums[0], atol=1e-12)


def test_integrators_conserve_to_their_order_and_the_midpoint_rule_to_rounding():
    params, patches, masked = example(5)
    gradient = gradient_of(patches, masked)

    def moved(theta):
        return np.abs(co.head_balance(theta) - co.head_balance(params)).max()

    for name, (_, order) in ld.SOLVERS.items():
        coarse, fine = (moved(ld.fixed_steps(gradient, params, 0.4, n, name)) for n in (8, 16))
        assert fine < coarse
        assert np.log2(coarse / fine) > order - 0.4, name
    assert moved(ld.implicit_midpoint(gradient, params, 0.4, 4)) < 1e-13
    euler = ld.fixed_steps(gradient, params, 0.4, 8, "Euler")
    plain, _ = ld.descend(gradient, params, lambda *_: 0, learning_rate=0.05, n_updates=8)
    np.testing.assert_allclose(euler["Xi"], plain["Xi"], rtol=1e-12)


def flow_slopes(theta, patches, masked, eps):
    return slopes(theta, patches, masked, eps)[1:]


def flow_source(_, both, patches, masked, eps):
    return {"leak": 4 * eps * both[1], "heads": co.head_balance(both[0])}


TIMES = np.linspace(0, 1, 5)


def flow(params, patches, masked, decay, eps=1e-2):
    return ld.flow(
        flow_slopes,
        params,
        TIMES,
        patches,
        masked,
        jnp.asarray(eps),
        weight_decay=decay,
        source=flow_source,
    )


@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_flow_conserves_decays_and_adds_up_what_eps_leaks(decay):
    params, patches, masked = example(6)
    found = flow(params, patches, masked, decay)
    for name in ("heads", "token sums", "mean channel"):
        law = co.LAWS[name]
        Q = np.asarray(jax.vmap(law.value)(found.params))
        rate = ld.decay_rate(law.degree, decay)
        np.testing.assert_allclose(Q, np.multiply.outer(np.exp(-rate * TIMES), Q[0]), atol=1e-7)
    S = np.asarray(jax.vmap(co.token_scale)(found.params))
    leaked = S - np.exp(-2 * decay * TIMES) * S[0]
    np.testing.assert_allclose(leaked, found.integral["leak"], atol=1e-7)
    assert abs(leaked[-1]) > 1e-5
    sums = np.asarray(co.head_sum(found.params))
    assert np.abs(sums[-1] - np.exp(-2 * decay) * sums[0]).max() > 1e-3  # the sum is no law


def test_drift_tends_to_its_prediction_as_the_step_shrinks():
    params, patches, masked = example(7)
    predicted = flow(params, patches, masked, 0.0, EPS).integral["heads"][-1]
    misses = []
    for n in (20, 40):
        theta, _ = ld.descend(
            gradient_of(patches, masked), params, lambda *_: 0, learning_rate=1 / n, n_updates=n
        )
        found = (co.head_balance(theta) - co.head_balance(params)) * n
        misses.append(np.abs(found - predicted).max())
    assert 1.6 < misses[0] / misses[1] < 2.5


@given(
    degree=st.sampled_from([1, 2]),
    momentum=st.sampled_from([0.5, 0.9, 0.97]),
    decay=st.sampled_from([0.0, 0.02, 0.2]),
)
@settings(max_examples=18, deadline=None)
def test_oscillator_against_scipy(degree, momentum, decay):
    damping, frequency = ld.oscillator(degree, 0.1, decay, momentum)
    assert damping == pytest.approx((1 - momentum) / (0.1 * (1 + momentum)))
    assert frequency**2 == pytest.approx(2 * degree * decay / (0.1 * (1 + momentum)))
    times = np.linspace(0, 8, 401)
    drive = np.interp(times, [0, 2, 5, 8], [0.0, 1.0, -0.5, 0.2])

    def field(t, y):
        push = np.interp(t, times, drive)
        return [y[1], push - 2 * damping * y[1] - frequency**2 * y[0]]

    expected = solve_ivp(
        field, (0, 8), [1.5, 0.0], t_eval=times, rtol=1e-9, atol=1e-10, max_step=0.05
    ).y[0]
    np.testing.assert_allclose(
        ld.oscillate(times, np.array(1.5), damping, frequency, drive), expected, atol=1e-6
    )


def test_momentum_rings_as_the_oscillator_says():
    """A sum under momentum and decay; the error is of the order of the step."""
    params, patches, masked = example(8)
    gradient = gradient_of(patches, masked)
    misses = []
    for rate, n in ((0.04, 50), (0.02, 100)):
        _, seen = ld.descend(
            gradient,
            params,
            laws_of,
            learning_rate=rate,
            n_updates=n,
            weight_decay=0.5,
            momentum=0.9,
        )
        damping, frequency = ld.oscillator(1, rate, 0.5, 0.9)
        assert frequency > damping
        sums = seen["law"]["token sums"]
        expected = ld.oscillate(rate * np.arange(n), sums[0], damping, frequency)
        misses.append(np.abs(expected - sums).max() / np.abs(sums[0]).max())
    assert misses[0] < 0.1 and misses[1] < misses[0]


def test_adam_does_not_conserve_and_divergence_is_an_error():
    params, patches, masked = example(9)
    gradient = gradient_of(patches, masked)
    theta, _ = ld.descend(
        gradient, params, lambda *_: 0, learning_rate=0.01, n_updates=20, adam=True
    )
    assert np.abs(co.head_balance(theta) - co.head_balance(params)).max() > 1e-2

    def away(theta):
        return {name: -1e200 * value for name, value in theta.items()}

    with np.errstate(all="ignore"), pytest.raises(ld.Diverged, match="learning_rate"):
        ld.descend(away, params, lambda *_: 0, learning_rate=1e200, n_updates=3)


@given(seed=SEEDS)
@settings(max_examples=20, deadline=None)
def test_balance_keeps_the_energy_and_is_the_shortest_point_of_the_orbit(seed):
    rng = np.random.default_rng(seed)
    Wk, Wq = (jnp.asarray(rng.normal(size=(H, Y, D))) for _ in range(2))
    K, Q = co.balance(Wk, Wq)
    product = jnp.einsum("hyi,hyj->hij", Wk, Wq)
    np.testing.assert_allclose(jnp.einsum("hyi,hyj->hij", K, Q), product, atol=1e-9)
    np.testing.assert_allclose(co.head_balance({"Wk": K, "Wq": Q}), 0, atol=1e-8)
    length = jnp.sum(K**2) + jnp.sum(Q**2)
    assert length <= jnp.sum(Wk**2) + jnp.sum(Wq**2) + 1e-9
    M = expm(0.3 * rng.normal(size=(Y, Y)))
    moved = co.mix_heads({"Wk": K, "Wq": Q}, jnp.asarray(np.stack([M] * H)))
    assert length <= jnp.sum(moved["Wk"] ** 2) + jnp.sum(moved["Wq"] ** 2) + 1e-9


def test_sharpness_is_the_largest_eigenvalue():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(5, 5))
    A = jnp.asarray(A + A.T)
    found = ld.sharpness(lambda p: {"w": A @ p["w"]}, {"w": jnp.ones(5)}, tolerance=1e-9)
    assert found == pytest.approx(np.linalg.eigvalsh(A)[-1], rel=1e-6)


def test_digits_network_has_its_three_symmetries():
    rng = np.random.default_rng(0)
    theta = co.digits_network(0, 8, 6, 3)
    loss = co.digits_loss(
        jnp.asarray(rng.normal(size=(20, 8))), jnp.asarray(np.eye(3)[rng.integers(0, 3, 20)]), 0.0
    )
    gradient = jax.jit(jax.grad(loss))
    value = loss(theta)
    moved = theta | {
        "outer": 2.0 * theta["outer"] + 0.7,
        "inner": theta["inner"] / 2,
        "inner_bias": theta["inner_bias"] / 2,
        "scale": 3 * theta["scale"],
    }
    assert loss(moved) == pytest.approx(float(value), rel=1e-12)
    flow = ld.fixed_steps(gradient, theta, 1e-3, 10, "Tsit5")
    for name, law in co.DIGITS_LAWS.items():
        np.testing.assert_allclose(law.value(flow), law.value(theta), atol=1e-10, err_msg=name)


def test_crops_are_cut_masked_and_refused():
    photo = photograph("chelsea")
    patches, masked = co.masked_crops(photo, 0, 5, 16, 4, 6)
    assert patches.shape == (5, 16, 48) and (masked.sum(axis=1) == 6).all()
    with pytest.raises(ValueError, match="crop"):
        co.masked_crops(photo, 0, 5, 400, 4, 6)
    with pytest.raises(ValueError, match="mask some"):
        co.masked_crops(photo, 0, 5, 16, 4, 16)


def test_parameters_name_what_does_not_fit():
    with pytest.raises(ValueError, match="weight_decay"):
        type(PRESETS["book"]).model_validate(PRESETS["book"].model_dump() | {"weight_decay": 40.0})
