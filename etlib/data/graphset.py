"""Graphs with a class each: the form in which every set of graphs reaches a model.

One rule for edges, applied once (`graph`): a graph is simple and undirected. Each edge is
listed in both directions, sorted, once; self-loops are dropped.
"""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int


class Graph(NamedTuple):
    """A graph under the rule of this module; build it with `graph`.

    x: features of the nodes. edges: columns (from, to), sorted. edge_attr: features of the
    edges, the same in both directions, or None. y: its class, counted from 0.
    """

    x: Float[np.ndarray, "n F"]
    edges: Int[np.ndarray, "2 m"]
    edge_attr: Float[np.ndarray, "m Fe"] | None
    y: int

    @property
    def degrees(self) -> Int[np.ndarray, " n"]:
        return np.bincount(self.edges[0], minlength=len(self.x))


def graph(
    x: Float[np.ndarray, "n F"],
    edges: Int[np.ndarray, "2 any"],
    y: int,
    edge_attr: Float[np.ndarray, "any Fe"] | None = None,
) -> Graph:
    """A simple undirected graph from any list of edges.

    An edge listed in one direction only counts in both. Of an edge listed repeatedly, or in
    both directions with other features, the first listing in the sorted direction (from < to)
    gives the features; only without such a listing, the first of the other direction.

    Raises ValueError for an edge to a node that is not there.
    """
    n = len(x)
    if edges.size and not 0 <= edges.min() <= edges.max() < n:
        raise ValueError(f"edges name nodes {edges.min()} to {edges.max()}, of {n} nodes from 0")
    low, high = edges.min(axis=0), edges.max(axis=0)
    listed = np.lexsort((edges[0] > edges[1], high, low))  # stable: listings in (from < to) first
    listed = listed[low[listed] != high[listed]]
    _, first = np.unique(low[listed] * n + high[listed], return_index=True)
    kept = listed[first]
    pairs = np.stack([low[kept], high[kept]])
    both = np.concatenate([pairs, pairs[::-1]], axis=1)
    order = np.lexsort((both[1], both[0]))
    if edge_attr is not None:
        edge_attr = np.tile(edge_attr[kept], (2, 1))[order].astype(np.float32)
    return Graph(x.astype(np.float32), both[:, order].astype(np.int32), edge_attr, int(y))


@dataclass(frozen=True)
class GraphSet:
    """Graphs of one task.

    features: what the columns of `x` are. labels: where the classes come from. sources: what
    each graph was made from, where that says more than the graph, such as a SMILES.
    """

    name: str
    graphs: tuple[Graph, ...]
    class_names: tuple[str, ...]
    features: str
    labels: str
    sources: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.graphs)

    @property
    def n_classes(self) -> int:
        return len(self.class_names)

    @property
    def n_features(self) -> int:
        return self.graphs[0].x.shape[1]

    @property
    def n_edge_features(self) -> int:
        attr = self.graphs[0].edge_attr
        return 0 if attr is None else attr.shape[1]

    @property
    def arrays(self) -> list[np.ndarray]:
        """All that a model is given, graph after graph, to take a fingerprint of."""
        attr = [g.edge_attr for g in self.graphs if g.edge_attr is not None]
        return [
            np.array([len(g.x) for g in self.graphs]),
            np.concatenate([g.x for g in self.graphs]),
            np.concatenate([g.edges for g in self.graphs], axis=1),
            *([np.concatenate(attr)] if attr else []),
            self.y,
        ]

    @property
    def y(self) -> Int[np.ndarray, " graphs"]:
        return np.array([g.y for g in self.graphs], np.int32)


def fill_features(
    data: GraphSet,
    train: Int[np.ndarray, " train"],
    kind: Literal["degree", "constant"] = "degree",
) -> GraphSet:
    """The same set with node features, where it has none; a set that has some is unchanged.

    constant: a column of ones. degree: one-hot degree, as wide as the largest degree among the
    graphs `train`; of the other graphs larger degrees count as that one.
    """
    if data.n_features > 0:
        return data
    if kind == "constant":
        largest, features = 0, "a constant 1"
    else:
        largest = max(int(data.graphs[i].degrees.max(initial=0)) for i in train)
        features = f"one-hot degree, 0 to {largest} or more"
    rows = np.eye(largest + 1, dtype=np.float32)
    filled = tuple(g._replace(x=rows[np.minimum(g.degrees, largest)]) for g in data.graphs)
    return replace(data, graphs=filled, features=f"{data.features}; instead: {features}")


class Statistics(NamedTuple):
    """What the paper's Table 8 tells of a set; an edge counts once, not once a direction."""

    graphs: int
    classes: int
    mean_nodes: float
    mean_edges: float
    max_nodes: int
    features: int
    edge_features: int


def statistics(data: GraphSet) -> Statistics:
    """The statistics of a set, from its graphs."""
    nodes = np.array([len(g.x) for g in data.graphs])
    edges = np.array([g.edges.shape[1] for g in data.graphs]) / 2
    return Statistics(
        graphs=len(data),
        classes=len(np.unique(data.y)),
        mean_nodes=float(nodes.mean()),
        mean_edges=float(edges.mean()),
        max_nodes=int(nodes.max()),
        features=data.n_features,
        edge_features=data.n_edge_features,
    )
