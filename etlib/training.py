"""One training loop for every task of the book.

AdamW with warm-up and cosine decay over a mesh of all devices of all processes. Step
randomness comes from folding the step into one key, so a run stopped and resumed is the run
that was not.
"""

import json
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Key, PyTree
from tqdm import tqdm

from etlib.checkpoints import Checkpoints, array_names
from etlib.errors import UserError

LOG = "log.jsonl"

Batch = PyTree[Array | np.ndarray]
Row = dict[str, Any]
Loss = Callable[[nnx.Module, Batch, Key[Array, ""]], tuple[Float[Array, ""], dict[str, Array]]]


@dataclass(frozen=True)
class TrainConfig:
    """The optimiser; defaults are the released image configuration, but for the length.

    weight_decay acts on arrays of two or more axes, so not on biases and norms, unless
    `decay_all`, as the released code does it. `centralize` takes from the gradient of such an
    array its mean over all axes but the first (Yong et al. 2020). `accumulate` splits each batch
    into that many parts, one after the other, for the gradient of the whole.

    Raises UserError for a value that no training can use.
    """

    n_steps: int
    warmup_steps: int = 0
    peak_lr: float = 5e-4
    start_lr: float = 5e-7
    end_lr: float = 5e-7
    b1: float = 0.9
    b2: float = 0.99
    weight_decay: float = 0.05
    decay_all: bool = False
    centralize: bool = False
    clip_norm: float | None = 1.0
    accumulate: int = 1
    seed: int = 0

    def __post_init__(self):
        if self.n_steps < 1:
            raise UserError(f"n_steps is {self.n_steps}: a training has at least one step")
        if self.accumulate < 1:
            raise UserError(f"accumulate is {self.accumulate}: it is a number of parts, 1 or more")
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise UserError(
                f"clip_norm is {self.clip_norm}: give a positive norm, or None for no clipping"
            )


def learning_rate(config: TrainConfig) -> optax.Schedule:
    """Linear warm-up from start_lr to peak_lr, then a cosine to end_lr at the last step.

    A warm-up that leaves no room for the cosine is cut to half of the steps, with a warning.
    """
    warmup = config.warmup_steps
    if warmup and warmup >= config.n_steps:
        warmup = config.n_steps // 2
        warnings.warn(
            f"warmup_steps ({config.warmup_steps}) is not below n_steps ({config.n_steps}): "
            f"warming up for {warmup} steps",
            stacklevel=2,
        )
    last = max(config.n_steps - 1, 1)
    rise = optax.linear_schedule(config.start_lr, config.peak_lr, max(warmup, 1))
    fall = optax.cosine_decay_schedule(
        config.peak_lr, max(last - warmup, 1), alpha=config.end_lr / config.peak_lr
    )
    return optax.join_schedules([rise, fall], [warmup])


def optimiser(config: TrainConfig) -> optax.GradientTransformation:
    """Clipping by the global norm and centralisation, each if asked for, then AdamW."""

    def decayed(params):
        return jax.tree.map(lambda p: config.decay_all or p.ndim >= 2, params)

    steps = []
    if config.clip_norm is not None:
        steps.append(optax.clip_by_global_norm(config.clip_norm))
    if config.centralize:
        steps.append(optax.centralize())
    adamw = optax.adamw(
        learning_rate(config),
        b1=config.b1,
        b2=config.b2,
        weight_decay=config.weight_decay,
        mask=decayed,
    )
    return optax.chain(*steps, adamw) if steps else adamw


class TrainState(NamedTuple):
    """All that changes in training. `broken` marks gradients that were not finite: the loss
    and then the parameters in flattening order; from that step on nothing changes."""

    params: PyTree
    moments: PyTree
    step: Int[Array, ""]
    broken: Bool[Array, " leaves"]


def initial_state(params: PyTree, config: TrainConfig) -> TrainState:
    """The state before the first step."""
    return TrainState(
        params=params,
        moments=optimiser(config).init(params),
        step=jnp.zeros((), jnp.int32),
        broken=jnp.zeros(1 + len(jax.tree.leaves(params)), bool),
    )


