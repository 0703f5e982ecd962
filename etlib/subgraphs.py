"""Mini-batches of a graph too large to train on as a whole: random nodes, and their edges.

Each epoch the nodes are dealt at random into equal parts; a part comes with the edges between
its own nodes. Of the neighbours of a node a part of one in p keeps one in p, so that few parts
are better than many: as few as memory allows. Prediction takes the whole graph, in blocks.
"""

import numpy as np
import scipy.sparse as sp
from jaxtyping import Int

from etlib.anomaly import AnomalyConfig, NodeBatch, class_weights
from etlib.data.nodegraph import NodeGraph
from etlib.errors import UserError
from etlib.neighbours import neighbours, room

_DRAWS = 4  # parts drawn beforehand, so that the first tables have room for most of the later


class SubgraphBatches:
    """Endless parts of a graph for training; part t is a function of the seed and t alone.

    Every part has its share of the nodes that are trained on. `get_state` and `set_state` make
    a run resumable. All parts have one shape, but where one finds no room in the tables: these
    then grow, and the step is compiled again.

    Raises UserError for more parts than there are nodes to train on.
    """

    def __init__(
        self,
        x: np.ndarray,
        graph: NodeGraph,
        train: Int[np.ndarray, " n"],
        config: AnomalyConfig,
        parts: int,
        seed: int = 0,
    ):
        if not 1 <= parts <= len(train):
            raise UserError(f"{parts} parts of {len(train)} training nodes: each needs one")
        self.x, self.labels, self.parts, self.seed = x, graph.labels, parts, seed
        self.weights = class_weights(graph.labels, train)
        self.train, self.rest = train, np.setdiff1d(np.arange(graph.n_nodes), train)
        self.with_self = config.block.self_attention
        edges = graph.relations.values() if config.relations == "maximum" else [graph.edges]
        self.matrices = [_matrix(e, graph.n_nodes) for e in edges]
        self.shapes = [{} for _ in self.matrices]
        self.step = 0
        for t in range(_DRAWS):
            self._induced(self._nodes(t))

    def __iter__(self) -> "SubgraphBatches":
        return self

    def __next__(self) -> NodeBatch:
        nodes = self._nodes(self.step)
        self.step += 1
        graphs = []
        for matrix, shapes in zip(self._induced(nodes), self.shapes, strict=True):
            senders = matrix.indices.astype(np.int32)
            receivers = np.repeat(np.arange(len(nodes), dtype=np.int32), np.diff(matrix.indptr))
            options = {"with_self": self.with_self, "shapes": shapes}
            graphs.append(neighbours(len(nodes), senders, receivers, **options))
        return NodeBatch(
            self.x[nodes],
            tuple(graphs),
            np.maximum(self.labels[nodes], 0),
            self.weights[nodes],
            np.array([self.seed], np.int32),
        )

    def _nodes(self, t: int) -> Int[np.ndarray, " n"]:
        """The nodes of part t: its share of those trained on, and of the others; sorted.

        All parts are of equal size: a part of the smaller ones takes a node of the next too.
        """
        epoch, part = divmod(t, self.parts)
        rng = np.random.default_rng([self.seed, epoch])
        shares = []
        for nodes in (self.train, self.rest):
            size = -(-len(nodes) // self.parts)
            first = part * len(nodes) // self.parts
            dealt = rng.permutation(nodes)
            shares.append(np.take(dealt, np.arange(first, first + size), mode="wrap"))
        return np.sort(np.concatenate(shares))

    def _induced(self, nodes: Int[np.ndarray, " n"]) -> list[sp.csr_array]:
        """The adjacency of the nodes among themselves; the tables get room for it."""
        found = [matrix[nodes][:, nodes] for matrix in self.matrices]
        for i, matrix in enumerate(found):
            self.shapes[i] = room(self.shapes[i], np.diff(matrix.indptr) + self.with_self)
        return found

    def get_state(self) -> dict[str, int]:
        return {"step": self.step}

    def set_state(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def _matrix(edges: Int[np.ndarray, "2 m"], n: int) -> sp.csr_array:
    """The adjacency, a byte an edge; rows are receivers."""
    ends = np.concatenate([[0], np.cumsum(np.bincount(edges[1], minlength=n))])
    return sp.csr_array((np.ones(edges.shape[1], np.int8), edges[0], ends), shape=(n, n))
