"""`etlib.edge_energy` against the dense energy, the printed loops, and autodiff."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etlib import edge_energy as ee
from etlib import energy as en
from tests.oracles import brute_force


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


energy_jit, gradient_jit = jax.jit(ee.attention_energy), jax.jit(ee.attention_gradient)
dense_energy_jit, dense_gradient_jit = (
    jax.jit(f, static_argnames="self_attention")
    for f in (en.attention_energy, en.attention_gradient)
)


def random_problem(seed, N=7, D=6, H=2, Y=3, density=0.4):
    """Tokens, weights, and a directed graph with a node that attends to nothing."""
    rng = np.random.default_rng(seed)
    allowed = rng.random((N, N)) < density  # (key B, query C), self-loops among them
    allowed[:, 0] = False
    receivers, senders = np.nonzero(allowed.T)
    g, Wk, Wq = rng.normal(size=(N, D)), rng.normal(size=(H, Y, D)), rng.normal(size=(H, Y, D))
    beta = rng.uniform(0.3, 2.0, size=H)
    weights = rng.normal(size=(H, N, N))
    g, Wk, Wq, beta = map(jnp.asarray, (g, Wk, Wq, beta))
    return (g, jnp.asarray(senders), jnp.asarray(receivers), Wk, Wq, beta), allowed, weights


def padded(problem, n_edges):
    """The problem with edges that are padding behind its own; and which edges are valid."""
    g, senders, receivers, *rest = problem
    extra = n_edges - len(senders)
    last = len(g) - 1
    senders, receivers = (jnp.pad(a, (0, extra), constant_values=last) for a in problem[1:3])
    return (g, senders, receivers, *rest), jnp.arange(n_edges) < n_edges - extra


@pytest.mark.parametrize("weighted", [False, True])
@given(seed=st.integers(0, 999), density=st.floats(0.0, 1.0))
@settings(max_examples=15, deadline=None)
def test_edges_equal_dense(weighted, seed, density):
    problem, allowed, weights = random_problem(seed, density=density)
    (g, senders, receivers, *rest), valid = padded(problem, 49)  # one shape: one compilation
    dense = {"self_attention": True, "mask": jnp.asarray(allowed)}
    sparse = {"valid": valid}
    if weighted:
        dense["weights"] = jnp.asarray(weights)
        sparse["weights"] = dense["weights"][:, senders, receivers].T
    energy = energy_jit(g, senders, receivers, *rest, **sparse)
    assert energy.shape == (7,) and energy[0] == 0
    np.testing.assert_allclose(
        energy.sum(), dense_energy_jit(g, *rest, **dense), rtol=1e-12, atol=1e-12
    )
    np.testing.assert_allclose(
        gradient_jit(g, senders, receivers, *rest, **sparse),
        dense_gradient_jit(g, *rest, **dense),
        rtol=1e-11,
        atol=1e-11,
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_energy_as_printed_and_gradient_its_derivative(weighted):
    problem, allowed, weights = random_problem(3)
    g, senders, receivers, Wk, Wq, beta = problem
    options = {"weights": jnp.asarray(weights)[:, senders, receivers].T} if weighted else {}
    printed = brute_force.attention_energy(
        *map(np.asarray, (g, Wk, Wq, beta)), allowed, weights if weighted else None
    )
    assert float(energy_jit(*problem, **options).sum()) == pytest.approx(printed)
    derivative = jax.jit(jax.grad(lambda g: ee.attention_energy(g, *problem[1:], **options).sum()))(
        g
    )
    np.testing.assert_allclose(
        gradient_jit(*problem, **options), derivative, rtol=1e-11, atol=1e-12
    )


def test_padding_and_order_within_a_receiver_change_nothing():
    problem, _, _ = random_problem(4)
    g, senders, receivers, *rest = problem
    order = np.lexsort((np.random.default_rng(0).random(len(senders)), receivers))
    longer, valid = padded((g, senders[order], receivers[order], *rest), len(senders) + 5)
    for function in (energy_jit, gradient_jit):
        np.testing.assert_allclose(
            function(*longer, valid=valid), function(*problem), rtol=1e-12, atol=1e-12
        )


def test_derivatives_are_finite_without_any_edge():
    problem, _, _ = random_problem(5)
    g, _, _, *rest = problem
    for senders, valid in [(jnp.zeros(0, int), None), (jnp.zeros(3, int), jnp.zeros(3, bool))]:
        edgeless = (senders, senders, *rest)

        def squares(g, edgeless=edgeless, valid=valid):
            return jnp.sum(ee.attention_gradient(g, *edgeless, valid=valid) ** 2)

        energy = energy_jit(g, *edgeless, valid=valid)
        np.testing.assert_array_equal(energy, 0)
        np.testing.assert_array_equal(jax.jit(jax.grad(squares))(g), 0)


def test_large_logits_do_not_overflow():
    with jax.enable_x64(False):
        problem, allowed, _ = random_problem(6)
        g, senders, receivers, Wk, Wq, beta = (
            a if a.dtype.kind == "i" else a.astype(jnp.float32) for a in map(jnp.asarray, problem)
        )
        energy = ee.attention_energy(100 * g, senders, receivers, Wk, Wq, beta)
        dense = en.attention_energy(
            100 * g, Wk, Wq, beta, self_attention=True, mask=jnp.asarray(allowed)
        )
        assert jnp.isfinite(energy).all()
        np.testing.assert_allclose(energy.sum(), dense, rtol=1e-5)
