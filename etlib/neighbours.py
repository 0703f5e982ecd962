"""The neighbours of every node of an undirected graph as padded tables of few shapes.

Nodes of about equal degree share a table (few tables to compile, and a third of their entries
is padding, or so), cut into blocks of at most `block_edges` entries.
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

BLOCK_EDGES = 2**15  # of 64 float32 each: 8 MiB, about what a cache holds


class Table(NamedTuple):
    """Nodes of about equal degree, with their neighbours; entries past a degree are padding.

    The last block is filled up with rows of node N, which is not there, of degree 0.
    """

    nodes: Int[Array | np.ndarray, "blocks rows"]
    neighbours: Int[Array | np.ndarray, "blocks rows width"]
    degrees: Int[Array | np.ndarray, "blocks rows"]


Neighbours = tuple[Table, ...]  # each node in one row of one table


Shapes = dict[int, int]  # of tables: width, and how many nodes they have room for


def neighbours(
    n_nodes: int,
    senders: Int[np.ndarray, " m"],
    receivers: Int[np.ndarray, " m"],
    *,
    with_self: bool = False,
    block_edges: int = BLOCK_EDGES,
    shapes: Shapes | None = None,
) -> Neighbours:
    """Tables of an undirected graph: each edge listed in both directions, sorted by receiver.

    with_self:   a node is its own neighbour too.
    block_edges: entries of a block; a node with more neighbours is a block of its own.
    shapes:      of the tables, with room for every node (see `room`); by default they fit.

    Raises UserError for edges that are not sorted by receiver, name nodes that are not there,
    or are listed in one direction only; ValueError where `shapes` lack room.
    """
    _check(n_nodes, senders, receivers)
    degrees = np.bincount(receivers, minlength=n_nodes)
    first = np.concatenate([[0], np.cumsum(degrees)[:-1]])
    sizes = degrees + with_self
    order = np.argsort(sizes, kind="stable").astype(np.int32)
    shapes = _fitting(sizes[order]) if shapes is None else shapes
    tables, start = [], 0
    for width in sorted(shapes):
        end = int(np.searchsorted(sizes[order], width, side="right"))
        nodes = order[start:end]
        if len(nodes) > shapes[width]:
            raise ValueError(f"{len(nodes)} nodes for a table of {shapes[width]}, width {width}")
        n_blocks = -(-shapes[width] // max(block_edges // width, 1))
        rows = -(-shapes[width] // n_blocks)
        table = np.zeros((n_blocks * rows, width), np.int32)
        _fill(table, degrees[nodes], first[nodes], senders)
        if with_self:
            table[np.arange(len(nodes)), degrees[nodes]] = nodes
        shape, rest = (n_blocks, rows), (0, n_blocks * rows - len(nodes))
        tables.append(
            Table(
                np.pad(nodes, rest, constant_values=n_nodes).reshape(shape),
                table.reshape(*shape, width),
                np.pad(sizes[nodes].astype(np.int32), rest).reshape(shape),
            )
        )
        start = end
    if start < n_nodes:
        raise ValueError(f"{n_nodes - start} nodes have more neighbours than any table is wide")
    return tuple(tables)


def _fitting(sizes: Int[np.ndarray, " N"]) -> Shapes:
    """Shapes for ascending sizes, those of a table within a factor of two."""
    shapes, start = {}, 0
    while start < len(sizes):
        end = int(np.searchsorted(sizes, max(2 * sizes[start], 1), side="right"))
        shapes[max(int(sizes[end - 1]), 1)] = end - start
        start = end
    return shapes


def room(shapes: Shapes, sizes: Int[np.ndarray, " N"]) -> Shapes:
    """The shapes, where there is room for nodes of these sizes; else wider ones.

    Their widths are powers of two, up to one more than is needed. What is lacking comes with
    four standard deviations of a count more, so that graphs alike, drawn one after the other,
    soon find room in shapes that do not change.
    """
    exponents = np.ceil(np.log2(np.maximum(sizes, 1))).astype(int)
    counts = {2**e: int(n) for e, n in enumerate(np.bincount(exponents))}
    lacking = {w: n + int(4 * n**0.5) + 4 for w, n in counts.items() if shapes.get(w, 0) < n}
    if not lacking:
        return shapes
    return dict.fromkeys([*counts, 2 * max(counts)], 4) | shapes | lacking


def _fill(table, degrees, first, senders) -> None:
    """The senders first, first + 1, ... of each row, `degrees` many; a part of rows at a time."""
    column = np.arange(table.shape[1])
    step = max(BLOCK_EDGES // len(column), 1)
    for row in range(0, len(degrees) if len(senders) else 0, step):
        part = slice(row, min(row + step, len(degrees)))
        entries = column < degrees[part, None]
        edges = np.where(entries, first[part, None] + column, 0)
        table[part] = np.where(entries, senders[edges], 0)


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
    function: Callable[[Array, Array, Bool[Array, "rows width"]], PyTree],
    n_nodes: int,
    graph: Neighbours,
) -> PyTree[Float[Array, "N ..."]]:
    """What `function` makes of each block, a row a node, in the order of the nodes.

    function: (nodes (rows,), neighbours (rows, width), which entries are neighbours and not
    padding (rows, width)) -> arrays (rows, ...); traced once for each table.
    """

    def rows(block: Table):
        entries = jnp.arange(block.neighbours.shape[-1]) < block.degrees[:, None]
        return function(block.nodes, block.neighbours, entries)

    def store(found, block: Table):
        def put(array, new):  # of a node that is not there: nowhere
            return array.at[block.nodes].set(new, mode="drop", unique_indices=True)

        return jax.tree.map(put, found, rows(block)), None

    shapes = jax.eval_shape(rows, jax.tree.map(lambda a: a[0], graph[0]))
    found = jax.tree.map(lambda s: jnp.zeros((n_nodes, *s.shape[1:]), s.dtype), shapes)
    for table in graph:
        found, _ = jax.lax.scan(store, found, table)
    return found
