"""Every detector of chapter 5 on the same task, and what the energy alone says of a node."""

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Integer
from sklearn.metrics import roc_auc_score

from etlib import anomaly_baselines as baselines
from etlib import anomaly_gnns as gnns
from etlib.anomaly import AnomalyConfig, NodeAnomalyModel, NodeTrace, anomaly_block
from etlib.anomaly_training import anomaly_training, fit_anomaly, tables
from etlib.data import fraud
from etlib.data.nodegraph import NodeGraph
from etlib.data.synthetic_fraud import FraudGraphConfig, generate
from etlib.detection import Scores, report, standardised, task
from etlib.neighbours import Neighbours

if TYPE_CHECKING:
    from etlib.chapters.anomaly_detection import Parameters

TITLES = {
    "et": "Energy Transformer",
    "logistic": "logistic regression",
    "boosting": "gradient boosting",
    "perceptron": "perceptron (MLP)",
    "gcn": "GCN",
    "wavelets": "Beta wavelets",
}


class Detection(NamedTuple):
    """A trained detector: scores of all nodes at the chosen epoch, and the test metrics.

    model: the Energy Transformer, where it is one.
    """

    scores: Float[np.ndarray, " n"]
    test: Scores
    epoch: int
    seconds: float
    model: NodeAnomalyModel | None = None


def load(p: "Parameters") -> NodeGraph:
    """The set of the parameters."""
    if p.dataset == "synthetic":
        return generate(FraudGraphConfig(n_nodes=p.n_nodes))
    return fraud.load(p.dataset, download=p.download)


def detect(name: str, graph: NodeGraph, p: "Parameters", seed: int) -> Detection:
    """Train a detector on the split of this seed and score its test nodes, once."""
    made, start = task(graph, p.train_ratio, seed), time.perf_counter()
    model = None
    if name == "et":
        found = fit_anomaly(
            graph,
            made.parts,
            model_config(graph, p),
            anomaly_training(p.epochs, peak_lr=p.peak_lr, end_lr=p.peak_lr),
            seed=seed,
        )
        scores, epoch, model = found.scores, found.epoch, found.model
    else:
        best = _baselines(p)[name](made, seed)
        scores, epoch = best.scores, best.epoch
    seconds = time.perf_counter() - start
    return Detection(scores, report(made, scores), epoch, seconds, model)


def _baselines(p: "Parameters"):
    n = p.baseline_epochs
    return {
        "logistic": baselines.logistic_regression,
        "boosting": partial(baselines.gradient_boosting, n_trees=n),
        "perceptron": partial(baselines.perceptron, n_epochs=n),
        "gcn": partial(gnns.gcn, n_epochs=n),
        "wavelets": partial(gnns.beta_wavelets, n_epochs=n),
    }


def model_config(graph: NodeGraph, p: "Parameters") -> AnomalyConfig:
    """The Energy Transformer that the parameters describe."""
    block = anomaly_block(
        token_dim=p.token_dim,
        n_heads=p.n_heads,
        head_dim=p.head_dim,
        n_memories=p.n_memories,
        n_steps=p.n_steps,
        alpha=p.alpha,
        beta=p.beta,
        self_attention=p.self_attention,
    )
    return AnomalyConfig(
        graph.x.shape[1],
        block,
        n_hidden=p.n_hidden,
        residual=p.residual,
        untied_last=p.untied_last,
        memory_dropout=p.memory_dropout,
        relations=p.relations,
        readout=p.readout,
    )


# --- the energy of a node -----------------------------------------------------


def trace(model: NodeAnomalyModel, graph: NodeGraph, n_steps: int | None = None) -> NodeTrace:
    """Energies and tokens of every node along the descent, on the first of the model's graphs;
    for `n_steps`, which may be more than the model was trained for."""
    if n_steps is not None:
        model = nnx.clone(model)
        block = replace(model.config.block, n_steps=n_steps)
        model.config = replace(model.config, block=block)
    return _trace(model, jnp.asarray(standardised(graph.x)), tables(graph, model.config)[0])


@nnx.jit
def _trace(
    model: NodeAnomalyModel, x: Float[Array | np.ndarray, "n F"], neighbours: Neighbours
) -> NodeTrace:
    return model.descend(model.embed(x), neighbours, trace=True)[1]


def energy_areas(
    model: NodeAnomalyModel, graph: NodeGraph, nodes: Integer[np.ndarray, " k"]
) -> dict[str, float]:
    """AUC of a node's energy after the last step, high for an anomaly, among `nodes`: the whole,
    and its two terms. Below 0.5 anomalies lie lower than normal nodes."""
    energies = trace(model, graph)
    terms = {
        "energy": energies.energy,
        "attention": energies.attention,
        "hopfield": energies.hopfield,
    }
    y = graph.labels[nodes]
    return {name: float(roc_auc_score(y, np.asarray(e[-1])[nodes])) for name, e in terms.items()}


def untrained(graph: NodeGraph, p: "Parameters", seed: int) -> NodeAnomalyModel:
    """The model as training begins: no label has touched it."""
    return NodeAnomalyModel(model_config(graph, p), rngs=nnx.Rngs(seed))
