"""Graphs of many sizes as batches of one fixed set of shapes.

The graphs are sorted by size and cut into as many strata as a batch has slots. Every batch
takes one graph of each stratum, in an order that is new each epoch: each graph is seen once an
epoch, the batches differ in graphs but not in sizes, and the length of a slot, the size of its
stratum's largest graph, holds for all of them. So nothing is ever compiled twice, and little
is padded. Neighbouring slots share one length, the slots of one length are a `Bucket`.

A stratum with fewer graphs than the epoch has batches leaves its slot empty in some: y = -1.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Int

from etlib.data.graphset import Graph
from etlib.encodings import augmented_encoding, laplacian_encoding
from etlib.errors import UserError


class Encoded(NamedTuple):
    """A graph and the encodings of its tokens: CLS, then the nodes."""

    graph: Graph
    encoding: Float[np.ndarray, "n1 k"]

    @property
    def n_tokens(self) -> int:
        return len(self.encoding)


def encode(graphs: Sequence[Graph], k: int, *, with_cls: bool = False) -> list[Encoded]:
    """The graphs with k Laplacian eigenvectors each, computed once.

    The graph's own, and zeros for CLS; `with_cls` those of the graph with CLS in it, as the
    released code has it.
    """

    def encoding(graph: Graph) -> np.ndarray:
        if with_cls:
            return augmented_encoding(len(graph.x), graph.edges, k)
        own = laplacian_encoding(len(graph.x), graph.edges, k)
        return np.concatenate([np.zeros((1, k)), own])

    return [Encoded(graph, encoding(graph).astype(np.float32)) for graph in graphs]


class Bucket(NamedTuple):
    """Graphs padded to one length N. Token 0 is CLS, then come the nodes, then padding.

    edges:     True between neighbours, and between CLS and every node.
    edge_attr: features of each pair, ones between CLS and every token, itself too; where the
               graphs have no features of edges, the adjacency matrix.
    y:         classes, -1 in an empty slot.
    index:     which of the graphs this is, -1 in an empty slot.
    """

    x: Float[Array | np.ndarray, "b N F"]
    encoding: Float[Array | np.ndarray, "b N k"]
    valid: Bool[Array | np.ndarray, "b N"]
    edges: Bool[Array | np.ndarray, "b N N"]
    edge_attr: Float[Array | np.ndarray, "b N N Fe"]
    y: Int[Array | np.ndarray, " b"]
    index: Int[Array | np.ndarray, " b"]


Batch = tuple[Bucket, ...]


def bucket(encoded: Sequence[Encoded], chosen: Int[np.ndarray, " b"], n_tokens: int) -> Bucket:
    """The chosen graphs (-1: none) padded to `n_tokens` tokens."""
    first = encoded[0]
    b, n_edge_features = len(chosen), _edge_features(first.graph).shape[1]
    x = np.zeros((b, n_tokens, first.graph.x.shape[1]), np.float32)
    encoding = np.zeros((b, n_tokens, first.encoding.shape[1]), np.float32)
    valid = np.zeros((b, n_tokens), bool)
    edges = np.zeros((b, n_tokens, n_tokens), bool)
    edge_attr = np.zeros((b, n_tokens, n_tokens, n_edge_features), np.float32)
    y = np.full(b, -1, np.int32)
    for i, c in enumerate(chosen):
        if c < 0:
            continue
        graph, n = encoded[c].graph, encoded[c].n_tokens
        x[i, 1:n] = graph.x
        encoding[i, :n] = encoded[c].encoding
        valid[i, :n] = True
        sender, receiver = graph.edges + 1
        edges[i, sender, receiver] = True
        edges[i, 0, 1:n] = edges[i, 1:n, 0] = True
        edge_attr[i, sender, receiver] = _edge_features(graph)
        edge_attr[i, 0, :n] = edge_attr[i, :n, 0] = 1
        y[i] = graph.y
    return Bucket(x, encoding, valid, edges, edge_attr, y, np.asarray(chosen, np.int32))


def _edge_features(graph: Graph) -> np.ndarray:
    ones = np.ones((graph.edges.shape[1], 1), np.float32)
    return ones if graph.edge_attr is None else graph.edge_attr


class Layout(NamedTuple):
    """How the graphs of one list share out over the batches of an epoch.

    table:   row s holds the graphs of stratum s, -1 where it has none: one a batch.
    buckets: (first slot, slot after the last, number of tokens) of each bucket.
    """

    table: Int[np.ndarray, "slots batches"]
    buckets: tuple[tuple[int, int, int], ...]

    @property
    def steps_per_epoch(self) -> int:
        return self.table.shape[1]


def layout(sizes: Sequence[int], batch: int = 64, multiple: int = 1, n_buckets: int = 3) -> Layout:
    """The layout of graphs with these numbers of tokens, in batches of `batch` at most.

    The batches of an epoch are of equal size, to one graph. multiple: the number of devices;
    each bucket divides over them. n_buckets: how many lengths there are at most; those with
    least padding are found.

    Raises UserError for no graphs, or a batch without any.
    """
    if len(sizes) == 0 or batch < 1:
        raise UserError(f"{len(sizes)} graphs in batches of {batch}: give at least one of both")
    steps = -(-len(sizes) // batch)
    n_slots = -(-len(sizes) // steps)
    n_slots += -n_slots % multiple
    strata = np.array_split(np.argsort(sizes, kind="stable"), n_slots)
    table = np.full((n_slots, steps), -1)
    for slot, stratum in enumerate(strata):
        table[slot, : len(stratum)] = stratum
    needed = [max((sizes[i] for i in stratum), default=1) for stratum in strata]
    ends = _cuts(np.asarray(needed)[multiple - 1 :: multiple], n_buckets) * multiple
    buckets = [
        (int(start), int(end), int(-(-max(needed[start:end]) // 4) * 4))
        for start, end in zip([0, *ends[:-1]], ends, strict=True)
    ]
    return Layout(table, tuple(buckets))


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

    `get_state` and `set_state` make a run resumable.
    """

    def __init__(
        self, encoded: Sequence[Encoded], batch: int = 64, seed: int = 0, multiple: int = 1
    ):
        self.encoded, self.seed, self.step = encoded, seed, 0
        self.layout = layout([e.n_tokens for e in encoded], batch, multiple)

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


def evaluation_batches(
    encoded: Sequence[Encoded], batch: int = 64, multiple: int = 1
) -> list[Batch]:
    """Batches with each graph once, in a fixed order."""
    of = layout([e.n_tokens for e in encoded], batch, multiple)
    return [packed(encoded, of, column) for column in of.table.T]


def packed(encoded: Sequence[Encoded], of: Layout, chosen: Int[np.ndarray, " slots"]) -> Batch:
    """The graphs chosen for each slot as one batch."""
    return tuple(bucket(encoded, chosen[start:end], n) for start, end, n in of.buckets)
