"""The completion task and the fillings, against loops and scikit-image."""

import os
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from skimage.restoration import inpaint_biharmonic

from etlib import completion, training
from etlib import masked_images as mi
from etlib.block import BlockConfig
from etlib.chapters import masked_images
from etlib.transformer import Transformer, TransformerConfig
from etlib.vision import patchify, unpatchify

CONFIG = mi.MaskedImageConfig(
    height=16, width=16, patch=4, n_masked=2, n_kept=1, block=BlockConfig(token_dim=8)
)


def images(n=10):
    smooth = np.random.default_rng(0).normal(size=(n, 16, 16, 3)).cumsum(1).cumsum(2)
    return (smooth / 10).astype(np.float32)


def batched(size, pictures):
    """Batches as the pipeline makes them: the last one filled up, and marked."""
    for start in range(0, len(pictures), size):
        part = pictures[start : start + size]
        valid = np.arange(size) < len(part)
        filled = np.concatenate([part, np.zeros((size - len(part), *part.shape[1:]), part.dtype)])
        yield {"image": filled, "valid": valid}


def test_the_task_hides_half_and_follows_from_the_number():
    whole = completion.task(jnp.arange(10), CONFIG)
    assert ((whole == mi.MASKED).sum(1) == 8).all()
    assert ((whole == mi.SEEN).sum(1) == 8).all()
    assert len({tuple(np.asarray(row)) for row in whole}) == 10
    np.testing.assert_array_equal(
        completion.task(jnp.asarray([7, 3]), CONFIG), whole[jnp.asarray([7, 3])]
    )


@pytest.mark.parametrize("size", [1, 3, 8, 10])
def test_score_counts_every_picture_once_whatever_the_batch(size):
    pictures = images()
    by_hand = []
    occlusion = np.asarray(completion.task(jnp.arange(10), CONFIG))
    for picture, hidden in zip(np.asarray(patchify(pictures, 4)), occlusion, strict=True):
        by_hand.append(np.mean(picture[hidden == mi.MASKED] ** 2))
    score = completion.score(completion.fill_with_mean, batched(size, pictures), CONFIG)
    assert score == pytest.approx(np.mean(by_hand), rel=1e-5)


def test_visible_mean_by_hand():
    patches, occlusion = jnp.asarray(patchify(images(2), 4)), completion.task(jnp.arange(2), CONFIG)
    filled = completion.fill_with_visible_mean(patches, occlusion)
    for i in range(2):
        seen = np.asarray(patches[i])[np.asarray(occlusion[i]) == mi.SEEN].reshape(-1, 3)
        np.testing.assert_allclose(filled[i, 5, 3:6], seen.mean(0), rtol=1e-4, atol=1e-5)


