"""Where a node is in its graph: eigenvectors of the normalised Laplacian.

With degrees d and L = I - d^-1/2 A d^-1/2, the eigenvectors of the smallest eigenvalues vary
most slowly over the graph. Each connected component has one eigenvalue zero, whose vector says
nothing but the degrees; it is left out.

An eigenvector is known up to its sign, and those of one eigenvalue up to a rotation. The sign
is fixed by a rule, and training flips it at random; the rotation is left to the solver, so the
encodings of a graph and of the same graph renumbered are not always the same vectors.
"""

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from jaxtyping import Float, Int
from scipy.sparse.csgraph import connected_components, laplacian
from scipy.sparse.linalg import eigsh

# Above this many nodes of one component the sparse solver is the faster one.
DENSE_NODES = 600


def laplacian_encoding(
    n_nodes: int, edges: Int[np.ndarray, "2 m"], k: int, dense_nodes: int = DENSE_NODES
) -> Float[np.ndarray, "{n_nodes} {k}"]:
    """The k smallest non-trivial eigenvectors, one a column, of length one.

    edges: both directions of each edge, once, no self-loops. A graph with fewer than k
    non-trivial eigenvectors has columns of zeros at the end. An eigenvector lives on one
    component. Its entry of largest size (the first of them, in a tie) is positive.

    The same input gives the same output, to the bit, on the same machine.
    """
    adjacency = sp.csr_array((np.ones(edges.shape[1]), tuple(edges)), shape=(n_nodes, n_nodes))
    n_components, component = connected_components(adjacency, directed=False)
    values, vectors = [], []
    for c in range(n_components):
        nodes = np.flatnonzero(component == c)
        few = min(k, len(nodes) - 1)
        if few > 0:
            of_component = laplacian(adjacency[nodes][:, nodes], normed=True)
            of_c, at_c = _smallest(of_component, few + 1, dense_nodes)
            whole = np.zeros((few, n_nodes))
            whole[:, nodes] = at_c[:, 1:].T
            values.extend(of_c[1:])
            vectors.extend(whole)
    encoding = np.zeros((n_nodes, k))
    # Rounded, so that equal components keep the order of their nodes.
    for column, i in enumerate(np.argsort(np.round(values, 9), kind="stable")[:k]):
        encoding[:, column] = vectors[i] * _sign(vectors[i])
    return encoding


def augmented_encoding(
    n_nodes: int, edges: Int[np.ndarray, "2 m"], k: int
) -> Float[np.ndarray, "{n_nodes}+1 {k}"]:
    """The encoding of the released code: of the graph with CLS in it, as its node 0.

    CLS is joined to all nodes and to itself, which makes the graph connected: the eigenvector
    of the smallest eigenvalue is left out, and the next k kept.
    """
    A = np.zeros((n_nodes + 1, n_nodes + 1))
    A[edges[0] + 1, edges[1] + 1] = 1
    A[0, :] = A[:, 0] = 1
    scale = 1 / np.sqrt(A.sum(axis=1))
    _, vectors = np.linalg.eigh(np.eye(n_nodes + 1) - scale[:, None] * A * scale)
    kept = vectors[:, 1 : k + 1]
    encoding = np.zeros((n_nodes + 1, k))
    encoding[:, : kept.shape[1]] = kept * [_sign(v) for v in kept.T]
    return encoding


def _smallest(L: sp.sparray, few: int, dense_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """The `few` smallest eigenvalues, ascending, and their eigenvectors."""
    n = L.shape[0]
    if n <= dense_nodes or few >= n:
        return scipy.linalg.eigh(L.toarray(), subset_by_index=[0, few - 1])
    # Shifted to be positive definite, inverted, and started from one fixed vector: without
    # the start the solver draws one at random.
    start = np.random.default_rng(0).normal(size=n)
    values, vectors = eigsh(L.tocsc(), k=few, sigma=-0.01, which="LM", v0=start)
    order = np.argsort(values)
    return values[order], vectors[:, order]


def _sign(vector: Float[np.ndarray, " n"]) -> float:
    """1 or -1, so that the entry of largest size is positive; the first of those in a tie."""
    size = np.abs(vector)
    largest = np.argmax(size > size.max() - 1e-9)
    return -1.0 if vector[largest] < 0 else 1.0