def make_step(model: nnx.Module, loss: Loss, config: TrainConfig):
    """The compiled step (state, batch) -> (state, metrics); the old state is given up.

    Models of one structure share what is compiled, if loss and configuration are the same.
    """
    graph, _, rest = nnx.split(model, nnx.Param, ...)
    step = _compiled_step(graph, loss, config)
    return lambda state, batch: step(state, rest, batch)


@lru_cache(maxsize=4)
def _compiled_step(graph: nnx.GraphDef, loss: Loss, config: TrainConfig):
    """The step (state, rest, batch) -> (state, metrics), with what is not trained as `rest`."""
    update = optimiser(config).update
    schedule = learning_rate(config)

    def gradients(params, rest, batch, key):
        def of(params):
            return loss(nnx.merge(graph, params, rest), batch, key)

        (value, metrics), gradient = jax.value_and_grad(of, has_aux=True)(params)
        return gradient, {"loss": value, **metrics}

    def accumulated(params, rest, batch, key):
        """The mean over the parts of the batch, for parts of equal size."""
        parts = jax.tree.map(
            lambda a: a.reshape(-1, config.accumulate, *a.shape[1:]).swapaxes(0, 1), batch
        )
        first = jax.eval_shape(gradients, params, rest, jax.tree.map(lambda a: a[0], parts), key)
        zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), first)

        def add(total, part_and_index):
            part, i = part_and_index
            return jax.tree.map(
                jnp.add, total, gradients(params, rest, part, jax.random.fold_in(key, i))
            ), None

        total, _ = jax.lax.scan(add, zero, (parts, jnp.arange(config.accumulate)))
        return jax.tree.map(lambda a: a / config.accumulate, total)

    @partial(jax.jit, donate_argnums=0)
    def step(state: TrainState, rest: PyTree, batch: Batch):
        key = jax.random.fold_in(jax.random.key(config.seed), state.step)
        compute = gradients if config.accumulate == 1 else accumulated
        gradient, metrics = compute(state.params, rest, batch, key)
        finite = [jnp.isfinite(a).all() for a in [metrics["loss"], *jax.tree.leaves(gradient)]]
        broken = jnp.where(state.broken.any(), state.broken, ~jnp.stack(finite))
        change, moments = update(gradient, state.moments, state.params)
        params = optax.apply_updates(state.params, change)
        metrics["learning_rate"] = schedule(state.step)
        metrics["gradient_norm"] = optax.tree.norm(gradient)
        new = TrainState(params, moments, state.step + 1, broken)
        unchanged = TrainState(state.params, state.moments, state.step, broken)
        return jax.tree.map(partial(jnp.where, broken.any()), unchanged, new), metrics

    return step


class NonFiniteStep(UserError, FloatingPointError):
    """A loss or gradient that is not finite; the parameters are those before that step."""


def check_finite(state: TrainState) -> None:
    """Raise NonFiniteStep, naming step and parameters, if a step so far was not finite."""
    broken = np.asarray(state.broken)
    if not broken.any():
        return
    paths = ["the loss", *(f"the gradient of {p}" for p in array_names(state.params))]
    names = [path for path, bad in zip(paths, broken, strict=True) if bad]
    raise NonFiniteStep(
        f"step {int(state.step)}: not finite: {', '.join(names)}. The parameters are those "
        f"before that step; try a smaller peak_lr, or clip_norm"
    )


def data_mesh(devices: list | None = None) -> Mesh:
    """All devices of all processes (or those given) along one axis, `data`."""
    return Mesh(np.asarray(jax.devices() if devices is None else devices), ("data",))


def check_batch(size: int, config: TrainConfig, mesh: Mesh) -> None:
    """Raise UserError, before anything is compiled, unless the devices share a batch evenly."""
    unit = mesh.size * config.accumulate
    if size % unit or size == 0:
        below, above = size // unit * unit, (size // unit + 1) * unit
        near = f"{below} or {above}" if below else f"{above}"
        raise UserError(
            f"a batch of {size} does not divide over {mesh.size} devices and {config.accumulate} "
            f"accumulated parts: the nearest sizes that do are {near}"
        )


