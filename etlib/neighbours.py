"""The neighbours of every node of an undirected graph as padded tables of few shapes.

Nodes of about equal degree share a table, cut into blocks of at most `block_edges` entries.
What a node sums over its neighbours is then a gather and a dense product, a block at a time:
no scatter, and never more than a block of the edges in memory.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from etlib.errors import UserError

BLOCK_EDGES = 2**18
_RATIO = 2**0.5  # between the widths of tables: a fifth of the entries is padding, on average


class Table(NamedTuple):
    """Nodes of about equal degree, with their neighbours; entries past a degree are padding.

    A row of degree 0 that no node needs fills the last block.
    """

    nodes: Int[Array | np.ndarray, "blocks rows"]
    neighbours: Int[Array | np.ndarray, "blocks rows width"]
    degrees: Int[Array | np.ndarray, "blocks rows"]


class Neighbours(NamedTuple):
    """The tables of a graph, and at which of their rows, counted through, each node is."""

    tables: tuple[Table, ...]
    position: Int[Array | np.ndarray, " N"]

    @property
    def n_nodes(self) -> int:
        return len(self.position)


def neighbours(
    n_nodes: int,
    senders: Int[np.ndarray, " m"],
    receivers: Int[np.ndarray, " m"],
    *,
    with_self: bool = False,
    block_edges: int = BLOCK_EDGES,
) -> Neighbours:
    """Tables of an undirected graph: each edge listed in both directions, sorted by receiver.

    with_self:   a node is its own neighbour too.
    block_edges: entries of a block; a node with more neighbours is a block of its own.

    Raises UserError for edges that are not sorted by receiver, name nodes that are not there,
    or are listed in one direction only.
    """
    _check(n_nodes, senders, receivers)
    degrees = np.bincount(receivers, minlength=n_nodes)
    first = np.concatenate([[0], np.cumsum(degrees)[:-1]])
    sizes = degrees + with_self
    order = np.argsort(sizes, kind="stable").astype(np.int32)
    tables, position, start, row = [], np.empty(n_nodes, np.int32), 0, 0
    for end in _cuts(sizes[order]):
        nodes = order[start:end]
        width = max(int(sizes[nodes[-1]]), 1)
        n_blocks = -(-len(nodes) // max(block_edges // width, 1))
        rows = -(-len(nodes) // n_blocks)
        position[nodes] = row + np.arange(len(nodes), dtype=np.int32)
        nodes = np.concatenate([nodes, np.zeros(n_blocks * rows - len(nodes), np.int32)])
        used = np.arange(len(nodes)) < end - start
        table = np.zeros((len(nodes), width), np.int32)
        for part in np.array_split(np.arange(len(nodes)), n_blocks):  # bounds the memory
            _fill(table, part, nodes, degrees[nodes] * used, first, senders)
        if with_self:
            table[np.arange(end - start), degrees[nodes[: end - start]]] = nodes[: end - start]
        tables.append(
            Table(
                nodes.reshape(n_blocks, rows),
                table.reshape(n_blocks, rows, width),
                (sizes[nodes] * used).astype(np.int32).reshape(n_blocks, rows),
            )
        )
        start, row = end, row + len(nodes)
    return Neighbours(tuple(tables), position)


def _fill(table, rows, nodes, degrees, first, senders) -> None:
    column = np.arange(table.shape[1])
    entries = column < degrees[rows, None]
    edge = first[nodes[rows], None] + column
    table[rows] = np.where(entries, senders[np.where(entries, edge, 0)], 0) if len(senders) else 0


def _cuts(sizes: Int[np.ndarray, " N"]) -> list[int]:
    """Ends of runs of ascending sizes, each run at most `_RATIO` wide, single sizes apart."""
    ends, start = [], 0
    while start < len(sizes):
        start = int(np.searchsorted(sizes, max(sizes[start], 1) * _RATIO, side="right"))
        ends.append(start)
    return ends


def _check(n_nodes: int, senders: np.ndarray, receivers: np.ndarray) -> None:
    if len(senders) == 0:
        return
    low = min(int(senders.min()), int(receivers.min()))
    high = max(int(senders.max()), int(receivers.max()))
    if low < 0 or high >= n_nodes:
        raise UserError(f"edges name nodes {low} to {high}, of {n_nodes} nodes from 0")
    if np.any(receivers[1:] < receivers[:-1]):
        raise UserError("edges are not sorted by receiver: sort them, np.argsort(receivers)")
    if _form(n_nodes, senders, receivers) != _form(n_nodes, receivers, senders):
        raise UserError(
            "some edges are listed in one direction only: list each in both, for an undirected "
            "graph"
        )


def _form(n_nodes: int, left: np.ndarray, right: np.ndarray) -> int:
    """u^T A v for random u and v, modulo 2^64: the same for A and its transpose only if A is
    symmetric, but for a chance of 2^-60 or so. It needs no memory of the size of the edges."""
    u, v = np.random.default_rng(0).integers(0, 2**64, (2, n_nodes), dtype=np.uint64)
    step = 2**20
    parts = [
        (u[left[i : i + step]] * v[right[i : i + step]]).sum() for i in range(0, len(left), step)
    ]
    return int(np.array(parts).sum())


def by_block(
    function: Callable[[Array, Array, Bool[Array, "rows width"]], PyTree], graph: Neighbours
) -> PyTree[Float[Array, "N ..."]]:
    """What `function` makes of each block, a row a node, put into the order of the nodes.

    function: (nodes (rows,), neighbours (rows, width), which entries are neighbours and not
    padding (rows, width)) -> arrays (rows, ...); traced once for each table.
    """

    def block(table: Table):
        entries = jnp.arange(table.neighbours.shape[-1]) < table.degrees[:, None]
        return function(table.nodes, table.neighbours, entries)

    found = [jax.lax.map(block, table) for table in graph.tables]

    def in_order(*parts):
        rows = jnp.concatenate([part.reshape(-1, *part.shape[2:]) for part in parts])
        return rows[graph.position]

    return jax.tree.map(in_order, *found)
