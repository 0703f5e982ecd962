"""Costs: counts against the compiler's and the models' own, variants that compute the same."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from etlib import cost
from etlib.block import BlockConfig, ETBlock
from etlib.transformer import Transformer, TransformerConfig

N, BATCH = 33, 4
SMALL = BlockConfig(token_dim=64, n_heads=4, head_dim=8, n_memories=96, n_steps=3)
PAPER = BlockConfig()
VIT = TransformerConfig(token_dim=768, n_heads=12, mlp_dim=3072, depth=1)


def block_and_tokens(config=SMALL):
    block = ETBlock(config, rngs=nnx.Rngs(0))
    return block, jax.random.normal(jax.random.key(0), (BATCH, N, config.token_dim))


def counted(function, *arguments):
    analysis = jax.jit(function).lower(*arguments).compile().cost_analysis()
    return analysis["flops"] / BATCH


def n_parameters(module):
    return sum(p.size for p in jax.tree.leaves(nnx.state(module, nnx.Param)))


def test_products_of_a_step_are_those_that_the_compiler_counts():
    expected = sum(cost.step_products(N, SMALL).values())
    assert counted(cost.bare_products, *block_and_tokens()) == pytest.approx(expected, rel=0.01)


def test_products_of_a_layer_are_those_that_the_compiler_counts():
    config = TransformerConfig(token_dim=64, n_heads=4, mlp_dim=128, depth=1)
    model = Transformer(config, rngs=nnx.Rngs(0))
    x = jnp.ones((BATCH, N, 64))
    expected = sum(cost.layer_products(N, config).values())
    found = counted(lambda model, x: model(x), model, x)
    assert expected < found < 1.1 * expected  # and the softmax, the norms


def test_parameters_of_the_models_and_of_the_papers_table():
    assert cost.block_parameters(SMALL) == n_parameters(ETBlock(SMALL, rngs=nnx.Rngs(0)))
    config = TransformerConfig(token_dim=16, n_heads=2, mlp_dim=40, depth=1)
    last_norm = 2 * 16
    model = Transformer(config, rngs=nnx.Rngs(0))
    assert cost.layer_parameters(config) == n_parameters(model) - last_norm
    assert round(cost.block_parameters(PAPER) / 1e6, 2) == 3.54
    assert cost.layer_parameters(VIT) == 7_087_872  # a block of ViT-B/16


@pytest.mark.parametrize("remat", ["all", "cheap"])
def test_a_step_more_takes_the_memory_that_is_counted(remat):
    def memory(n_steps):
        block, x = block_and_tokens(replace(SMALL, n_steps=n_steps))
        gradient = jax.grad(lambda block, x: cost.loss(remat, block, x))
        return cost.compiled(gradient, block, x)[1] * 2**20

    float32 = 4
    step = (memory(12) - memory(8)) / 4
    assert step == BATCH * float32 * cost.stored_values(N, SMALL, remat)
    with pytest.raises(ValueError, match="no closed form for remat 'none'"):
        cost.stored_values(N, SMALL, "none")


def test_all_variants_have_one_gradient():
    with jax.enable_x64(True):
        block = ETBlock(SMALL, rngs=nnx.Rngs(0))
        x = jax.random.normal(jax.random.key(0), (BATCH, N, SMALL.token_dim), "float64")
        slopes = [jax.tree.leaves(jax.grad(f)(block, x)) for f in cost.VARIANTS.values()]
        for other in slopes[1:]:
            for a, b in zip(slopes[0], other, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12 * abs(a).max())


def test_what_is_measured_survives_a_record():
    found, floor = cost.training_step(SMALL, n_tokens=5, batch=2, repeats=1)
    assert list(found) == list(cost.VARIANTS) and floor > 0
    assert all(min(one) > 0 for one in found.values())
    assert cost.from_metrics(cost.as_metrics(found, floor)) == (found, floor)


def test_stated_peaks_by_the_name_that_jax_gives():
    assert cost.peak("NVIDIA H100 PCIe") == 756e12
    assert cost.peak("NVIDIA H100 80GB HBM3") == cost.peak("NVIDIA H200") == 989e12
    assert cost.peak("NVIDIA A100-SXM4-40GB") == 312e12
    assert cost.peak("NVIDIA L40S") == 362e12 and cost.peak("NVIDIA L4") == 121e12
    assert cost.peak("cpu") is None
