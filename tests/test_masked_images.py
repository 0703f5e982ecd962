"""The masked-image model: parameters, occlusion, losses, equivalence with the block."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from etlib import masked_images as mi
from etlib.block import BlockConfig
from etlib.training import TrainConfig, train

SMALL = mi.MaskedImageConfig(
    height=8,
    width=12,
    patch=4,
    n_masked=3,
    n_kept=1,
    init_std=0.5,
    block=BlockConfig(
        token_dim=10,
        n_heads=2,
        head_dim=4,
        n_memories=7,
        n_steps=3,
        self_attention=True,
        attention_std=0.3,
        memory_std=0.3,
    ),
)


@pytest.fixture(scope="module")
def model():
    return mi.MaskedImageModel(SMALL, rngs=nnx.Rngs(0))


def patches(seed=0, n=5):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(n, 6, 48)), jnp.float32)


def test_parameter_count_of_the_released_model():
    """4,873,729 weights: 19.49 MB in float32, the size of the released file."""
    build = lambda: mi.MaskedImageModel(mi.MaskedImageConfig(), rngs=nnx.Rngs(0))  # noqa: E731
    state = nnx.state(nnx.eval_shape(build), nnx.Param)
    assert sum(leaf.size for leaf in jax.tree.leaves(state)) == 4_873_729


@pytest.mark.parametrize("n_masked, n_kept", [(90, 10), (0, 5), (196, 0)])
def test_occlusion_counts_and_uniformity(n_masked, n_kept):
    config = mi.MaskedImageConfig(n_masked=n_masked, n_kept=n_kept)
    occlusion = np.asarray(mi.draw_occlusion(jax.random.key(0), 400, config))
    assert occlusion.shape == (400, 196)
    assert ((occlusion == mi.MASKED).sum(1) == n_masked).all()
    assert ((occlusion == mi.KEPT).sum(1) == n_kept).all()
    expected = 400 * n_masked / 196
    spread = 5 * np.sqrt(expected * (1 - n_masked / 196))
    assert np.abs((occlusion == mi.MASKED).sum(0) - expected).max() <= spread + 1e-9


@pytest.mark.parametrize(
    "wrong", [{"n_masked": 7}, {"n_masked": 0, "n_kept": 0}, {"n_kept": -1}, {"patch": 5}]
)
def test_impossible_configurations(wrong):
    with pytest.raises(ValueError, match=r"8x12 image"):
        mi.MaskedImageConfig(**{"height": 8, "width": 12, "patch": 4, "n_masked": 1, **wrong})


def test_tokens_written_out(model):
    x = patches()
    occlusion = jnp.asarray([[0, 1, 2, 1, 0, 1]] * 5)
    tokens = model.tokens(x, occlusion)
    assert tokens.shape == (5, 7, 10)
    positions = model.positions[...]
    np.testing.assert_allclose(tokens[2, 0], model.CLS[...] + positions[0], rtol=1e-6)
    np.testing.assert_allclose(tokens[2, 2], model.MASK[...] + positions[2], rtol=1e-6)
    kernel, bias = model.encoder.kernel[...], model.encoder.bias[...]
    for n in (0, 2, 4):  # seen, kept, seen
        by_hand = x[2, n] @ kernel + bias + positions[n + 1]
        np.testing.assert_allclose(tokens[2, n + 1], by_hand, rtol=1e-5, atol=1e-6)


def test_masked_pixels_are_not_looked_at(model):
    occlusion = jnp.asarray([[0, 1, 2, 1, 0, 1]] * 5)
    x, other = patches(0), patches(1)
    hidden = (occlusion == mi.MASKED)[..., None]
    np.testing.assert_array_equal(
        model(x, occlusion), model(jnp.where(hidden, other, x), occlusion)
    )
    assert not np.allclose(model(x, occlusion), model(other, occlusion))


def test_completion_and_its_trace(model):
    occlusion = jnp.asarray([[0, 1, 2, 1, 0, 1]] * 5)
    completed, trace = model.complete(patches(), occlusion)
    np.testing.assert_allclose(completed, model(patches(), occlusion), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        model.decode(trace.tokens[-1])[:, 1:], completed, rtol=1e-5, atol=1e-5
    )
    assert trace.energy.shape == (4, 5)


def test_losses_against_loops():
    rng = np.random.default_rng(0)
    prediction, target = rng.normal(size=(2, 3, 6, 48))
    occlusion = rng.integers(0, 3, size=(3, 6))
    arrays = [jnp.asarray(a) for a in (prediction, target, occlusion)]
    for i in range(3):
        errors = [
            np.mean((prediction[i, n] - target[i, n]) ** 2) for n in range(6) if occlusion[i, n]
        ]
        assert mi.squared_error(*arrays)[i] == pytest.approx(np.mean(errors), rel=1e-5)
    zeroed = [
        (prediction[i, n, z] - target[i, n, z]) ** 2 if occlusion[i, n] else 0.0
        for i in range(3)
        for n in range(6)
        for z in range(48)
    ]
    assert mi.released_error(*arrays) == pytest.approx(np.sqrt(np.mean(zeroed)), rel=1e-5)


def test_losses_of_the_released_code():
    path = Path(__file__).parents[2] / "shared" / "oracles" / "released_image_block.npz"
    if not path.exists():
        pytest.skip("the released code's numbers (shared/oracles) are not on this machine")
    d = np.load(path, allow_pickle=False)
    with jax.enable_x64(True):
        arrays = [jnp.asarray(d[k]) for k in ("loss_pred", "loss_target", "loss_mask")]
        assert mi.released_error(*arrays) == pytest.approx(float(d["released_loss"]), rel=1e-12)
        occluded = np.asarray(arrays[2] != 0).sum(1)
        per_image = np.asarray(mi.squared_error(*arrays))
        assert np.average(per_image, weights=occluded) == pytest.approx(
            float(d["mse_over_loss_patches"]), rel=1e-12
        )


def test_training_loss_falls_on_one_picture():
    model = mi.MaskedImageModel(SMALL, rngs=nnx.Rngs(1))
    image = np.random.default_rng(0).normal(size=(1, 8, 12, 3)).astype(np.float32)
    batch = {"image": np.repeat(image, 8, axis=0)}
    rows = train(
        model,
        mi.completion_loss(),
        iter(lambda: batch, None),
        TrainConfig(n_steps=150, peak_lr=1e-2),
        progress=False,
        log_every=50,
    )
    assert rows[-1]["loss"] < 0.5 * np.var(image)
    assert rows[-1]["loss"] == pytest.approx(rows[-1]["mse"])


def test_grey_picture_gives_a_finite_step():
    """Constant tokens are where the derivative of a norm would be NaN."""
    model = mi.MaskedImageModel(SMALL, rngs=nnx.Rngs(1))
    for variable in (model.positions, model.CLS, model.MASK):
        variable[...] = jnp.zeros_like(variable[...])
    batch = {"image": np.zeros((8, 8, 12, 3), np.float32)}
    rows = train(
        model,
        mi.completion_loss("released"),
        iter(lambda: batch, None),
        TrainConfig(n_steps=1),
        progress=False,
    )
    assert np.isfinite(rows[-1]["gradient_norm"])
