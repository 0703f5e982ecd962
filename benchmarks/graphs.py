"""The graph classifier: a training step on MUTAG and on DD's largest graph, and by edges.

The sets are read from the data root; where they are not, graphs are made of about the same
sizes. The floor is the matrix products of the shapes as they are padded: those of each token,
and in dense buckets those of all pairs. A list of edges has none for its pairs.
"""

from functools import partial

import jax
import numpy as np
from flax import nnx
from tables import show

from etlib.buckets import Bucket, encode
from etlib.cost import bare_products, measure
from etlib.data import tu
from etlib.data.graphset import graph
from etlib.errors import DataError
from etlib.graph_classifier import GraphClassifier, GraphConfig, classification_loss
from etlib.packing import GraphBatches


def made(n_nodes, n_edges, seed=0):
    """A chain, and edges between nodes that are close along it."""
    rng = np.random.default_rng(seed)
    near = rng.integers(0, n_nodes, n_edges - n_nodes + 1)
    far = (near + rng.integers(2, 30, len(near))) % n_nodes
    chain = np.arange(n_nodes - 1)
    pairs = np.array([[*chain, *near], [*(chain + 1), *far]])
    x = np.eye(7, dtype=np.float32)[rng.integers(0, 7, n_nodes)]
    return graph(x, pairs, int(rng.integers(2)))


def mutag():
    try:
        return list(tu.load("MUTAG").graphs), "MUTAG"
    except DataError:
        sizes = np.random.default_rng(0).normal(18, 4.6, 188).clip(10, 28).astype(int)
        return [made(n, n + 2, seed) for seed, n in enumerate(sizes)], "graphs like MUTAG's"


def largest_of_dd():
    try:
        return max(tu.load("DD").graphs, key=lambda g: len(g.x)), "DD's largest graph"
    except DataError:
        return made(5748, 14267), "a graph like DD's largest"


def step_and_floor(graphs, repeats):
    """(time, memory, time to compile) of a training step on a batch of the graphs; the floor's
    time; tokens and edges of the batch, as padded."""
    batches = GraphBatches(encode(graphs, 15), 64)
    batch = jax.device_put(next(batches))
    of = graphs[0]
    n_edge_features = 1 if of.edge_attr is None else of.edge_attr.shape[1]
    config = GraphConfig(of.x.shape[1], n_classes=2, n_edge_features=n_edge_features)
    model = GraphClassifier(config, rngs=nnx.Rngs(0))
    graph_def, params, rest = nnx.split(model, nnx.Param, ...)

    def loss(params, batch):
        model = nnx.merge(graph_def, params, rest)
        return classification_loss(model, batch, jax.random.key(0))[0]

    step = measure(jax.grad(loss), params, batch, repeats=repeats)
    floor, n_tokens, n_edges = 0.0, 0, 0
    for bucket in batch:
        dense = isinstance(bucket, Bucket)
        tokens = bucket.valid.shape if dense else (1, len(bucket.x))
        x = jax.random.normal(jax.random.key(1), (*tokens, config.block.token_dim))
        of_bucket = partial(bare_products, pairs=dense)
        seconds = measure(of_bucket, model.blocks[0], x, repeats=repeats)[0]
        floor += 3 * config.n_blocks * config.block.n_steps * seconds
        n_tokens += tokens[0] * tokens[1]
        n_edges += 0 if dense else len(bucket.senders)
    return step, floor, n_tokens, n_edges


def graph_classifier(repeats):
    """One training step of the released sizes (D=128, H=12, Y=64, K=512, S=4, T=1)."""
    columns = ("", "tokens", "time (s)", "x floor", "memory (MiB)", "compile (s)")
    molecules, of_mutag = mutag()
    largest, of_dd = largest_of_dd()
    rows = []
    for name, graphs in ((f"{of_mutag}, a batch", molecules), (of_dd, [largest])):
        (seconds, memory, compile_time), floor, n_tokens, _ = step_and_floor(graphs, repeats)
        rows.append(
            (
                name,
                f"{n_tokens}",
                f"{seconds:.3f}",
                f"{seconds / floor:.2f}",
                f"{memory:.0f}",
                f"{compile_time:.1f}",
            )
        )
    show("One training step of the graph classifier", columns, rows)

    rows = []
    for n_edges in (4_000, 8_000, 16_000, 32_000, 64_000):
        (seconds, memory, _), _, _, listed = step_and_floor([made(2000, n_edges)], repeats)
        rows.append(
            (f"{listed}", f"{seconds:.2f}", f"{1e6 * seconds / listed:.1f}", f"{memory:.0f}")
        )
    columns = ("edges listed", "time (s)", "time an edge (us)", "memory (MiB)")
    show("One training step on a graph of 2,000 nodes", columns, rows)
