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
    padding: float = 0.2,
    dense_tokens: int | None = DENSE_TOKENS,
) -> Layout:
    """The layout of these graphs in batches of `batch` at most, of equal size to one graph.

    multiple:     the number of devices; each bucket divides over them.
    alike:        further lists of graphs, the training graphs of the other folds, say, whose
                  batches shall have the same shapes: then all share what is compiled once.
    padding:      what sharing one length may add to the tokens of a batch: there are as few
                  lengths as this allows, for each is compiled on its own.
    dense_tokens: slots of more tokens go to the list of edges; None for no list.

    Raises UserError for no graphs, or a batch without any.
    """
    if len(encoded) == 0 or batch < 1:
        raise UserError(f"{len(encoded)} graphs in batches of {batch}: give at least one of both")
    lists = [encoded, *(graphs for graphs in alike if graphs)]
    n_slots = max(-(-len(graphs) // _steps(graphs, batch)) for graphs in lists)
    n_slots += -n_slots % multiple
    needed = [_needed(graphs, _strata(graphs, n_slots)) for graphs in lists]
    n_tokens, n_edges = np.max(needed, axis=0)
    table = np.full((n_slots, _steps(encoded, batch)), -1)
    for slot, stratum in enumerate(_strata(encoded, n_slots)):
        table[slot, : len(stratum)] = stratum
    limit = np.inf if dense_tokens is None else dense_tokens
    dense = int(np.sum(n_tokens <= limit)) // multiple * multiple
    lengths = [_up(int(n), 4) for n in n_tokens[:dense]]
    ends = [end * multiple for end in _cuts(lengths[multiple - 1 :: multiple], padding)]
    runs = [
        Slots(start, end, lengths[end - 1])
        for start, end in zip([0, *ends][:-1], ends, strict=True)
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


def _cuts(lengths: Sequence[int], padding: float) -> list[int]:
    """Ends of the fewest runs of ascending lengths, each padded to its last, that do not add
    more than the share `padding` to their total; of as many runs those that add least."""
    slots = len(lengths)
    # least[end], came[end]: the least total of the slots before `end` in this many runs, and
    # where the last of those runs begins.
    least, came = [0.0] + slots * [np.inf], []
    while least[slots] > (1 + padding) * sum(lengths):
        ways = [
            [(least[start] + lengths[end - 1] * (end - start), start) for start in range(end)]
            for end in range(1, slots + 1)
        ]
        best = [(0.0, 0), *map(min, ways)]
        least, starts = [total for total, _ in best], [start for _, start in best]
        came.append(starts)
    ends, end = [], slots
    for starts in reversed(came):
        ends.append(end)
        end = starts[end]
    return ends[::-1]


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
