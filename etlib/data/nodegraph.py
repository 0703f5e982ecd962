"""A graph whose nodes have labels: the form in which every anomaly set reaches a model.

One rule for edges, applied once (`undirected`): a graph is simple and undirected. An edge
counts in both directions whichever way it was listed, repeats count once, and self-loops are
dropped. A model in which a node attends to itself adds that by its own option.
"""

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float32, Int8, Int32, Integer

from etlib.errors import DataError

UNLABELLED = -1

Edges = Int32[np.ndarray, "2 m"]


class NodeGraph(NamedTuple):
    """A graph under the rule of this module; build it with `node_graph`.

    x:         features of the nodes.
    edges:     rows (senders, receivers), both directions, sorted by receiver, then sender.
    labels:    1 for an anomaly, 0 for a normal node, -1 (`UNLABELLED`) for one that is in the
               graph but in no split, weight or metric.
    relations: edges of each kind, by name, for a graph of several kinds; `edges` joins them.
    about:     what the nodes, edges and labels are and who made them, for the data card.
    """

    name: str
    x: Float32[np.ndarray, "n F"]
    edges: Edges
    labels: Int8[np.ndarray, " n"]
    relations: dict[str, Edges]
    about: str

    @property
    def n_nodes(self) -> int:
        return len(self.x)

    @property
    def labelled(self) -> Integer[np.ndarray, " k"]:
        """The nodes that have a label, in order."""
        return np.flatnonzero(self.labels != UNLABELLED)

    @property
    def degrees(self) -> Integer[np.ndarray, " n"]:
        return np.bincount(self.edges[1], minlength=self.n_nodes)

    def adjacency(self) -> sp.csr_array:
        """The symmetric 0/1 matrix of the edges, float32."""
        ends = np.concatenate([[0], np.cumsum(self.degrees)])
        ones = np.ones(self.edges.shape[1], np.float32)
        shape = (self.n_nodes, self.n_nodes)
        return sp.csr_array((ones, self.edges[0], ends), shape=shape)


def node_graph(
    name: str,
    x: Float32[np.ndarray, "n F"],
    pairs: Integer[np.ndarray, "2 any"],
    labels: Int8[np.ndarray, " n"],
    relations: dict[str, Integer[np.ndarray, "2 ..."]] | None = None,
    about: str = "",
) -> NodeGraph:
    """A graph from pairs of nodes listed in any order and direction, with or without repeats.

    Raises DataError for features that are not finite, an edge to a node that is not there, or
    a label other than 0, 1 and -1.
    """
    n = len(x)
    bad = np.count_nonzero(~np.isfinite(x).all(axis=1))
    if bad:
        raise DataError(f"{name}: {bad} of {n} nodes have features that are not finite")
    if not np.isin(labels, (0, 1, UNLABELLED)).all():
        raise DataError(f"{name}: labels are {np.unique(labels)[:9]}, but they can be 0, 1 or -1")
    joined = {kind: undirected(p, n, f"{name}, {kind}") for kind, p in (relations or {}).items()}
    return NodeGraph(name, x, undirected(pairs, n, name), labels, joined, about)


def undirected(pairs: Integer[np.ndarray, "2 any"], n: int, name: str = "graph") -> Edges:
    """The edges of a simple undirected graph of n nodes: both directions, sorted by receiver,
    then sender, each once, without self-loops.

    Memory at its peak: about six 8-byte numbers a listed pair. Raises DataError for an edge to
    a node that is not there.
    """
    if pairs.size and not 0 <= pairs.min() <= pairs.max() < n:
        raise DataError(
            f"{name}: edges name nodes {pairs.min()} to {pairs.max()}, but there are {n} nodes, "
            f"counted from 0"
        )
    a, b = pairs[:, pairs[0] != pairs[1]].astype(np.int64)
    keys = np.concatenate([b * n + a, a * n + b])
    del a, b
    keys.sort()
    keys = keys[np.diff(keys, prepend=-1) > 0]
    edges = np.empty((2, len(keys)), np.int32)
    np.floor_divide(keys, n, out=edges[1], casting="unsafe")
    np.remainder(keys, n, out=edges[0], casting="unsafe")
    return edges
