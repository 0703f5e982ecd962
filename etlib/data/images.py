"""From pictures to batches: one pipeline, on Grain, for shipped photographs and for ImageNet.

A batch follows from seed and step alone, whatever the number of processes and workers: the
order is a permutation drawn anew each epoch, and the augmentation of a picture is drawn from
(seed, epoch, number of the picture). So a position is one number, the step, and a run may go
on with other workers or on another number of machines. Reading happens in a thread, or in
worker processes, which Grain spawns; they call nothing of JAX, so a running JAX does not stop
them. A script that asks for workers needs the usual `if __name__ == "__main__":`.
"""

import logging
import multiprocessing
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import grain
import numpy as np
from absl import flags
from PIL import Image

from etlib.data.decode import read_rgb
from etlib.data.imagefolder import SUFFIXES, ImageFolder
from etlib.data.photos import Photographs
from etlib.data.transforms import Augmentation, augment, centre
from etlib.errors import DataError

Batch = dict[str, np.ndarray]
Source = ImageFolder | Photographs
Unreadable = Literal["stop", "skip"]

log = logging.getLogger(__name__)


def source(
    spec: str,
    split: str,
    *,
    unreadable: Unreadable = "stop",
    crops: int = 4096,
) -> Source:
    """The data set that `spec` names: "photos", or "imagefolder:PATH" in ImageNet's layout.

    unreadable: "stop" raises DataError with the path of a file that cannot be read; "skip" goes
                on without it, and counts it in `Batches.skipped`. See also `ImageFolder`.
    crops:      how many random crops of `photos` make an epoch.

    Raises DataError for another spec or split, or a folder of another layout.
    """
    if split not in ("train", "val"):
        raise DataError(f"no split {split!r}: there are train and val")
    kind, _, path = spec.partition(":")
    if spec == "photos":
        return Photographs(split, crops)
    if kind == "imagefolder" and path:
        return ImageFolder(path, split, unreadable)
    raise DataError(f"no data set {spec!r}: there are photos and imagefolder:PATH")


def fingerprint(source: Source) -> dict[str, str]:
    """`name` and `sha256` of a data set, as records of results hold them."""
    return {"name": f"{source.name} {source.split}, {len(source)} images", "sha256": source.sha256}


class Batches:
    """An iterator of batches that can say, and be set to, its position.

    step:    batches given so far.
    skipped: the pictures that could not be read, with the reason.

    `close` ends the worker processes; so does the last batch, and leaving a `with` block.
    """

    def __init__(
        self,
        batches: grain.MapDataset,
        workers: int,
        run: dict[str, Any],
        steps_per_epoch: int,
    ):
        self.step = 0
        self.steps_per_epoch = steps_per_epoch
        self.skipped: dict[str, str] = {}
        self._batches, self._workers, self._run = batches, workers, run
        self._iterator: grain.DatasetIterator | None = None

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._iterator is None:
            self._iterator = self._start()
        try:
            batch, skipped = next(self._iterator)
        except BaseException:  # the end, too
            self.close()
            raise
        self.step += 1
        for path, reason in skipped:
            if path not in self.skipped:
                log.warning("skipped: %s", reason)
            self.skipped[path] = reason
        # Arrays from workers lie in shared memory that is freed with them; JAX may keep a view.
        return {name: np.array(array) if self._workers else array for name, array in batch.items()}

    def get_state(self) -> dict[str, Any]:
        """The position and what it is a position in, fit for JSON."""
        return {"step": self.step, **self._run}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a position.

        Raises DataError when it is one in other data, or with another batch, size or seed.
        """
        other = [
            f"{name}: {state.get(name)!r} there, {value!r} here"
            for name, value in self._run.items()
            if state.get(name) != value
        ]
        if other:
            raise DataError(f"this position is one in another stream of images: {'; '.join(other)}")
        self.close()
        self.step = state["step"]

    def close(self) -> None:
        """End reading and the worker processes; the next batch would start them again."""
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _start(self) -> grain.DatasetIterator:
        rest = self._batches[self.step :]
        if self._workers:
            if not flags.FLAGS.is_parsed():  # Grain asks absl for a flag, which then refuses
                flags.FLAGS.mark_as_parsed()
            options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
            split = grain.MultiprocessingOptions(self._workers, per_worker_buffer_size=2)
            return iter(rest.to_iter_dataset(options).mp_prefetch(split, _end_with_parent))
        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
        return iter(rest.to_iter_dataset(options))


def training_batches(
    source: Source,
    *,
    size: int = 64,
    batch: int = 64,
    seed: int = 0,
    epochs: int | None = None,
    augmentation: Augmentation = Augmentation(),  # noqa: B008  (frozen)
    workers: int = 0,
    process: tuple[int, int] = (0, 1),
) -> Batches:
    """Shuffled and augmented batches: `image` (b, size, size, 3), normalised, and `label` (b).

    batch:   images over all processes; each epoch leaves out what does not fill a batch,
             other pictures each time.
    epochs:  None for no end.
    workers: reading processes; 0 reads in a thread of this one.
    process: this process and how many there are (`jax.process_index()`, `.process_count()`);
             it gets its rows of each batch, b = batch / processes.

    In the place of a skipped picture stands the next readable one of the folder.

    Raises DataError for a batch that the images do not fill or the processes do not share.
    """
    _check(source, size, batch, process)
    if not 0 <= seed < 2**32:
        raise DataError(f"the seed is {seed}, not in 0..2^32 - 1")
    steps = len(source) // batch
    if not steps:
        raise DataError(
            f"fewer images than one batch: {source.name} has {len(source)} in {source.split}, "
            f"and the batch is {batch}"
        )
    order = grain.MapDataset.range(len(source)).seed(seed).shuffle()
    batches = order.batch(batch, drop_remainder=True).repeat(epochs)
    load = _Train(source, size, _rows(batch, process), seed, steps, augmentation)
    run = _run(source, size, batch) | {"seed": seed}
    return Batches(batches.map_with_index(load), workers, run, steps)


def evaluation_batches(
    source: Source,
    *,
    size: int = 64,
    batch: int = 64,
    workers: int = 0,
    process: tuple[int, int] = (0, 1),
) -> Batches:
    """Every picture once, in order and the same each time: `image`, `label` and `valid` (b).

    The last batch is filled up with zeros that are not `valid`, so that all have one shape;
    a skipped picture is not `valid` either. Average over valid images, not
    over batches. The other parameters are those of `training_batches`.
    """
    _check(source, size, batch, process)
    steps = -(-len(source) // batch)
    load = _Evaluate(source, size, _rows(batch, process), batch)
    batches = grain.MapDataset.range(steps).map(load)
    return Batches(batches, workers, _run(source, size, batch), steps)


def read_folder(folder: str | Path, size: int) -> dict[str, np.ndarray]:
    """The pictures directly in a folder, by file name, as evaluation would see them.

    Raises DataError when there is none, or one cannot be read.
    """
    folder = Path(folder).expanduser()
    files = sorted(f for f in folder.glob("[!.]*") if f.suffix.lower() in SUFFIXES)
    if not files:
        raise DataError(f"no picture in {folder.absolute()}")
    return {f.name: centre(read_rgb(f), size) for f in files}


Skipped = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Load:
    """What one step reads; it travels to the workers. `rows` are this process's of a batch."""

    source: Source
    size: int
    rows: slice

    def read(self, index: int, skipped: list[tuple[str, str]]) -> tuple[Image.Image, int] | None:
        try:
            return self.source[index]
        except DataError as error:
            if self.source.unreadable != "skip":
                raise
            skipped.append((str(self.source.path(index)), str(error)))
            return None

    def empty(self) -> Batch:
        b = self.rows.stop - self.rows.start
        image = np.zeros((b, self.size, self.size, 3), np.float32)
        return {"image": image, "label": np.zeros(b, np.int32)}


