"""Token dynamics: each claim of chapter 7 as a property, against NumPy and SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from etlib import dynamics as dy

seeds = st.integers(0, 10_000)
some = settings(max_examples=15, deadline=None)
sinkhorn = jax.jit(dy.sinkhorn, static_argnums=1)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def scores(seed, N=6, scale=1.0):
    S = scale * np.random.default_rng(seed).normal(size=(N, N))
    return (S + S.T) / 2


def tokens(seed, N=6, D=4):
    return np.random.default_rng(seed).normal(size=(N, D))


def attention(seed, N=6):
    """Positive and row-stochastic."""
    return scipy.special.softmax(np.random.default_rng(seed).normal(size=(N, N)), axis=-1)


# --- modes --------------------------------------------------------------------


@given(seed=seeds, name=st.sampled_from(["plus", "minus", "mixed", "complex", "plain"]))
@some
def test_dominating_factors_are_the_largest_eigenvalues_of_the_whole_layer(seed, name):
    A, H = attention(seed), dy.spectrum_of(name, 4, seed)
    whole = np.linalg.eigvals(np.eye(24) + np.kron(H.T, A))
    found = dy.dominating(A, H)
    assert np.abs(whole - found.factor).min() < 1e-7
    assert np.abs(found.factor) == pytest.approx(np.abs(whole).max(), abs=1e-7)
    assert found.factor == pytest.approx(1 + found.lambda_A * found.lambda_H)
    below = np.abs(whole)[np.abs(whole) < np.abs(whole).max() - 1e-6]
    assert found.runner_up == pytest.approx(below.max(), abs=1e-6)


@pytest.mark.parametrize("name", ["plus", "minus", "mixed", "complex"])
def test_long_run_is_the_dominating_mode(name):
    A, H = dy.sinkhorn(jnp.asarray(scores(3, 5))).A, dy.spectrum_of(name, 4, 0)
    winner = dy.dominating(A, H)
    path = dy.iterate(jnp.asarray(tokens(1, 5)), A, jnp.asarray(H), 4000)
    assert dy.outside(path.directions[-1], winner.plane) < 1e-6
    if winner.factor.imag == 0:
        assert path.growth[-1] == pytest.approx(abs(winner.factor), rel=1e-9)
    else:  # the norm of a turning vector wobbles; its mean rate does not
        assert np.log(path.growth[-2000:]).mean() == pytest.approx(
            np.log(abs(winner.factor)), abs=1e-3
        )


@given(seed=seeds, size=st.floats(0.05, 1.0))
@some
def test_constant_vector_wins_for_plus_and_never_for_minus(seed, size):
    """A positive and row-stochastic, H symmetric: plus always smooths; [-1, 0) never does."""
    A = attention(seed)
    plus = dy.dominating(A, dy.spectrum_of("plus", 4, seed, size))
    minus = dy.dominating(A, dy.spectrum_of("minus", 4, seed, size))
    assert plus.lambda_A == pytest.approx(1)
    assert abs(minus.lambda_A - 1) > 1e-6


def test_a_large_negative_eigenvalue_smooths_too():
    A = np.asarray(dy.sinkhorn(jnp.asarray(dy.gram_scores(jnp.asarray(tokens(0)), jnp.eye(4)))).A)
    lambda_min = np.linalg.eigvalsh(A)[0]
    bound = 2 / (1 + lambda_min)
    for factor, constant in ((0.99, False), (1.01, True)):
        winner = dy.dominating(A, -factor * bound * np.eye(2))
        assert (abs(winner.lambda_A - 1) < 1e-9) == constant


def test_iterate_does_not_overflow_and_keeps_a_zero_growth_finite():
    path = dy.iterate(jnp.ones((3, 2)), jnp.full((3, 3), 1 / 3), 1e6 * jnp.eye(2), 400)
    assert np.isfinite(path.directions).all()
    dead = dy.iterate(jnp.ones((3, 2)), jnp.full((3, 3), 1 / 3), -jnp.eye(2), 2)
    assert np.isfinite(dead.directions).all() and dead.growth[0] < 1e-12


def test_spectra_are_what_their_names_say():
    def values(name):
        return np.linalg.eigvals(dy.spectrum_of(name, 6, 0))

    assert (values("plus").real > 0).all() and (values("minus").real < 0).all()
    assert len(set(np.sign(values("mixed").real))) == 2
    np.testing.assert_allclose(values("complex").real, 0, atol=1e-12)
    assert np.abs(values("plain")).max() == pytest.approx(1)
    with pytest.raises(ValueError, match="plus, minus"):
        dy.spectrum_of("nothing", 6, 0)


# --- measures -------------------------------------------------------------------


def test_frequency_ratio_as_printed():
    X = tokens(0)
    mean = X.mean(axis=0)
    expected = np.linalg.norm(X - mean) / (np.sqrt(len(X)) * np.linalg.norm(mean))
    assert dy.high_low_ratio(jnp.asarray(X)) == pytest.approx(expected)


def test_cosine_is_the_mean_over_pairs():
    X = tokens(1)
    pairs = [
        X[i] @ X[j] / np.linalg.norm(X[i]) / np.linalg.norm(X[j])
        for i in range(6)
        for j in range(6)
        if i != j
    ]
    assert dy.mean_cosine(jnp.asarray(X)) == pytest.approx(np.mean(pairs))


def test_effective_rank_of_known_matrices():
    assert dy.effective_rank(jnp.eye(5)) == pytest.approx(5)
    assert dy.effective_rank(jnp.outer(jnp.arange(1.0, 5), jnp.arange(1.0, 4))) == pytest.approx(1)
    s = np.linalg.svd(tokens(2), compute_uv=False)
    p = s / s.sum()
    expected = np.exp(-(p * np.log(p)).sum())
    assert dy.effective_rank(jnp.asarray(tokens(2))) == pytest.approx(expected)


@pytest.mark.parametrize("of", [dy.high_low_ratio, dy.mean_cosine])
@pytest.mark.parametrize("X", [np.zeros((2, 3)), np.ones((2, 3)), np.eye(2, 3), np.ones((1, 3))])
def test_measures_and_their_slopes_are_defined_for_zero_and_equal_tokens(of, X):
    X = jnp.asarray(X, jnp.float64)
    assert np.isfinite(of(X)) and np.isfinite(jax.grad(of)(X)).all()


def test_measures_of_zero_tokens():
    zero = jnp.zeros((2, 3))
    assert dy.mean_cosine(zero) == dy.high_low_ratio(zero) == dy.effective_rank(zero) == 0
    assert dy.high_low_ratio(jnp.array([[1.0], [-1.0]])) == jnp.inf


# --- Sinkhorn ---------------------------------------------------------------------


@given(seed=seeds, scale=st.floats(0.0, 3.0), iterations=st.sampled_from([1, 5, 60]))
@some
def test_sinkhorn_is_symmetric_bounded_and_says_how_stochastic_it_is(seed, scale, iterations):
    A, _, residual = sinkhorn(jnp.asarray(scores(seed, scale=scale)), iterations)
    np.testing.assert_array_equal(A, A.T)  # to the bit, converged or not
    assert (A >= 0).all() and (A <= 1 + 1e-12).all()
    sums = np.concatenate([A.sum(0), A.sum(1)])
    np.testing.assert_allclose(np.abs(sums - 1).max(), residual, atol=1e-12)
    if iterations == 60:
        assert residual < 1e-3


@given(seed=seeds, gram=st.booleans())
@some
def test_eigenvalue_bounds(seed, gram):
    """[-1, 1] for any symmetric scores; [0, 1] for Gram scores, by Schur's product theorem."""
    X = tokens(seed)
    S = np.asarray(dy.gram_scores(jnp.asarray(X), jnp.eye(4))) if gram else scores(seed, scale=2)
    A, _, residual = sinkhorn(jnp.asarray(S), 60)
    values = np.linalg.eigvalsh(A)
    assert -1 - residual <= values[0] and values[-1] <= 1 + residual + 1e-12
    if gram:
        assert values[0] > -1e-12


