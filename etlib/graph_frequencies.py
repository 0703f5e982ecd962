"""Frequencies of a signal on a graph, and how anomalies shift its energy to the high ones.

The frequencies are the eigenvalues, 0 to 2, of the normalised Laplacian L = I - D^-1/2 A D^-1/2;
a signal's energy at one is the square of its component along the eigenvector. Tang et al.
(Rethinking Graph Neural Networks for Anomaly Detection, ICML 2022) saw that anomalies move it
to the right. Nothing here needs an eigenvector, so it works on graphs of millions of edges.
"""

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Integer
from scipy.sparse.csgraph import laplacian

from etlib.data.nodegraph import NodeGraph
from etlib.detection import standardised


def normalised_laplacian(graph: NodeGraph) -> sp.csr_array:
    """L, symmetric; the row of a node without edges is zero."""
    return sp.csr_array(laplacian(graph.adjacency(), normed=True))


def mean_frequency(L: sp.csr_array, signals: Float[np.ndarray, "n F"]) -> Float[np.ndarray, " F"]:
    """x^T L x / x^T x of each column: the mean frequency of its energy, 0 to 2.

    A column that is zero everywhere has none: nan.
    """
    signals = signals.astype(np.float64)
    norms = (signals**2).sum(axis=0)
    energy = (signals * (L @ signals)).sum(axis=0)
    return np.divide(energy, norms, out=np.full(len(norms), np.nan), where=norms > 0)


def energy_share(
    L: sp.csr_array,
    signals: Float[np.ndarray, "n F"],
    bounds: Float[np.ndarray, " k"],
    order: int = 100,
) -> Float[np.ndarray, "k"]:
    """Share of the signals' energy at frequencies up to each of `bounds`.

    The step at a bound is a Chebyshev series of L - I with Jackson damping, `order` products
    with L; it is smooth over a width of about pi / order.
    """
    signals = signals.astype(np.float64)
    moments = np.empty(order + 1)
    before, now = signals, L @ signals - signals
    moments[0], moments[1] = (signals**2).sum(), (signals * now).sum()
    for k in range(2, order + 1):
        before, now = now, 2 * (L @ now - now) - before
        moments[k] = (signals * now).sum()
    k = np.arange(order + 1)
    # Chebyshev coefficients of the step [-1, b], and the damping that takes its ringing away.
    angle = np.arccos(np.clip(bounds - 1, -1, 1))[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        step = np.where(k == 0, 1 - angle / np.pi, -2 * np.sin(k * angle) / (k * np.pi))
    a = np.pi / (order + 2)
    damping = ((order + 2 - k) * np.sin(a) * np.cos(k * a) + np.cos(a) * np.sin(k * a)) / (
        (order + 2) * np.sin(a)
    )
    return step @ (damping * moments) / moments[0]


def without(graph: NodeGraph, nodes: Integer[np.ndarray, " k"]) -> NodeGraph:
    """The graph with nodes, and their edges, taken out."""
    kept = np.setdiff1d(np.arange(graph.n_nodes), nodes)
    number = np.full(graph.n_nodes, -1, np.int32)
    number[kept] = np.arange(len(kept), dtype=np.int32)

    def among(edges):
        edges = number[edges]
        return edges[:, (edges >= 0).all(axis=0)]

    return graph._replace(
        x=graph.x[kept],
        labels=graph.labels[kept],
        edges=among(graph.edges),
        relations={kind: among(edges) for kind, edges in graph.relations.items()},
    )


class RightShift(NamedTuple):
    """Mean frequency of the features: of the whole graph; without its anomalies; and without as
    many normal nodes, for several draws."""

    whole: float
    without_anomalies: float
    without_normal: Float[np.ndarray, " draws"]


def right_shift(graph: NodeGraph, draws: int = 5, seed: int = 0) -> RightShift:
    """Whether anomalies hold energy at high frequencies: take them out, and take others out.

    The features are standardised once, on the whole graph; the figure is the mean over those
    that vary. Taking any node out changes the graph, so as many normal nodes, drawn at random,
    are taken out for comparison.
    """
    graph = graph._replace(x=standardised(graph.x))
    anomalies, normal = np.flatnonzero(graph.labels == 1), np.flatnonzero(graph.labels == 0)
    rng = np.random.default_rng(seed)

    def frequency(left_out: Integer[np.ndarray, " k"]) -> float:
        rest = without(graph, left_out)
        return float(np.nanmean(mean_frequency(normalised_laplacian(rest), rest.x)))

    n = min(len(anomalies), len(normal))
    return RightShift(
        frequency(anomalies[:0]),
        frequency(anomalies),
        np.array([frequency(rng.choice(normal, n, replace=False)) for _ in range(draws)]),
    )