def shard(batch: Batch, mesh: Mesh) -> Batch:
    """This process's part of a batch, spread over the mesh's `data` axis."""
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    return jax.tree.map(
        lambda a: jax.make_array_from_process_local_data(sharding, np.asarray(a)), batch
    )


def train(
    model: nnx.Module,
    loss: Loss,
    batches: Iterator[Batch],
    config: TrainConfig,
    *,
    folder: Path | None = None,
    checkpoint_every: int | None = None,
    evaluate: Callable[[nnx.Module], dict[str, float]] | None = None,
    evaluate_every: int | None = None,
    log_every: int = 50,
    progress: bool = True,
    mesh: Mesh | None = None,
) -> list[Row]:
    """Train `model` in place, and return the log: one row of metrics a logged step.

    loss:     (model, batch, key) -> (mean loss, further metrics), traced by JAX.
    batches:  an iterator of this process's batches, all of one shape. With `get_state` and
              `set_state` (Grain's iterators have them) its position is part of a checkpoint.
    folder:   where log.jsonl and the checkpoints go. A run whose folder holds a checkpoint
              goes on from it; without a folder nothing is kept.
    evaluate: called with the model every `evaluate_every` steps and after the last.

    Raises UserError for a batch the devices cannot share, CheckpointMismatch when the folder
    holds another model's checkpoint, NonFiniteStep when a step was not finite.
    """
    mesh = data_mesh() if mesh is None else mesh
    _, params, _ = nnx.split(model, nnx.Param, ...)
    # A copy: the first step gives its state's memory up, and the model keeps its own.
    begin = jax.jit(
        lambda params: initial_state(jax.tree.map(jnp.copy, params), config),
        out_shardings=NamedSharding(mesh, PartitionSpec()),
    )
    state = begin(params)
    step = make_step(model, loss, config)
    rows: list[Row] = []

    def due(every: int | None, t: int) -> bool:
        return t == config.n_steps or (every is not None and t % every == 0)

    with ExitStack() as stack:
        checkpoints = None
        if folder and checkpoint_every:
            checkpoints = stack.enter_context(closing(Checkpoints(folder / "checkpoints")))
            state = checkpoints.restore(state, batches)
        first = int(state.step) + 1
        if folder:
            rows = [row for row in read_log(folder) if row["step"] < first]
        bar = stack.enter_context(
            tqdm(total=config.n_steps, initial=first - 1, disable=not progress, unit="step")
        )
        start = time.perf_counter()
        for t in range(first, config.n_steps + 1):
            batch = next(batches)
            if t == first:
                n_samples = len(jax.tree.leaves(batch)[0]) * jax.process_count()
                check_batch(n_samples, config, mesh)
            # This returns before the step is done: the next batch is read and sent meanwhile.
            state, metrics = step(state, shard(batch, mesh))
            bar.update()
            evaluating = evaluate is not None and due(evaluate_every, t)
            if due(log_every, t) or evaluating:
                check_finite(state)
                row = {"step": t, **{k: float(v) for k, v in metrics.items()}}
                row["seconds"] = time.perf_counter() - start
                if evaluating:
                    nnx.update(model, state.params)
                    row |= evaluate(model)
                rows.append(row)
                bar.set_postfix(loss=f"{row['loss']:.4g}")
                if folder:
                    append_row(folder, row)
            if checkpoints and due(checkpoint_every, t):
                check_finite(state)
                checkpoints.save(t, state, batches)
    nnx.update(model, state.params)
    return rows


def append_row(folder: Path, row: Row) -> None:
    """Add one JSON line to a run's log (first process only)."""
    if jax.process_index() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LOG).open("a") as log:
            log.write(json.dumps(row) + "\n")


def read_log(folder: Path) -> list[Row]:
    """The rows of a run's log, also while it runs; of a step logged twice, the later one.

    A step is logged twice when a run was stopped after it and resumed before it.
    """
    if not (folder / LOG).exists():
        return []
    lines = (folder / LOG).read_text().splitlines()
    rows = {row["step"]: row for row in map(json.loads, lines)}
    return [rows[step] for step in sorted(rows)]