def test_general_scores_reach_below_zero():
    A = dy.sinkhorn(jnp.asarray([[0.0, 5.0], [5.0, 0.0]])).A
    assert np.linalg.eigvalsh(A)[0] < -0.9


def test_agrees_with_the_alternating_iteration_where_both_converge():
    S = jnp.asarray(scores(0))
    alternating = dy.sinkhorn_alternating(S, 200)
    np.testing.assert_allclose(dy.sinkhorn(S, 200).A, alternating, atol=1e-10)
    np.testing.assert_allclose(
        dy.sinkhorn_alternating(S, 1), scipy.special.softmax(np.asarray(S), axis=1)
    )
    early = dy.sinkhorn_alternating(S, 3)
    assert np.abs(early - early.T).max() > 1e-3


def test_gram_scores_converge_by_half_an_iteration():
    """Near the fixed point the error shrinks by (1 - lambda_min) / 2 <= 1/2."""
    S = dy.gram_scores(jnp.asarray(tokens(0)), jnp.eye(4))
    residuals = [float(dy.sinkhorn(S, n).residual) for n in (20, 30)]
    assert residuals[1] / residuals[0] < 1.1 * 0.5**10


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_scores_too_large_are_answered_with_the_residual(dtype):
    S = jnp.asarray(scores(1, N=8, scale=1e4), dtype)
    A, f, residual = sinkhorn(S, 50)
    assert np.isfinite(A).all() and np.isfinite(f).all() and np.isfinite(residual)
    assert residual > 0.1
    np.testing.assert_allclose(residual, np.abs(np.asarray(A).sum(0) - 1).max(), rtol=1e-5)
    np.testing.assert_array_equal(A, A.T)


