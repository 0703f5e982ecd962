"""The block's descent: against the released code, PyTorch and properties of the energy."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.core import jaxprs_in_params

from etlib import energy as en
from etlib.block import BlockConfig, ETBlock, descend

SMALL = BlockConfig(
    token_dim=12,
    n_heads=2,
    head_dim=4,
    n_memories=20,
    n_steps=5,
    attention_std=0.3,
    memory_std=0.3,
)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


run = nnx.jit(descend, static_argnames=("n_steps", "noise_std", "remat", "trace"))


def small(seed=0, **changes):
    config = BlockConfig(**{**SMALL.__dict__, **changes})
    return ETBlock(config, rngs=nnx.Rngs(seed))


def tokens(seed=0, shape=(6, 12)):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def test_parameter_count_of_the_paper_block():
    """2 H Y D + K D weights, a scalar gamma and a bias: the paper's 3.54 M."""
    block = nnx.eval_shape(lambda: ETBlock(BlockConfig(), rngs=nnx.Rngs(0)))
    count = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(block, nnx.Param)))
    assert count == 3_538_944 + 1 + 768


def test_one_step_is_the_formula():
    block, x = small(), tokens()
    g = en.layer_norm(x, block.gamma[...], block.delta[...])
    gradient = jax.grad(en.energy)(g, block.Wk[...], block.Wq[...], block.Xi[...])
    after, trace = run(block, x, n_steps=1, alpha=0.25)
    assert trace is None
    np.testing.assert_allclose(after, x - 0.25 * gradient, atol=1e-13)


def test_trace():
    block, x = small(), tokens()
    after, trace = run(block, x, trace=True)
    np.testing.assert_array_equal(trace.tokens[0], x)
    np.testing.assert_array_equal(trace.tokens[-1], after)
    np.testing.assert_allclose(block(x), after, atol=1e-14)
    for t in range(6):
        attention, hopfield = block.energies(block.norm(trace.tokens[t]))
        assert trace.attention[t] == pytest.approx(float(attention))
        assert trace.hopfield[t] == pytest.approx(float(hopfield))
        assert trace.energy[t] == pytest.approx(float(attention + hopfield))
    moved = np.sqrt((np.diff(trace.tokens, axis=0) ** 2).sum(axis=(-2, -1)))
    np.testing.assert_allclose(trace.update_norm, moved, rtol=1e-10)


@given(
    seed=st.integers(0, 10_000),
    gamma=st.floats(0.2, 3.0),
    activation=st.sampled_from([en.Relu(), en.Softmax(1.0), en.Power(3)]),
    self_attention=st.booleans(),
)
@settings(max_examples=20, deadline=None)
def test_energy_does_not_rise_at_small_steps(seed, gamma, activation, self_attention):
    block = small(seed, activation=activation, self_attention=self_attention)
    block.gamma[...] = jnp.asarray(gamma)
    block.delta[...] = tokens(seed + 1, (12,))
    mask = jnp.asarray(np.random.default_rng(seed).random((6, 6)) < 0.7)
    _, trace = run(block, tokens(seed), n_steps=40, alpha=1e-3, trace=True, mask=mask)
    rises = np.diff(trace.energy)
    assert rises.max() <= 1e-12 * np.abs(trace.energy).max()
    assert trace.energy[-1] < trace.energy[0]


def test_energy_rises_when_gamma_is_negative():
    """The descent theorem needs gamma > 0: with gamma < 0 the same step climbs."""
    block = small()
    block.gamma[...] = jnp.asarray(-1.0)
    _, trace = run(block, tokens(), n_steps=20, alpha=1e-3, trace=True)
    assert (np.diff(trace.energy) > 0).all()


def test_permutation_equivariance_and_padding():
    block, x = small(), tokens()
    order = jnp.array([5, 2, 0, 3, 1, 4])
    np.testing.assert_allclose(block(x[order]), block(x)[order], atol=1e-12)
    padded = jnp.concatenate([x, tokens(1, (3, 12))])
    np.testing.assert_allclose(block(padded, valid=jnp.arange(9) < 6)[:6], block(x), atol=1e-12)


def test_batch_mates_do_not_matter():
    block, batch = small(), tokens(0, (3, 6, 12))
    np.testing.assert_allclose(block(batch)[1], block(batch[1]), atol=1e-12)


@pytest.mark.parametrize("remat", ["cheap", "all"])
def test_rematerialisation_changes_no_gradient(remat):
    block, x = small(), tokens()

    def loss(block, remat):
        return jnp.sum(block(x, remat=remat) ** 2)

    plain = nnx.grad(lambda b: loss(b, "none"))(block)
    recomputed = nnx.grad(lambda b: loss(b, remat))(block)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), plain, recomputed)


