"""What the order in which a graph's nodes are listed does to its prediction.

The convolution of the paper's weighted adjacency slides over the matrix of all pairs of tokens:
the weight of a pair depends on the nodes listed before and after its two. A list of nodes has
no order of its own, so every renumbering is the same graph, and a model that knew only the
graph would predict the same.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import softmax

from etlib.buckets import Encoded
from etlib.data.graphset import Graph
from etlib.graph_classifier import GraphClassifier, predict
from etlib.packing import evaluation_batches


class Change(NamedTuple):
    """Of each graph, over renumberings: the mean change of the probabilities (total variation,
    0 to 1), and the share of renumberings that get another class."""

    probability: Float[np.ndarray, " graphs"]
    another_class: Float[np.ndarray, " graphs"]


def renumbered(encoded: Encoded, order: Int[np.ndarray, " n"]) -> Encoded:
    """The same graph with node `order[i]` as its node i.

    Each node keeps its encoding: encodings computed anew may come with other signs, and
    training averages over those already.
    """
    x, edges, edge_attr, y = encoded.graph
    edges = np.argsort(order).astype(edges.dtype)[edges]
    by_node = np.lexsort(edges[::-1])
    attr = None if edge_attr is None else edge_attr[by_node]
    encoding = np.concatenate([encoded.encoding[:1], encoded.encoding[1:][order]])
    return Encoded(Graph(x[order], edges[:, by_node], attr, y), encoding)


def effect_of_renumbering(
    model: GraphClassifier, encoded: Sequence[Encoded], repeats: int = 5, seed: int = 0
) -> Change:
    """How far predictions move when the nodes of each graph are renumbered at random."""
    rng = np.random.default_rng(seed)

    def probabilities(graphs):
        return softmax(predict(model, evaluation_batches(graphs)), axis=1)

    as_listed = probabilities(encoded)
    moved, other = [], []
    for _ in range(repeats):
        shuffled = [renumbered(e, rng.permutation(len(e.graph.x))) for e in encoded]
        found = probabilities(shuffled)
        moved.append(np.abs(found - as_listed).sum(axis=1) / 2)
        other.append(found.argmax(axis=1) != as_listed.argmax(axis=1))
    return Change(np.mean(moved, axis=0), np.mean(other, axis=0))