def test_biharmonic_is_scikit_images():
    pictures = images(1)
    patches, occlusion = jnp.asarray(patchify(pictures, 4)), completion.task(jnp.arange(1), CONFIG)
    hole = np.zeros((16, 16), bool)
    for n in np.flatnonzero(np.asarray(occlusion[0]) == mi.MASKED):
        row, column = divmod(int(n), 4)
        hole[4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = True
    expected = inpaint_biharmonic(pictures[0].astype(float), hole, channel_axis=-1)
    filled = completion.fill_biharmonic(CONFIG)(patches, occlusion)
    np.testing.assert_allclose(unpatchify(filled, 16, 16, 4)[0], expected, atol=1e-5)


# --- along the descent ----------------------------------------------------------


def test_steps_end_where_the_model_does():
    model = mi.MaskedImageModel(CONFIG, rngs=nnx.Rngs(0))
    patches, occlusion = jnp.asarray(patchify(images(3), 4)), completion.task(jnp.arange(3), CONFIG)
    steps = completion.along_steps(model, patches, occlusion, n_steps=15)
    assert steps.energy.shape == steps.error.shape == (16, 3)
    for t in (0, 12):
        completed = model(patches, occlusion, n_steps=t)
        expected = mi.squared_error(completed, patches, occlusion)
        np.testing.assert_allclose(steps.error[t], expected, rtol=1e-4)


def test_product_flops_are_those_that_the_compiler_counts():
    """XLA's own count of one step more, without its elementwise work, on a larger model."""
    block = BlockConfig(token_dim=256, n_heads=4, head_dim=64, n_memories=512, n_steps=1)
    config = mi.MaskedImageConfig(height=64, width=64, patch=8, n_masked=9, block=block)
    model = mi.MaskedImageModel(config, rngs=nnx.Rngs(0))
    patches, occlusion = jnp.zeros((1, 64, 192)), jnp.zeros((1, 64), int)
    compiled = jax.jit(lambda m, *inputs: m(*inputs)).lower(model, patches, occlusion).compile()
    counted = compiled.cost_analysis()["flops"]
    assert 1 <= counted / completion.product_flops(config) < 1.05


def test_held_out_is_the_first_pictures():
    smoke = masked_images.PRESETS["smoke"]
    few, all_ = completion.held_out(smoke, 5), completion.held_out(smoke, 100)
    assert len(few["image"]) == 5 and len(all_["image"]) == 38 and all_["valid"].all()
    np.testing.assert_array_equal(few["image"], all_["image"][:5])


# --- the Transformer to compare with ------------------------------------------


def count(model):
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


def test_transformer_sizes():
    D, K = 16, 32
    own = nnx.eval_shape(lambda: Transformer(TransformerConfig(D, 2, K, 3), rngs=nnx.Rngs(0)))
    shared = nnx.eval_shape(
        lambda: Transformer(TransformerConfig(D, 2, K, 3, True), rngs=nnx.Rngs(0))
    )
    weights_and_biases = 4 * D * D + 4 * D + 2 * D * K + K + D + 4 * D
    assert count(own) == 3 * weights_and_biases + 2 * D
    assert count(shared) == weights_and_biases + 2 * D


def test_transformer_against_pytorch():
    torch = pytest.importorskip("torch")
    D = 16
    model = Transformer(TransformerConfig(D, 2, 32, 1), rngs=nnx.Rngs(3))
    block = model.blocks[0]
    reference = torch.nn.TransformerEncoderLayer(
        D, 2, 32, dropout=0.0, activation=torch.nn.functional.gelu, batch_first=True,
        norm_first=True, layer_norm_eps=1e-6,
    )  # fmt: skip

    def copy(parameter, array):
        parameter.data = torch.tensor(np.asarray(array))

    copy(reference.self_attn.in_proj_weight, block.qkv.kernel[...].T)
    copy(reference.self_attn.in_proj_bias, block.qkv.bias[...])
    for theirs, ours in [
        (reference.self_attn.out_proj, block.out),
        (reference.linear1, block.up),
        (reference.linear2, block.down),
    ]:
        copy(theirs.weight, ours.kernel[...].T)
        copy(theirs.bias, ours.bias[...])
    x = np.random.default_rng(0).normal(size=(2, 5, D)).astype(np.float32)
    with torch.no_grad():
        expected = reference(torch.tensor(x)).numpy()
    np.testing.assert_allclose(model(jnp.asarray(x)), expected, atol=2e-3)


# --- what the parameters of the chapter build -----------------------------------


def test_models_to_compare_have_equal_compute_or_equal_size():
    """Weights of one layer and how often they act, from the formulas of `model_config`."""
    book = masked_images.PRESETS["book"]
    built = {}
    for name in ("et", "transformer", "transformer-shared"):
        config = completion.model_config(book.model_copy(update={"model": name}))
        model = nnx.eval_shape(lambda c=config: mi.MaskedImageModel(c, rngs=nnx.Rngs(0)))
        matrices = [a for a in jax.tree.leaves(nnx.state(model.block, nnx.Param)) if a.ndim > 1]
        built[name] = sum(a.size for a in matrices)
    # Each weight of ET acts twice a step, towards the keys or memories and back.
    assert built["transformer"] == 2 * built["et"] * book.n_steps
    assert built["transformer-shared"] == built["et"]


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"patch": 7}, "image_size 64 is no multiple of patch 7"),
        ({"n_masked": 62}, "n_masked \\+ n_kept is 65, of 64 patches"),
        ({"model": "transformer-shared", "n_memories": 256}, "more than 256"),
    ],
)
def test_parameters_that_build_nothing(wrong, words):
    with pytest.raises(ValueError, match=words):
        masked_images.Parameters(**wrong)


def test_a_run_in_the_same_folder_goes_on(tmp_path):
    """A training stopped and started again equals one that was not, data included."""
    smoke = masked_images.PRESETS["smoke"].model_copy(
        update={"train_steps": 6, "warmup_steps": 2, "checkpoint_every": 2}
    )
    _, whole = completion.fit(smoke, progress=False)
    folder = smoke.model_copy(update={"folder": str(tmp_path)})
    interrupted = pytest.MonkeyPatch()
    count = iter(range(5))

    def shard_until(*arguments, original=training.shard):
        if next(count, None) is None:
            raise KeyboardInterrupt
        return original(*arguments)

    with interrupted.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(training, "shard", shard_until)
        completion.fit(folder, progress=False)
    _, resumed = completion.fit(folder, progress=False)
    assert resumed[-1]["loss"] == whole[-1]["loss"]
    assert resumed[-1]["score"] == whole[-1]["score"]


SHORT = masked_images.PRESETS["smoke"].model_copy(update={"train_steps": 3, "warmup_steps": 1})

PROCESS = """
import sys
import jax
jax.distributed.initialize("localhost:{port}", 2, int(sys.argv[1]))
sys.path.insert(0, ".")
from tests.test_completion import SHORT, completion
assert jax.process_count() == 2 and jax.device_count() == 2
_, rows = completion.fit(SHORT, progress=False, evaluate_every=1)
print("rows", *[row[name] for row in rows for name in ("loss", "score")])
"""


def test_two_processes_train_and_score_as_one(tmp_path):
    """Each reads its share of every batch, in training and in evaluation."""
    with socket.socket() as s:
        s.bind(("localhost", 0))
        port = s.getsockname()[1]
    script = tmp_path / "process.py"
    script.write_text(PROCESS.format(port=port))
    flags = "--xla_cpu_use_fusion_emitters=false"  # and one device each
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(i)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    outputs = [p.communicate(timeout=240) for p in processes]
    assert all(p.returncode == 0 for p in processes), outputs[0][1] + outputs[1][1]
    _, rows = completion.fit(SHORT, progress=False, evaluate_every=1)
    one = [row[name] for row in rows for name in ("loss", "score")]
    for out, _ in outputs:
        line = next(line for line in out.splitlines() if line.startswith("rows"))
        np.testing.assert_allclose([float(v) for v in line.split()[1:]], one, rtol=1e-5)
