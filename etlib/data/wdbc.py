"""Breast-cancer measurements as a graph with rare anomalies: always there, no download.

The Wisconsin diagnostic set (Street, Wolberg & Mangasarian 1993) that scikit-learn carries:
569 tumours, 30 measurements of their cell nuclei. Malignant ones are thinned until they are
rare, and each tumour is joined to those that measure most alike.
"""

import numpy as np

from etlib.data.nodegraph import NodeGraph, node_graph


def wdbc(n_malignant: int = 36, n_neighbours: int = 5, seed: int = 0) -> NodeGraph:
    """All 357 benign tumours, and `n_malignant` of the 212 malignant ones, drawn by `seed`.

    An edge joins a node and each of its `n_neighbours` nearest in standardised measurements,
    in both directions. Raises ValueError for a number that is not there.
    """
    from sklearn.datasets import load_breast_cancer
    from sklearn.neighbors import kneighbors_graph
    from sklearn.preprocessing import StandardScaler

    bunch = load_breast_cancer()
    benign, malignant = np.flatnonzero(bunch.target == 1), np.flatnonzero(bunch.target == 0)
    if not 1 <= n_malignant <= len(malignant):
        raise ValueError(f"n_malignant is {n_malignant}, not in 1 to {len(malignant)}")
    drawn = np.random.default_rng(seed).choice(malignant, n_malignant, replace=False)
    nodes = np.sort(np.concatenate([benign, drawn]))
    x = bunch.data[nodes]
    near = kneighbors_graph(StandardScaler().fit_transform(x), n_neighbours)
    return node_graph(
        "wdbc",
        x.astype(np.float32),
        np.stack(near.nonzero()),
        (bunch.target[nodes] == 0).astype(np.int8),
        about="Tumours joined to those that measure most alike; anomalies are malignant, thinned "
        "to be rare. 30 measurements of cell nuclei. Street, Wolberg & Mangasarian 1993, from "
        "scikit-learn.",
    )
