"""`csl`: circular skip-link graphs, which no message passing tells apart.

A cycle of 41 nodes and, from every node, a link to the node R further on: every node has
four neighbours whatever R is. Message passing on equal node features computes the same for all
of them, and so scores chance; the spectra differ. Murphy, Srinivasan, Rao and Ribeiro (2019),
with the ten skip lengths and fifteen renumberings a class of Dwivedi et al. (2023).
"""

import networkx as nx
import numpy as np

from etlib.data.graphset import GraphSet, graph

N_NODES = 41
SKIPS = (2, 3, 4, 5, 6, 9, 11, 12, 13, 16)  # no two of these graphs are isomorphic
COPIES = 15


def csl() -> GraphSet:
    """150 graphs in ten classes of fifteen, each randomly renumbered; always the same."""
    rng = np.random.default_rng(0)
    ones = np.ones((N_NODES, 1), np.float32)
    graphs = []
    for y, skip in enumerate(SKIPS):
        edges = np.array(nx.circulant_graph(N_NODES, [1, skip]).edges).T
        graphs += [graph(ones, rng.permutation(N_NODES)[edges], y) for _ in range(COPIES)]
    return GraphSet(
        name="csl",
        graphs=tuple(graphs),
        class_names=tuple(f"skip {skip}" for skip in SKIPS),
        features="none: a constant 1",
        labels="the skip length each graph was generated with",
    )
