"""Time and memory of what is large: graphs of millions of nodes, images of thousands of tokens.

`make bench-scale` runs every part, each in a process of its own so that its peak memory is its
own; `ARGS="--part t-social"` runs one, `ARGS="--size 0.1"` a tenth of each. Graphs come from
the generator of `etlib.data.synthetic_fraud`, in the sizes of the paper's two large sets; the
model has width 64, one head, T = 1.
"""

import resource
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import typer
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from etlib import edge_energy, neighbour_energy
from etlib.anomaly import AnomalyConfig, NodeAnomalyModel, NodeBatch, anomaly_loss, class_weights
from etlib.anomaly_training import anomaly_training, tables
from etlib.block import BlockConfig, ETBlock
from etlib.data.nodegraph import NodeGraph
from etlib.data.synthetic_fraud import FraudGraphConfig, generate
from etlib.detection import split, standardised
from etlib.neighbours import neighbours
from etlib.subgraphs import SubgraphBatches
from etlib.training import data_mesh, initial_state, make_step, shard

MODEL = AnomalyConfig(n_features=10)

# Links that fall on one another count once: more are drawn than there are to be edges.
T_FINANCE = FraudGraphConfig(39_357, 1_114.0, n_communities=2, anomaly_rate=0.0458)
T_SOCIAL = FraudGraphConfig(5_781_065, 25.295, anomaly_rate=0.0301)


def say(*words) -> None:
    print(" ", *words, flush=True)


@contextmanager
def timed(what: str):
    """Prints how long the block took; the list it gives holds the seconds afterwards."""
    seconds = []
    start, processor = time.perf_counter(), time.process_time()
    yield seconds
    seconds.append(time.perf_counter() - start)
    say(f"{what}: {seconds[0]:.1f} s ({time.process_time() - processor:.1f} s of processor time)")


def made(config: FraudGraphConfig, size: float) -> NodeGraph:
    with timed(f"making the graph of {round(config.n_nodes * size):,} nodes"):
        graph = generate(
            FraudGraphConfig(**vars(config) | {"n_nodes": round(config.n_nodes * size)})
        )
    say(f"{graph.n_nodes:,} nodes, {graph.edges.shape[1]:,} directed edges, 10 features")
    return graph


def on_device(graph: NodeGraph):
    """Features and tables; the share of padding in them is printed."""
    with timed("tables of neighbours"):
        near = tables(graph, MODEL)
    entries = sum(table.neighbours.size for table in near[0])
    say(f"{len(near[0])} tables, {entries / graph.edges.shape[1]:.2f} entries an edge")
    return jax.tree.map(jnp.asarray, (standardised(graph.x), near))


def train_steps(model, batches, n_steps: int) -> float:
    """Seconds of the last of the steps; the first holds the compilation."""
    config = anomaly_training(n_steps)
    step, mesh = make_step(model, anomaly_loss, config), data_mesh(jax.devices()[:1])
    state = initial_state(jax.tree.map(jnp.copy, nnx.state(model, nnx.Param)), config)
    state = jax.device_put(state, NamedSharding(mesh, PartitionSpec()))
    for t in range(n_steps):
        batch = next(batches)
        edges = sum(int(np.sum(table.degrees)) for table in batch.graphs[0])
        what = "training step, and compilation" if t == 0 else "training step"
        with timed(f"{what}, {edges:,} edges") as seconds:
            state, metrics = step(state, shard(batch, mesh))
            loss = float(metrics["loss"])
        say(f"  loss {loss:.4f}")
    return seconds[0]


def t_finance(size: float) -> None:
    """Training on a whole graph of T-Finance's size."""
    graph = made(T_FINANCE, size)
    weights = class_weights(graph.labels, split(graph.labels, 0.4, 0).train)
    x, near = on_device(graph)
    batch = NodeBatch(x, near, graph.labels, weights, np.zeros(1, np.int32))
    model = NodeAnomalyModel(MODEL, rngs=nnx.Rngs(0))
    seconds = train_steps(model, iter([batch, batch]), 2)
    say(f"{1e9 * seconds / graph.edges.shape[1]:.0f} ns an edge")


def t_social(size: float) -> None:
    """Prediction for a whole graph of T-Social's size."""
    graph = made(T_SOCIAL, size)
    n_edges = graph.edges.shape[1]
    x, near = on_device(graph)
    del graph
    definition, state = nnx.split(NodeAnomalyModel(MODEL, rngs=nnx.Rngs(0)))

    def predict(state, x, near):
        return nnx.merge(definition, state)(x, near)

    with timed("compilation"):
        predict = jax.jit(predict).lower(state, x, near).compile()
    with timed("prediction for every node") as seconds:
        assert np.isfinite(predict(state, x, near)).all()
    say(f"{1e9 * seconds[0] / n_edges:.0f} ns an edge")


