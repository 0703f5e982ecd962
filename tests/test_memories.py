"""What the chapter on memories measures, against loops and values known by hand."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from etlib import completion, memories, released, results
from etlib import masked_images as mi
from etlib.block import BlockConfig
from etlib.chapters import masked_images as training
from etlib.chapters.memories import PRESETS

CONFIG = mi.MaskedImageConfig(
    height=8,
    width=12,
    patch=4,
    n_masked=2,
    n_kept=1,
    block=BlockConfig(
        token_dim=10, n_heads=2, head_dim=4, n_memories=7, n_steps=3,
        self_attention=True, attention_std=0.3, memory_std=0.3,
    ),
)  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return mi.MaskedImageModel(CONFIG, rngs=nnx.Rngs(0))


def tokens(*shape, seed=0):
    return jax.random.normal(jax.random.key(seed), (*shape, 10))


def test_as_patches_sees_only_the_direction(model):
    v = tokens(5)
    shown = memories.as_patches(model, v)
    assert shown.shape == (5, 4, 4, 3)
    np.testing.assert_allclose(memories.as_patches(model, 100 * v), shown, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(memories.as_patches(model, jnp.ones((1, 10))), 0, atol=1e-6)
    np.testing.assert_allclose(memories.as_patches(model, -v), -shown, atol=1e-4)  # delta is zero


def test_forces_are_the_two_parts_of_the_update(model):
    x = tokens(2, 6)
    attention, memory = memories.forces(model.block, x)
    whole = -model.block.gradient(model.block.norm(x))
    np.testing.assert_allclose(attention + memory, whole, rtol=1e-4, atol=1e-5)
    h = np.asarray(memories.overlaps(model.block, x))
    by_hand = np.maximum(h, 0) @ np.asarray(model.block.Xi[...])
    np.testing.assert_allclose(memory, by_hand, rtol=1e-4, atol=1e-5)


def test_shares_by_hand():
    h = jnp.asarray([[1.0, 1, 1, 1], [2, -1, -1, 0], [-1, -2, -3, -4], [3, 1, -1, -1]])
    np.testing.assert_allclose(memories.active_share(h), [1, 0.25, 0, 0.5])
    np.testing.assert_allclose(memories.effective_share(h), [1, 0.25, 0, 1.6 / 4])


def test_strongest_by_hand():
    h = jnp.asarray([[0.0, 5], [3, 1], [2, 7], [9, 0]])
    np.testing.assert_array_equal(memories.strongest(h, jnp.asarray([1, 0]), 2), [[2, 0], [3, 1]])


def test_similarity_of_positions_by_hand():
    """Positions on a circle: the cosine is that of the angle between them."""
    angles = np.linspace(0, 1, 6)
    table = np.stack([np.cos(angles), np.sin(angles)], -1) * np.arange(1, 7)[:, None]
    table = jnp.asarray(np.concatenate([[[5.0, 5.0]], table]))
    similarity = memories.position_similarity(table)
    np.testing.assert_allclose(similarity, np.cos(angles[:, None] - angles), atol=1e-6)


def test_similarity_by_distance_against_a_loop():
    similarity = np.random.default_rng(0).normal(size=(6, 6))
    similarity = jnp.asarray(similarity + similarity.T)
    distances, means = memories.similarity_by_distance(similarity, 8, 12, 4)
    np.testing.assert_allclose(distances, [1, 2**0.5, 2, 5**0.5], atol=1e-5)
    found = {d: [] for d in distances}
    for a in range(6):
        for b in range(6):
            d = np.hypot(a // 3 - b // 3, a % 3 - b % 3).round(6)
            if a != b:
                found[d].append(similarity[a, b])
    np.testing.assert_allclose(means, [np.mean(v) for v in found.values()], rtol=1e-5)
    pairs = [similarity[a, b] for a in range(6) for b in range(6) if a != b]
    expected = np.mean(found[1.0]) - np.mean(pairs)
    assert memories.locality(similarity, 8, 12, 4) == pytest.approx(expected, rel=1e-4)


def test_smoothness_of_noise_waves_and_checks():
    noise = jax.random.normal(jax.random.key(0), (200, 8, 8, 3))
    assert abs(memories.smoothness(noise).mean()) < 0.02 + 1 / 64
    wave = jnp.sin(jnp.arange(64) / 10)[:, None, None] * jnp.ones((64, 64, 3))
    assert memories.smoothness(wave) > 0.95
    checks = ((jnp.arange(8)[:, None] + jnp.arange(8)) % 2)[..., None] * jnp.ones(3)
    assert memories.smoothness(checks) == pytest.approx(-1)


def test_stretched_and_sheet():
    pictures = np.stack(
        [np.full((2, 2, 3), -3.0), np.zeros((2, 2, 3)), np.eye(2)[..., None] * [1, 1, 1]]
    )
    shown = memories.stretched(pictures)
    assert shown[0].max() == 0 and (shown[1] == 0.5).all() and shown[2].max() == 1
    page = memories.sheet(shown, 2)
    assert page.shape == (5, 5, 4)
    assert page[2, :, 3].max() == 0 and page[:, 2, 3].max() == 0  # the gaps
    np.testing.assert_array_equal(page[3:, :2, :3], shown[2])
    assert page[3:, 3:, 3].max() == 0  # no fourth picture


def test_mean_norm_counts_only_what_is_picked():
    x = jnp.asarray([[3.0, 4], [0, 1], [0, 3]])
    assert memories.mean_norm(x, jnp.asarray([True, False, True])) == pytest.approx(4)


def test_the_kept_weights_are_those_of_the_recorded_run():
    (record,) = (
        result
        for result in results.load("completion", "masked-images")
        if (result.config["model"], result.config["batch"], result.seed) == ("et", 32, 0)
    )
    said = {name: record.config[name] for name in training.Training.model_fields}
    trained = completion.model_config(training.Training(**said))
    p = PRESETS["book"]
    path = results.FOLDER / "04-memories-weights.npz"
    model = released.load(path, n_steps=p.n_steps, alpha=p.alpha, beta=p.beta)
    assert model.config == trained
    leaves = jax.tree.leaves(nnx.state(model, nnx.Param))
    assert sum(leaf.size for leaf in leaves) == record.metrics["parameters"]

    sample = Path(__file__).parents[2] / "shared/data/imagenet-sample"
    if not sample.is_dir():
        pytest.skip(f"no ImageNet sample at {sample} to score them on")
    here = p.model_copy(update={"dataset": f"imagefolder:{sample}"})
    held = completion.held_out(here, 100)
    found = completion.score(partial(nnx.jit(lambda net, *a: net(*a)), model), [held], trained)
    assert found == pytest.approx(record.metrics["mse"], rel=2e-3)  # they were rounded
