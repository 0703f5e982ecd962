"""Attention in blocks of queries equals attention all at once, and needs memory linear in N."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from etlib import energy as en
from etlib import streamed
from etlib.block import BlockConfig, ETBlock


def problem(N=10, b=2, D=6, H=2, Y=3, seed=0):
    rng = np.random.default_rng(seed)
    g, Wk, Wq = rng.normal(size=(b, N, D)), rng.normal(size=(H, Y, D)), rng.normal(size=(H, Y, D))
    options = {
        "mask": rng.random((N, N)) < 0.6,
        "weights": rng.normal(size=(b, H, N, N)),
        "valid": np.arange(N) < np.array([[N], [N - 3]]),
    }
    options["mask"][:, 1] = False  # a query with nothing to attend to
    arrays = g, Wk, Wq, rng.uniform(0.3, 2.0, H)
    return [jnp.asarray(a) for a in arrays], {k: jnp.asarray(v) for k, v in options.items()}


@pytest.mark.parametrize("query_block", [1, 4, 10, 64])
@pytest.mark.parametrize("graph", [False, True])
def test_equal_with_all_derivatives(graph, query_block):
    with jax.enable_x64(True):
        (g, Wk, Wq, beta), options = problem()
        options = options if graph else {"self_attention": True}

        def both(energy, gradient, *block):
            def value(g, Wk, Wq, beta):
                found = (f(g, Wk, Wq, *block, beta, **options) for f in (energy, gradient))
                E, dE = found
                return jnp.sum(jnp.sin(E)) + jnp.sum(dE**2), (E, dE)

            by = jax.value_and_grad(value, argnums=(0, 1, 2, 3), has_aux=True)
            return jax.jit(by)(g, Wk, Wq, beta)

        blocks = both(streamed.attention_energy, streamed.attention_gradient, query_block)
        whole = both(en.attention_energy, en.attention_gradient)
        for a, b in zip(jax.tree.leaves(blocks), jax.tree.leaves(whole), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)


def test_a_block_that_streams_is_the_same_block():
    sizes = {"token_dim": 8, "n_heads": 2, "head_dim": 4, "n_memories": 16, "n_steps": 3}
    whole = ETBlock(BlockConfig(**sizes), rngs=nnx.Rngs(0))
    blocks = ETBlock(BlockConfig(**sizes, query_block=4), rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (2, 10, 8))
    np.testing.assert_allclose(blocks(x), whole(x), rtol=1e-5, atol=1e-6)
    g = whole.norm(x)
    for a, b in zip(blocks.energies(g), whole.energies(g), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_memory_of_the_backward_pass_is_linear_in_the_tokens():
    def memory(n, query_block):
        config = BlockConfig(16, 1, 16, 16, n_steps=2, query_block=query_block)
        block = ETBlock(config, rngs=nnx.Rngs(0))
        x = jax.ShapeDtypeStruct((n, 16), jnp.float32)

        def loss(x):
            return jnp.sum(block(x, remat="all") ** 2)

        return jax.jit(jax.grad(loss)).lower(x).compile().memory_analysis().temp_size_in_bytes

    assert memory(8192, 64) < 2.1 * memory(4096, 64)
    assert memory(2048, None) > 3.5 * memory(1024, None)