def parts(size: float) -> None:
    """Training on a twentieth of a graph of T-Social's size at a time."""
    graph = made(T_SOCIAL, size)
    train = split(graph.labels, 0.01, 0).train
    with timed("room for twenty parts"):
        batches = SubgraphBatches(standardised(graph.x), graph, train, MODEL, 20)
    train_steps(NodeAnomalyModel(MODEL, rngs=nnx.Rngs(0)), batches, 3)


def linear(size: float) -> None:
    """Time against the number of edges, and gathers against scatters.

    Gathers: tables of neighbours and the derivative written down (etlib.neighbour_energy).
    Scatters: the list of edges and automatic derivatives (etlib.edge_energy).
    """
    rng = np.random.default_rng(0)
    block = ETBlock(MODEL.block, rngs=nnx.Rngs(0))
    weights = block.Wk[...], block.Wq[...]

    def gathers(g, near):
        return neighbour_energy.energy_and_gradient(g, near, *weights)[1]

    def scatters(g, edges):
        return edge_energy.attention_gradient(g, *edges, *weights)

    say("edges        update (s, ns an edge)   and its derivative     temporary memory (MiB)")
    for n_nodes in (10_000, 20_000, 40_000, 80_000):
        n_nodes = round(n_nodes * size)
        graph = generate(FraudGraphConfig(n_nodes, 100.0))
        n_edges = graph.edges.shape[1]
        forms = {"gathers": (gathers, neighbours(n_nodes, *graph.edges))}
        if n_nodes == round(20_000 * size):
            forms["scatters"] = (scatters, tuple(graph.edges))
        g = jnp.asarray(rng.normal(size=(n_nodes, 64)), jnp.float32)
        for name, (form, where) in forms.items():
            where = jax.tree.map(jnp.asarray, where)

            def squares(g, where, form=form):
                return jnp.sum(form(g, where) ** 2)

            row = [f"{n_edges:9,}"]
            for function in (form, jax.grad(squares)):
                compiled = jax.jit(function).lower(g, where).compile()
                start = time.perf_counter()
                jax.block_until_ready(compiled(g, where))
                seconds = time.perf_counter() - start
                row.append(f"{seconds:7.2f} {1e9 * seconds / n_edges:7.0f}")
            memory = compiled.memory_analysis().temp_size_in_bytes / 2**20
            say("      ".join(row), f"      {memory:8.0f}   {name}")


def images(size: float) -> None:
    """One image's training step against the number of tokens: attention at once, and streamed.

    D = 256, 4 heads of 64, K = 1024, T = 4, the steps rematerialised; 256 queries at a time.
    """
    sizes = {"token_dim": 256, "n_heads": 4, "head_dim": 64, "n_memories": 1024, "n_steps": 4}
    say("tokens     at once (s, MiB)     streamed (s, MiB)     largest difference of gradients")
    for n in [n for n in (256, 512, 1024, 2048, 4096) if n <= 4096 * size]:
        x = jax.random.normal(jax.random.key(0), (1, n, 256))
        row, gradients = [f"{n:6}"], []
        for query_block in (None, 256):
            block = ETBlock(BlockConfig(**sizes, query_block=query_block), rngs=nnx.Rngs(0))

            def loss(x, block=block):
                return jnp.sum(block(x, remat="all") ** 2)

            compiled = jax.jit(jax.grad(loss)).lower(x).compile()
            start = time.perf_counter()
            gradients.append(np.asarray(compiled(x)))
            seconds = time.perf_counter() - start
            memory = compiled.memory_analysis().temp_size_in_bytes / 2**20
            row.append(f"{seconds:8.2f} {memory:8.1f}")
        difference = np.abs(gradients[1] - gradients[0]).max() / np.abs(gradients[0]).max()
        say("    ".join(row), f"    {difference:.1e}")


PARTS = {
    "images": images,
    "linear": linear,
    "t-finance": t_finance,
    "t-social": t_social,
    "parts": parts,
}


def main(
    part: Annotated[str, typer.Option(help=f"one of {', '.join(PARTS)}, or all")] = "all",
    size: Annotated[float, typer.Option(help="of what is published, at most 1")] = 1.0,
):
    """Measure on the default device; each part says what it does as it goes."""
    if part == "all":
        for name in PARTS:
            subprocess.run(
                [sys.executable, __file__, "--part", name, "--size", str(size)], check=True
            )
        return
    print(f"{part}: {PARTS[part].__doc__.splitlines()[0]}", flush=True)
    start = time.perf_counter()
    PARTS[part](size)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB on Linux
    say(f"whole part: {time.perf_counter() - start:.0f} s, peak memory {peak:.1f} GiB\n")


if __name__ == "__main__":
    typer.run(main)
