"""Graphs as arrays: dense, padded to one length, or end to end with a list of edges.

Dense arrays suit small graphs: the work on all pairs of a graph's tokens is less than that of
picking out the joined ones. A list of edges suits large ones: work and memory grow with the
number of edges. Both hold tokens in the same order, CLS and then the nodes of its graph, and
both join CLS to all nodes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from etlib.data.graphset import Graph
from etlib.encodings import augmented_encoding, laplacian_encoding


class Encoded(NamedTuple):
    """A graph and the encodings of its tokens: CLS, then the nodes."""

    graph: Graph
    encoding: Float[np.ndarray, "n1 k"]

    @property
    def n_tokens(self) -> int:
        return len(self.encoding)

    @property
    def n_edges(self) -> int:
        """Of the list of edges, with those of CLS."""
        return self.graph.edges.shape[1] + 2 * len(self.graph.x)


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

    @property
    def is_cls(self) -> Bool[Array, " N"]:
        return jnp.arange(self.x.shape[1]) == 0

    def at_cls(self, x: Float[Array, "b N D"]) -> Float[Array, "b D"]:
        """The CLS tokens of tokens x."""
        return x[:, 0]

    def of_tokens(self, values: Float[Array, "b k"]) -> Float[Array, "b 1 k"]:
        """A value of each graph, for its tokens."""
        return values[:, None]


class EdgeBucket(NamedTuple):
    """Graphs end to end, and the list of their edges, sorted by receiver; padding is last.

    slot: which of the P graphs a token is of, -1 for padding. used: False for edges that are
    padding. edge_attr: features of each edge, ones for those of CLS, and where the graphs have
    none. cls: at which token each graph starts. y, index: as in `Bucket`.
    """

    x: Float[Array | np.ndarray, "N F"]
    encoding: Float[Array | np.ndarray, "N k"]
    slot: Int[Array | np.ndarray, " N"]
    senders: Int[Array | np.ndarray, " E"]
    receivers: Int[Array | np.ndarray, " E"]
    used: Bool[Array | np.ndarray, " E"]
    edge_attr: Float[Array | np.ndarray, "E Fe"]
    cls: Int[Array | np.ndarray, " P"]
    y: Int[Array | np.ndarray, " P"]
    index: Int[Array | np.ndarray, " P"]

    @property
    def valid(self) -> Bool[Array | np.ndarray, " N"]:
        return self.slot >= 0

    @property
    def is_cls(self) -> Bool[Array, " N"]:
        return jnp.diff(jnp.asarray(self.slot), prepend=-1) != 0

    def at_cls(self, x: Float[Array, "N D"]) -> Float[Array, "P D"]:
        """The CLS tokens of tokens x."""
        return x[self.cls]

    def of_tokens(self, values: Float[Array, "P k"]) -> Float[Array, "N k"]:
        """A value of each graph, for its tokens."""
        return values[self.slot]


Batch = tuple[Bucket | EdgeBucket, ...]


def bucket(encoded: Sequence[Encoded], chosen: Int[np.ndarray, " b"], n_tokens: int) -> Bucket:
    """The chosen graphs (-1: none) padded to `n_tokens` tokens."""
    n_features, k, n_edge_features = _widths(encoded[0])
    b = len(chosen)
    x = np.zeros((b, n_tokens, n_features), np.float32)
    encoding = np.zeros((b, n_tokens, k), np.float32)
    valid = np.zeros((b, n_tokens), bool)
    edges = np.zeros((b, n_tokens, n_tokens), bool)
    edge_attr = np.zeros((b, n_tokens, n_tokens, n_edge_features), np.float32)
    y = np.full(b, -1, np.int32)
    for i in np.flatnonzero(np.asarray(chosen) >= 0):
        of = encoded[chosen[i]]
        graph, n = of.graph, of.n_tokens
        x[i, 1:n] = graph.x
        encoding[i, :n] = of.encoding
        valid[i, :n] = True
        sender, receiver = graph.edges + 1
        edges[i, sender, receiver] = True
        edges[i, 0, 1:n] = edges[i, 1:n, 0] = True
        edge_attr[i, sender, receiver] = _edge_features(graph)
        edge_attr[i, 0, :n] = edge_attr[i, :n, 0] = 1
        y[i] = graph.y
    return Bucket(x, encoding, valid, edges, edge_attr, y, np.asarray(chosen, np.int32))


def edge_bucket(
    encoded: Sequence[Encoded], chosen: Int[np.ndarray, " P"], n_tokens: int, n_edges: int
) -> EdgeBucket:
    """The chosen graphs (-1: none) with padding up to so many tokens and edges."""
    n_features, k, n_edge_features = _widths(encoded[0])
    x = np.zeros((n_tokens, n_features), np.float32)
    encoding = np.zeros((n_tokens, k), np.float32)
    slot = np.full(n_tokens, -1, np.int32)
    # Edges that are padding stay sorted: they go from the last token to itself.
    senders, receivers = np.full((2, n_edges), n_tokens - 1, np.int32)
    edge_attr = np.zeros((n_edges, n_edge_features), np.float32)
    cls = np.zeros(len(chosen), np.int32)
    y = np.full(len(chosen), -1, np.int32)
    start = edge = 0
    for i in np.flatnonzero(np.asarray(chosen) >= 0):
        of = encoded[chosen[i]]
        graph, n, m = of.graph, of.n_tokens, of.n_edges
        nodes = np.arange(1, n)
        sender = np.concatenate([nodes, 0 * nodes, graph.edges[0] + 1])
        receiver = np.concatenate([0 * nodes, nodes, graph.edges[1] + 1])
        order = np.lexsort((sender, receiver))
        ones = np.ones((2 * len(nodes), n_edge_features), np.float32)
        x[start + 1 : start + n] = graph.x
        encoding[start : start + n] = of.encoding
        slot[start : start + n] = i
        senders[edge : edge + m] = start + sender[order]
        receivers[edge : edge + m] = start + receiver[order]
        edge_attr[edge : edge + m] = np.concatenate([ones, _edge_features(graph)])[order]
        cls[i], y[i] = start, graph.y
        start, edge = start + n, edge + m
    used = np.arange(n_edges) < edge
    index = np.asarray(chosen, np.int32)
    return EdgeBucket(x, encoding, slot, senders, receivers, used, edge_attr, cls, y, index)


def _edge_features(graph: Graph) -> Float[np.ndarray, "m Fe"]:
    ones = np.ones((graph.edges.shape[1], 1), np.float32)
    return ones if graph.edge_attr is None else graph.edge_attr


def _widths(encoded: Encoded) -> tuple[int, int, int]:
    """Features of a node, of its encoding, of an edge."""
    graph = encoded.graph
    return graph.x.shape[1], encoded.encoding.shape[1], _edge_features(graph).shape[1]
