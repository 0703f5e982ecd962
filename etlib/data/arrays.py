"""Batches of arrays that fit in memory."""

from collections.abc import Mapping

import grain
import numpy as np


def array_batches(
    arrays: Mapping[str, np.ndarray], batch: int, seed: int = 0
) -> grain.DatasetIterator:
    """Endless batches of rows, in an order of its own each epoch; the same for the same seed.

    arrays: name -> (samples, ...), all with the same number of samples. Yields name ->
    (batch, ...). The iterator's `get_state` and `set_state` make a run resumable.

    Raises ValueError for arrays of different lengths, or fewer samples than one batch.
    """
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"arrays of different lengths: {lengths}")
    n_samples = next(iter(lengths.values()))
    if n_samples < batch:
        raise ValueError(f"{n_samples} samples are fewer than one batch of {batch}")
    rows = grain.MapDataset.range(n_samples).seed(seed).shuffle().repeat().batch(batch)
    batches = rows.map(lambda index: {name: array[index] for name, array in arrays.items()})
    return iter(batches.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)))
