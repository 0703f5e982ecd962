"""Graphs of many sizes as batches of one fixed set of shapes.

The graphs are sorted by size and cut into as many strata as a batch has slots. Every batch
takes one graph of each stratum, in an order that is new each epoch: each graph is seen once an
epoch, the batches differ in graphs but not in sizes, and the length of a slot, the size of its
stratum's largest graph, holds for all of them. So nothing is ever compiled twice, and little
is padded. Neighbouring slots share one length, the slots of one length are a `Bucket`; those
of the largest graphs are one `EdgeBucket`.

A stratum with fewer graphs than the epoch has batches leaves its slot empty in some: y = -1.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from etlib.buckets import Batch, Encoded, bucket, edge_bucket
from etlib.errors import UserError

# Up to here the products of all pairs cost less than the gathers of the joined ones.
DENSE_TOKENS = 256


class Slots(NamedTuple):
    """A run of slots, and the shape of what it holds: `n_tokens` each, in a dense bucket; or
    `n_tokens` and `n_edges` in all, in a list of edges."""

    start: int
    end: int
    n_tokens: int
    n_edges: int | None = None


class Layout(NamedTuple):
    """How the graphs of one list share out over the batches of an epoch.

    table: row s holds the graphs of stratum s, -1 where it has none: one a batch.
    """

    table: Int[np.ndarray, "slots batches"]
    runs: tuple[Slots, ...]

    @property
    def steps_per_epoch(self) -> int:
        return self.table.shape[1]


def layout(
    encoded: Sequence[Encoded],
    batch: int = 64,
    *,
    multiple: int = 1,
    alike: Sequence[Sequence[Encoded]] = (),
    n_buckets: int = 3,
    dense_tokens: int | None = DENSE_TOKENS,
) -> Layout:
    """The layout of these graphs in batches of `batch` at most, of equal size to one graph.

    multiple:     the number of devices; each bucket divides over them.
    alike:        further lists of graphs, the training graphs of the other folds, say, whose
                  batches shall have the same shapes: then all share what is compiled once.
    n_buckets:    how many lengths there are at most; those with least padding are found.
    dense_tokens: slots of more tokens go to the list of edges; None for no list.

    Raises UserError for no graphs, or a batch without any.
    """
    if len(encoded) == 0 or batch < 1:
        raise UserError(f"{len(encoded)} graphs in batches of {batch}: give at least one of both")
    lists = [encoded, *alike]
    n_slots = max(-(-len(graphs) // _steps(graphs, batch)) for graphs in lists)
    n_slots += -n_slots % multiple
    needed = [_needed(graphs, _strata(graphs, n_slots)) for graphs in lists]
    n_tokens, n_edges = np.max(needed, axis=0)
    table = np.full((n_slots, _steps(encoded, batch)), -1)
    for slot, stratum in enumerate(_strata(encoded, n_slots)):
        table[slot, : len(stratum)] = stratum
    limit = np.inf if dense_tokens is None else dense_tokens
    dense = int(np.sum(n_tokens <= limit)) // multiple * multiple
    ends = _cuts(n_tokens[:dense][multiple - 1 :: multiple], n_buckets) * multiple
    runs = [
        Slots(int(start), int(end), _up(int(n_tokens[end - 1]), 4))
        for start, end in zip([0, *ends[:-1]], ends, strict=True)
    ]
    if dense < n_slots:
        total = (_up(int(a[dense:].sum()), 64 * multiple) for a in (n_tokens, n_edges))
        runs.append(Slots(dense, n_slots, *total))
    return Layout(table, tuple(runs))


def _steps(graphs: Sequence[Encoded], batch: int) -> int:
    return -(-len(graphs) // batch)


def _strata(graphs: Sequence[Encoded], n_slots: int) -> list[Int[np.ndarray, " stratum"]]:
    """Ascending in size; where they cannot all be full, those of the smallest graphs are not."""
    descending = np.argsort([-e.n_tokens for e in graphs], kind="stable")
    return np.array_split(descending, n_slots)[::-1]


def _needed(graphs: Sequence[Encoded], strata: list[np.ndarray]) -> Int[np.ndarray, "2 slots"]:
    """Tokens and edges of the largest graphs of each stratum."""
    sizes = np.array([[e.n_tokens, e.n_edges] for e in graphs])
    return np.array([sizes[stratum].max(axis=0, initial=1) for stratum in strata]).T


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _cuts(lengths: Int[np.ndarray, " slots"], n: int) -> Int[np.ndarray, " n"]:
    """Ends of at most n runs of ascending lengths, each padded to its last, of least total."""
    slots = len(lengths)
    least = np.full((n + 1, slots + 1), np.inf)
    least[:, 0] = 0
    came = np.zeros((n + 1, slots + 1), int)
    for runs in range(1, n + 1):
        for end in range(1, slots + 1):
            total = least[runs - 1, :end] + lengths[end - 1] * (end - np.arange(end))
            came[runs, end] = np.argmin(total)
            least[runs, end] = total[came[runs, end]]
    ends, end = [], slots
    for runs in range(n, 0, -1):
        if end > 0:
            ends.append(end)
            end = came[runs, end]
    return np.array(ends[::-1], int)


class GraphBatches:
    """Endless batches for training; batch t is a function of the seed and t alone.

    `get_state` and `set_state` make a run resumable. Options as in `layout`.
    """

    def __init__(self, encoded: Sequence[Encoded], batch: int = 64, seed: int = 0, **options):
        self.encoded, self.seed, self.step = encoded, seed, 0
        self.layout = layout(encoded, batch, **options)

    @property
    def steps_per_epoch(self) -> int:
        return self.layout.steps_per_epoch

    def __iter__(self) -> "GraphBatches":
        return self

    def __next__(self) -> Batch:
        epoch, column = divmod(self.step, self.steps_per_epoch)
        rng = np.random.default_rng([self.seed, epoch])
        self.step += 1
        return packed(self.encoded, self.layout, rng.permuted(self.layout.table, axis=1)[:, column])

    def get_state(self) -> dict[str, int]:
        return {"step": self.step}

    def set_state(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def evaluation_batches(encoded: Sequence[Encoded], batch: int = 64, **options) -> list[Batch]:
    """Batches with each graph once, in a fixed order. Options as in `layout`."""
    of = layout(encoded, batch, **options)
    return [packed(encoded, of, column) for column in of.table.T]


def packed(encoded: Sequence[Encoded], of: Layout, chosen: Int[np.ndarray, " slots"]) -> Batch:
    """The graphs chosen for each slot as one batch."""
    return tuple(
        bucket(encoded, chosen[run.start : run.end], run.n_tokens)
        if run.n_edges is None
        else edge_bucket(encoded, chosen[run.start : run.end], run.n_tokens, run.n_edges)
        for run in of.runs
    )