def test_a_star_without_loops_has_no_doubly_stochastic_matrix():
    star = np.zeros((5, 5), bool)
    star[0, 1:] = star[1:, 0] = True
    result = sinkhorn(jnp.zeros((5, 5)), 50, jnp.asarray(star))
    assert np.isfinite(result.A).all() and result.residual > 0.4
    with_loops = dy.sinkhorn(jnp.zeros((5, 5)), 5000, jnp.asarray(star | np.eye(5, dtype=bool)))
    assert with_loops.residual < 1e-3


def test_a_token_without_pairs_is_answered_with_residual_one():
    mask = ~np.eye(3, dtype=bool)
    mask[0] = mask[:, 0] = False
    result = dy.sinkhorn(jnp.asarray(scores(0, 3)), 50, jnp.asarray(mask))
    assert np.isfinite(result.A).all() and result.residual == pytest.approx(1)
    np.testing.assert_array_equal(result.A[0], 0)


@given(seed=seeds, alpha=st.floats(0.05, 0.95), sign=st.sampled_from([1, -1]))
@some
def test_trajectories_stay_bounded(seed, alpha, sign):
    """GRAND-style: no eigenvalue of W beyond one in size, and a new A in every layer."""
    X = jnp.asarray(tokens(seed))
    L = np.random.default_rng(seed).normal(size=(4, 4))
    W = sign * L.T @ L / np.linalg.norm(L, 2) ** 2
    start = np.linalg.norm(X)
    for _ in range(5):
        A, _, residual = sinkhorn(dy.gram_scores(X, jnp.eye(4)), 60)
        X = dy.doubly_stochastic_layer(X, A, jnp.asarray(W), alpha)
        assert np.linalg.norm(X) <= start * (1 + residual) + 1e-9


@given(seed=seeds, alpha=st.floats(0.2, 0.6))
@some
def test_condition_on_the_eigenvalues_of_W(seed, alpha):
    A = np.asarray(sinkhorn(dy.gram_scores(jnp.asarray(tokens(seed)), jnp.eye(4)), 60).A)
    bound = dy.largest_safe_eigenvalue(A, 0.1, alpha)
    for factor, smooths in ((0.98, False), (1.02, True)):
        W = -np.diag([0.1, factor * bound])
        size = np.abs(alpha + (1 - alpha) * np.outer(np.linalg.eigvalsh(A), np.diag(W)))
        winner = np.unravel_index(size.argmax(), size.shape)
        assert (winner == (len(A) - 1, 1)) == smooths


# --- energies ---------------------------------------------------------------------


@given(seed=seeds)
@some
def test_parametrised_energy_has_the_flow_as_its_negative_gradient(seed):
    X, A, W, Omega = tokens(seed), scores(seed), scores(seed + 1, 4), scores(seed + 2, 4)
    gradient = jax.grad(dy.parametrised_energy)(*map(jnp.asarray, (X, A, W, Omega)))
    np.testing.assert_allclose(gradient, X @ Omega - A @ X @ W, atol=1e-10)