def test_bfloat16_training_multiplies_bfloat16_only():
    mixed = small(compute_dtype="bfloat16")
    graph, params = nnx.split(mixed)
    x = tokens(shape=(2, 6, 12))

    def loss(params, x):
        return jnp.sum(jnp.sin(nnx.merge(graph, params)(x)))

    def products(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == "dot_general":
                yield {str(v.aval.dtype) for v in equation.invars}
            for inner in jaxprs_in_params(equation.params):
                yield from products(inner)

    found = list(products(jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(params, x).jaxpr))
    assert len(found) > 10 and all(types == {"bfloat16"} for types in found)

    ours = jax.grad(loss)(params, x)
    exact = jax.grad(lambda p, x: jnp.sum(jnp.sin(nnx.merge(nnx.split(small())[0], p)(x))))(
        params, x
    )
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(a, b, atol=0.03 * np.abs(b).max())


def test_bfloat16_products_with_float32_tokens_and_energies():
    block, mixed = small(), small(compute_dtype="bfloat16")
    for name in ("Wk", "Wq", "Xi", "gamma", "delta"):
        getattr(mixed, name)[...] = getattr(block, name)[...].astype(jnp.float32)
    x = tokens().astype(jnp.float32)
    after, trace = run(mixed, x, trace=True)
    exact, exact_trace = run(block, tokens(), trace=True)
    assert after.dtype == trace.energy.dtype == jnp.float32
    np.testing.assert_allclose(trace.energy, exact_trace.energy, rtol=2e-2)
    assert 1e-6 < np.abs(after - exact).max() < 0.1, "bfloat16 has three digits"


def test_noise_is_reproducible_scaled_and_keyed():
    block, x = small(), tokens(0, (50, 400, 12))
    key = jax.random.key(3)
    noisy, _ = run(block, x, n_steps=1, noise_std=0.02, key=key)
    quiet, _ = run(block, x, n_steps=1)
    again, _ = run(block, x, n_steps=1, noise_std=0.02, key=key)
    np.testing.assert_array_equal(noisy, again)
    assert (noisy - quiet).std() == pytest.approx(np.sqrt(0.1) * 0.02, rel=0.02)
    two, _ = run(block, x[0, :3], n_steps=2, noise_std=0.02, key=key)
    one, _ = run(block, x[0, :3], n_steps=1, noise_std=0.02, key=key)
    twice, _ = run(block, one, n_steps=1, noise_std=0.02, key=key)
    assert not np.allclose(two, twice), "each step has noise of its own"
    with pytest.raises(ValueError, match="give descend a key"):
        descend(block, x, noise_std=0.02)


def test_numbers_of_the_released_image_code():
    path = Path(__file__).parents[2] / "shared" / "oracles" / "released_image_block.npz"
    if not path.exists():
        pytest.skip("the released code's numbers (shared/oracles) are not on this machine")
    d = np.load(path, allow_pickle=False)
    block = small(token_dim=16, head_dim=8, n_memories=32, n_steps=4, self_attention=True)
    for name in ("Wk", "Wq", "Xi", "gamma", "delta"):
        getattr(block, name)[...] = jnp.asarray(d[name])
    _, trace = run(block, jnp.asarray(d["x"]), alpha=float(d["alpha"]), trace=True)
    np.testing.assert_allclose(trace.energy, d["energies"], rtol=1e-13)
    np.testing.assert_allclose(trace.tokens, d["tokens"], atol=1e-13)


def test_forward_and_backward_against_pytorch():
    """The same block written for PyTorch, its update by PyTorch's own autograd."""
    torch = pytest.importorskip("torch")
    block, x = small(), tokens()
    weights = {n: torch.tensor(np.asarray(getattr(block, n)[...])) for n in ("Wk", "Wq", "Xi")}
    for w in weights.values():
        w.requires_grad_(True)

    def torch_energy(g):
        keys = torch.einsum("hyd,nd->hny", weights["Wk"], g)
        queries = torch.einsum("hyd,nd->hny", weights["Wq"], g)
        logits = torch.einsum("hby,hcy->hbc", keys, queries) * 4**-0.5
        logits = logits.masked_fill(torch.eye(6, dtype=torch.bool), -torch.inf)
        attention = -(4**0.5) * torch.logsumexp(logits, dim=1).sum()
        return attention - 0.5 * (torch.relu(g @ weights["Xi"].T) ** 2).sum()

    tx = torch.tensor(np.asarray(x))
    for _ in range(5):
        g = torch.nn.functional.layer_norm(tx, (12,), eps=1e-5).requires_grad_(True)
        (gradient,) = torch.autograd.grad(torch_energy(g), g, create_graph=True)
        tx = tx - 0.1 * gradient
    (tx**2).sum().backward()

    np.testing.assert_allclose(block(x), tx.detach().numpy(), atol=1e-12)
    gradients = nnx.grad(lambda b: jnp.sum(b(x) ** 2))(block)
    for name, w in weights.items():
        np.testing.assert_allclose(
            getattr(gradients, name)[...], w.grad.numpy(), rtol=1e-9, atol=1e-12
        )
