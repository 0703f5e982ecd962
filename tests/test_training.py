"""The training loop: schedules, exact resuming, devices, broken steps, refusals."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from etlib.checkpoints import CheckpointMismatch, Checkpoints
from etlib.data.arrays import array_batches
from etlib.training import (
    NonFiniteStep,
    TrainConfig,
    check_batch,
    data_mesh,
    learning_rate,
    optimiser,
    read_log,
    train,
)


class Net(nnx.Module):
    """Two layers, with dropout-like noise so that the step's randomness matters."""

    def __init__(self, width: int = 8, memories: int = 4, extra: bool = False):
        rngs = nnx.Rngs(0)
        self.first = nnx.Linear(6, width, rngs=rngs)
        self.memories = nnx.Linear(width, memories, rngs=rngs)
        self.last = nnx.Linear(memories, 1, rngs=rngs)
        if extra:
            self.extra = nnx.Linear(1, 1, rngs=rngs)

    def __call__(self, x, key):
        h = jnp.tanh(self.first(x))
        h = h + 0.1 * jax.random.normal(key, h.shape[-1:])
        return self.last(jnp.tanh(self.memories(h)))[..., 0]


def loss(model, batch, key):
    error = model(batch["x"], key) - batch["y"]
    return jnp.mean(error**2), {"mean_error": error.mean()}


def data(batch=8):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 6)).astype(np.float32)
    return array_batches({"x": x, "y": np.sin(x.sum(1))}, batch, seed=1)


QUIET = {"progress": False, "log_every": 1}


def one_device():
    return data_mesh(jax.devices()[:1])


def parameters(model):
    return jax.tree.leaves(nnx.state(model, nnx.Param))


# --- the schedule -----------------------------------------------------------


@pytest.mark.parametrize("warmup, n_steps", [(0, 5), (0, 1), (2, 9), (3, 4)])
def test_learning_rate_as_written_down(warmup, n_steps):
    c = TrainConfig(n_steps=n_steps, warmup_steps=warmup, peak_lr=1.0, start_lr=0.1, end_lr=0.2)
    for t in range(n_steps):
        if t < warmup:
            expected = 0.1 + (1.0 - 0.1) * t / warmup
        else:
            part = (t - warmup) / max(n_steps - 1 - warmup, 1)
            expected = 0.2 + (1.0 - 0.2) * (1 + np.cos(np.pi * part)) / 2
        assert learning_rate(c)(t) == pytest.approx(expected, abs=1e-6), t


@pytest.mark.parametrize("warmup, n_steps", [(10, 5), (5, 5)])
def test_warmup_longer_than_the_run_is_cut_with_a_notice(warmup, n_steps):
    c = TrainConfig(n_steps=n_steps, warmup_steps=warmup)
    with pytest.warns(UserWarning, match=rf"warmup_steps \({warmup}\).*n_steps \({n_steps}\)"):
        schedule = learning_rate(c)
    assert schedule(2) == pytest.approx(c.peak_lr)
    assert schedule(4) == pytest.approx(c.end_lr)


@pytest.mark.parametrize(
    "wrong", [{"n_steps": 0}, {"n_steps": 5, "clip_norm": 0.0}, {"n_steps": 5, "accumulate": 0}]
)
def test_impossible_configurations(wrong):
    name = list(wrong)[-1]
    with pytest.raises(ValueError, match=name):
        TrainConfig(**wrong)


def test_decay_spares_biases_unless_asked():
    params = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2), "gamma": jnp.ones(())}
    zero = jax.tree.map(jnp.zeros_like, params)
    for decay_all, moved in [(False, {"kernel"}), (True, {"kernel", "bias", "gamma"})]:
        tx = optimiser(TrainConfig(n_steps=5, peak_lr=0.1, decay_all=decay_all))
        change, _ = tx.update(zero, tx.init(params), params)
        assert {name for name in params if np.any(change[name] != 0)} == moved
        assert change["kernel"][0, 0] == pytest.approx(-0.1 * 0.05)


def test_clipping_can_be_off():
    gradient = {"w": jnp.full(3, 1e6)}
    for clip, norm in [(1.0, 1.0), (None, 3**0.5 * 1e6)]:
        c = TrainConfig(n_steps=5, clip_norm=clip, weight_decay=0.0)
        tx = optax.chain(optimiser(c))
        # Adam forgets a gradient's size at once, so its first moment tells.
        _, state = tx.update(gradient, tx.init(gradient), gradient)
        first = optax.tree_utils.tree_get(state, "mu")["w"]
        assert np.linalg.norm(first) == pytest.approx((1 - c.b1) * norm, rel=1e-5)