def test_attraction_and_repulsion_add_up():
    X, A, W = map(jnp.asarray, (tokens(0), scores(0), scores(1, 4)))
    attraction, repulsion = dy.attraction_repulsion(X, A, W)
    assert attraction + repulsion == pytest.approx(dy.parametrised_energy(X, A, W))
    only = dy.attraction_repulsion(X, A, W @ W)
    assert only[1] == pytest.approx(0, abs=1e-12)


def test_sinkhorn_attention_descends_its_own_energy():
    X, V = 0.5 * jnp.asarray(tokens(0)), jnp.asarray(tokens(5, 3, 4))

    def flow(X, sign):
        return sign * dy.sinkhorn(dy.gram_scores(X, V), 100).A @ X @ V.T @ V

    energy = jax.jit(jax.value_and_grad(lambda X, sign: dy.sinkhorn_energy(X, V, 1.0, 100) * sign))
    assert dy.jacobian_asymmetry(lambda X: flow(X, 1.0), X) < 1e-8
    for sign in (1.0, -1.0):
        assert dy.sinkhorn_energy(X, V, sign, 100) == pytest.approx(energy(X, sign)[0])
        moved, energies = X, []
        for _ in range(4):
            value, gradient = energy(moved, sign)
            np.testing.assert_allclose(flow(moved, sign), -gradient, atol=1e-9)
            energies.append(value)
            moved = moved + 0.02 * flow(moved, sign)
        assert (np.diff(energies) < 0).all()


def test_sinkhorn_energy_is_half_the_best_plan():
    X, V = 0.5 * jnp.asarray(tokens(0)), jnp.eye(4)
    S = dy.gram_scores(X, V)
    P = np.asarray(dy.sinkhorn(S, 200).A)
    value = (P * np.asarray(S)).sum() - (P * (np.log(P) - 1)).sum()
    assert dy.sinkhorn_energy(X, V, 1.0) == pytest.approx(-value / 2)


def test_an_independent_W_is_no_gradient_flow():
    X, V, W = jnp.asarray(tokens(0)), jnp.eye(4), jnp.asarray(scores(7, 4))
    flow = lambda X: dy.sinkhorn(dy.gram_scores(X, V), 100).A @ X @ W  # noqa: E731
    assert dy.jacobian_asymmetry(flow, X) > 0.05


# --- graphs -----------------------------------------------------------------------


def graph(seed, N=7):
    rng = np.random.default_rng(seed)
    edges = np.triu(rng.random((N, N)) < 0.5, 1) | np.eye(N, k=1, dtype=bool)
    return (edges | edges.T).astype(float)


@given(seed=seeds)
@some
def test_dirichlet_energy_as_a_sum_over_edges(seed):
    adjacency, X = graph(seed), tokens(seed, 7)
    degree = adjacency.sum(1)
    total = sum(
        ((X[i] / degree[i] ** 0.5 - X[j] / degree[j] ** 0.5) ** 2).sum()
        for i, j in np.argwhere(np.triu(adjacency))
    )
    A = dy.normalised_adjacency(adjacency)
    assert dy.dirichlet_energy(jnp.asarray(X), jnp.asarray(A)) == pytest.approx(total)
    laplacian, _ = scipy.sparse.csgraph.laplacian(adjacency, normed=True, return_diag=True)
    np.testing.assert_allclose(np.eye(7) - A, laplacian, atol=1e-12)
    assert 0 <= dy.rayleigh_quotient(jnp.asarray(X), jnp.asarray(A)) <= 2


@pytest.mark.parametrize("sign, frequency", [(1.0, 0.0), (-1.0, None)])
def test_attraction_smooths_and_repulsion_sharpens(sign, frequency):
    A = dy.normalised_adjacency(graph(1))
    path = dy.iterate(jnp.asarray(tokens(0, 7, 2)), A, sign * 0.3 * np.eye(2), 3000)
    top = 1 - np.linalg.eigvalsh(A)[0] if frequency is None else frequency
    last = dy.rayleigh_quotient(path.directions[-1], jnp.asarray(A))
    assert last == pytest.approx(top, abs=1e-6)


def test_an_isolated_node_has_no_neighbours():
    adjacency = np.zeros((3, 3))
    adjacency[0, 1] = adjacency[1, 0] = 1
    np.testing.assert_array_equal(dy.normalised_adjacency(adjacency)[2], 0)