@dataclass(frozen=True)
class _Train(_Load):
    seed: int
    steps_per_epoch: int
    augmentation: Augmentation

    def __call__(self, step: int, order: np.ndarray) -> tuple[Batch, Skipped]:
        batch, skipped = self.empty(), []
        for row, index in enumerate(map(int, order[self.rows])):
            rng = np.random.default_rng((self.seed, step // self.steps_per_epoch, index))
            picture, batch["label"][row] = self.readable(index, skipped)
            batch["image"][row] = augment(picture, self.size, rng, self.augmentation)
        return batch, tuple(skipped)

    def readable(self, index: int, skipped: list[tuple[str, str]]) -> tuple[Image.Image, int]:
        for k in range(len(self.source)):
            found = self.read((index + k) % len(self.source), skipped)
            if found:
                return found
        raise DataError(f"none of the {len(self.source)} images can be read: {skipped[-1][1]}")


@dataclass(frozen=True)
class _Evaluate(_Load):
    batch: int

    def __call__(self, step: int) -> tuple[Batch, Skipped]:
        batch, skipped = self.empty(), []
        batch["valid"] = np.zeros(len(batch["label"]), bool)
        numbers = range(step * self.batch, (step + 1) * self.batch)[self.rows]
        for row, index in enumerate(numbers):
            found = self.read(index, skipped) if index < len(self.source) else None
            if found:
                batch["image"][row] = centre(found[0], self.size)
                batch["label"][row], batch["valid"][row] = found[1], True
        return batch, tuple(skipped)


def _end_with_parent(worker: int, workers: int) -> None:
    """In a worker: leave when the parent has been killed. Grain's would wait for ever."""

    def watch():
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run(source: Source, size: int, batch: int) -> dict[str, Any]:
    """What a position is a position in."""
    return {"data": source.sha256, "images": len(source), "size": size, "batch": batch}


def _rows(batch: int, process: tuple[int, int]) -> slice:
    index, count = process
    return slice(index * batch // count, (index + 1) * batch // count)


def _check(source: Source, size: int, batch: int, process: tuple[int, int]) -> None:
    index, count = process
    if size < 1 or batch < 1:
        raise DataError(f"size {size} and batch {batch} must be 1 or more")
    if not 0 <= index < count:
        raise DataError(f"process {index} of {count}: it runs from 0 to {count - 1}")
    if batch % count:
        below, above = batch // count * count, (batch // count + 1) * count
        near = f"{below} or {above}" if below else f"{above}"
        raise DataError(
            f"a batch of {batch} does not divide over {count} processes: "
            f"the nearest sizes that do are {near}"
        )