# --- the loop ---------------------------------------------------------------


def test_centralisation_leaves_no_mean_and_spares_vectors():
    gradient = {"matrix": jnp.arange(6.0).reshape(2, 3) ** 2, "vector": jnp.array([1.0, 2.0])}
    tx = optimiser(TrainConfig(n_steps=5, b1=0.0, centralize=True, clip_norm=None))
    adam = tx.update(gradient, tx.init(gradient), gradient)[1]
    moment = optax.tree.get(adam, "mu")  # with b1 = 0, the gradient that Adam sees
    matrix = np.arange(6.0).reshape(2, 3) ** 2
    np.testing.assert_allclose(moment["matrix"], matrix - matrix.mean(1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(moment["vector"], [1.0, 2.0])


def test_models_of_one_structure_share_what_is_compiled():
    traced = []

    def counted(model, batch, key):
        traced.append(1)
        return loss(model, batch, key)

    first, second = Net(), Net()
    second.first.kernel[...] += 1.0
    for model in (first, second, Net(width=4)):
        train(model, counted, data(), TrainConfig(n_steps=2), **QUIET)
        if model is first:
            once = len(traced)
        if model is second:
            assert len(traced) == once
    assert len(traced) == 2 * once  # another structure is compiled anew
    assert not np.array_equal(first.first.kernel[...], second.first.kernel[...])


def test_it_learns_and_logs(tmp_path):
    model = Net()
    rows = train(
        model,
        loss,
        data(),
        TrainConfig(n_steps=300, peak_lr=5e-2, weight_decay=0.0),
        folder=tmp_path,
        evaluate=lambda m: {"weight": float(m.last.bias[0])},
        evaluate_every=150,
        progress=False,
        log_every=100,
    )
    assert [row["step"] for row in rows] == [100, 150, 200, 300]
    assert rows[-1]["loss"] < 0.1 < 0.5  # the targets' variance
    assert [row["step"] for row in rows if "weight" in row] == [150, 300]
    assert rows[-1]["weight"] == pytest.approx(float(model.last.bias[0]))
    written = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert written == rows


def test_adamw_step_against_optax_written_out():
    """One step of the loop equals Optax's AdamW applied by hand to the same gradient."""
    model, reference = Net(), Net()
    batch = next(data())
    train(model, loss, data(), TrainConfig(n_steps=1, peak_lr=1e-2, clip_norm=None), **QUIET)
    key = jax.random.fold_in(jax.random.key(0), 0)
    graph, params, rest = nnx.split(reference, nnx.Param, ...)
    gradient = jax.grad(lambda p: loss(nnx.merge(graph, p, rest), batch, key)[0])(params)
    for old, g, new in zip(
        jax.tree.leaves(params), jax.tree.leaves(gradient), parameters(model), strict=True
    ):
        decay = 0.05 * old if old.ndim >= 2 else 0.0
        by_hand = old - 1e-2 * (g / (jnp.abs(g) + 1e-8) + decay)
        np.testing.assert_allclose(new, by_hand, rtol=2e-4, atol=1e-6)


def test_accumulation_equals_the_whole_batch():
    def quiet_loss(model, batch, key):
        return loss(model, batch, jax.random.key(0))

    models = []
    for accumulate in (1, 2, 4):
        models.append(Net())
        config = TrainConfig(n_steps=5, peak_lr=1e-2, accumulate=accumulate)
        train(models[-1], quiet_loss, data(), config, mesh=one_device(), **QUIET)
    for other in models[1:]:
        for a, b in zip(parameters(models[0]), parameters(other), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


def test_two_devices_give_the_loss_of_one():
    assert jax.device_count() == 2
    losses = []
    for n in (1, 2):
        mesh = data_mesh(jax.devices()[:n])
        rows = train(Net(), loss, data(), TrainConfig(n_steps=10), mesh=mesh, **QUIET)
        losses.append([row["loss"] for row in rows])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


@pytest.mark.parametrize("size, accumulate, near", [(10, 1, "8 or 16"), (4, 1, "8"), (8, 2, "16")])
def test_batch_that_devices_cannot_share(size, accumulate, near):
    mesh = data_mesh([jax.devices()[0]] * 8)
    with pytest.raises(ValueError, match=rf"batch of {size} .* 8 devices .* {near}$"):
        check_batch(size, TrainConfig(n_steps=1, accumulate=accumulate), mesh)


def test_fewer_samples_than_one_batch():
    with pytest.raises(ValueError, match="3 samples are fewer than one batch of 8"):
        array_batches({"x": np.zeros((3, 2))}, 8)


# --- stopping and resuming --------------------------------------------------


class Interrupted(Exception):
    pass


class StopsAt:
    """An iterator that breaks off, as a killed process would."""

    def __init__(self, batches, step):
        self.batches, self.left = batches, step

    def __iter__(self):
        return self

    def __next__(self):
        if self.left == 0:
            raise Interrupted
        self.left -= 1
        return next(self.batches)

    def get_state(self):
        return self.batches.get_state()

    def set_state(self, state):
        self.batches.set_state(state)


def test_resumed_run_equals_a_run_that_was_not_stopped(tmp_path):
    config = TrainConfig(n_steps=20, warmup_steps=3, peak_lr=1e-2)
    options = {"checkpoint_every": 4, **QUIET}
    whole, stopped, resumed = Net(), Net(), Net()
    rows = train(whole, loss, data(), config, folder=tmp_path / "whole", **options)
    with pytest.raises(Interrupted):
        train(stopped, loss, StopsAt(data(), 14), config, folder=tmp_path / "run", **options)
    again = train(resumed, loss, data(), config, folder=tmp_path / "run", **options)
    for a, b in zip(parameters(whole), parameters(resumed), strict=True):
        np.testing.assert_array_equal(a, b)

    def without_clock(rows):
        return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]

    assert without_clock(again) == without_clock(rows)
    assert without_clock(read_log(tmp_path / "run")) == without_clock(rows)


def test_interrupted_save_is_skipped(tmp_path):
    config = TrainConfig(n_steps=8, peak_lr=1e-2)
    options = {"folder": tmp_path, "checkpoint_every": 4, **QUIET}
    train(Net(), loss, data(), config, **options)
    half = tmp_path / "checkpoints" / "9.orbax-checkpoint-tmp" / "state"
    half.mkdir(parents=True)
    (half / "part").write_bytes(b"cut")
    longer = Net()
    rows = train(longer, loss, data(), TrainConfig(n_steps=9, peak_lr=1e-2), **options)
    assert [row["step"] for row in rows] == list(range(1, 10))


@pytest.mark.parametrize(
    "changed, lines",
    [
        ({"width": 16}, ["first/kernel: stored float32[6, 8], wanted float32[6, 16]"]),
        ({"memories": 8}, ["memories/kernel: stored float32[8, 4], wanted float32[8, 8]"]),
        ({"extra": True}, ["extra/kernel: stored nothing, wanted float32[1, 1]"]),
    ],
)
def test_checkpoint_of_another_model_is_refused(tmp_path, changed, lines):
    options = {"folder": tmp_path, "checkpoint_every": 2, **QUIET}
    train(Net(), loss, data(), TrainConfig(n_steps=2), **options)
    before = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    with pytest.raises(CheckpointMismatch) as refusal:
        train(Net(**changed), loss, data(), TrainConfig(n_steps=4), **options)
    for line in lines:
        assert f"params/{line}" in str(refusal.value)
    assert "new folder" in str(refusal.value)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == before


def test_checkpoint_with_more_than_the_model_is_refused(tmp_path):
    options = {"folder": tmp_path, "checkpoint_every": 2, **QUIET}
    train(Net(extra=True), loss, data(), TrainConfig(n_steps=2), **options)
    with pytest.raises(
        CheckpointMismatch, match=r"extra/kernel: stored float32\[1, 1\], wanted no"
    ):
        train(Net(), loss, data(), TrainConfig(n_steps=4), **options)


def test_checkpoint_of_another_type_is_refused(tmp_path):
    """Types are not cast: 16777217 does not survive as float32."""
    first = Checkpoints(tmp_path)
    first.save(1, {"step": jnp.asarray(16777217, jnp.int32)}, None)
    first.close()
    second = Checkpoints(tmp_path)
    with pytest.raises(CheckpointMismatch, match=r"step: stored int32\[\], wanted float32\[\]"):
        second.restore({"step": jnp.asarray(0.0, jnp.float32)}, None)
    kept = second.restore({"step": jnp.asarray(0, jnp.int32)}, None)
    assert int(kept["step"]) == 16777217
    second.close()


# --- steps that are not finite ----------------------------------------------


def test_broken_step_is_named_and_changes_nothing():
    def breaks(model, batch, key):
        value, metrics = loss(model, batch, key)
        return value + jnp.nan * model.first.bias[0], metrics

    model = Net()
    before = [np.array(p) for p in parameters(model)]
    with pytest.raises(
        NonFiniteStep, match=r"step 0: not finite: the loss, the gradient of first/bias\. "
    ):
        train(model, breaks, data(), TrainConfig(n_steps=5), progress=False)
    for old, new in zip(before, parameters(model), strict=True):
        np.testing.assert_array_equal(old, new)
