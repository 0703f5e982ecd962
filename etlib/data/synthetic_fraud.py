"""A generator of fraud graphs, from a thousand nodes to the millions of T-Social.

Normal nodes live in communities: most of their links stay inside, and their features scatter
around the community's mean. An anomaly is camouflaged: it links to normal nodes wherever they
are, has as many neighbours as they have, and its features have its community's mean too. What
gives it away is that it strays further from that mean: beside its neighbours it is a spike,
energy at high graph frequencies.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32, Integer

from etlib.data.nodegraph import NodeGraph, node_graph

_CHUNK = 4_000_000  # links drawn at a time, which bounds the memory that drawing takes


@dataclass(frozen=True)
class FraudGraphConfig:
    """What `generate` makes. T-Social's size: n_nodes 5,781,065, mean_degree 25.3."""

    n_nodes: int = 3000
    mean_degree: float = 12.0
    n_features: int = 10
    n_communities: int = 12
    anomaly_rate: float = 0.05
    inside: float = 0.8  # share of a normal node's links that stay in its community
    camouflage: float = 0.9  # share of an anomaly's links that go to normal nodes anywhere
    stray: float = 2.0  # how much further an anomaly strays from its community's mean
    degree_spread: float = 0.8  # standard deviation of the logarithm of expected degrees
    seed: int = 0

    def __post_init__(self):
        wrong = [name for name in ("inside", "camouflage") if not 0 <= getattr(self, name) <= 1]
        wrong += [] if 0 <= self.anomaly_rate <= 0.5 else ["anomaly_rate"]
        positive = ("n_nodes", "mean_degree", "n_features", "n_communities", "stray")
        wrong += [name for name in positive if getattr(self, name) <= 0]
        if wrong:
            raise ValueError(f"impossible: {', '.join(f'{n}={getattr(self, n)}' for n in wrong)}")


def generate(config: FraudGraphConfig = FraudGraphConfig()) -> NodeGraph:
    """The graph of a configuration, the same for the same seed.

    About n_nodes x mean_degree / 2 undirected edges: a link that falls on another, or on its
    own node, is not drawn again.
    """
    c, rng = config, np.random.default_rng(config.seed)
    community = rng.integers(c.n_communities, size=c.n_nodes, dtype=np.int32)
    labels = np.zeros(c.n_nodes, np.int8)
    n_anomalies = round(c.anomaly_rate * c.n_nodes)
    labels[rng.choice(c.n_nodes, n_anomalies, replace=False)] = 1

    means = rng.normal(size=(c.n_communities, c.n_features)).astype(np.float32)
    x = rng.standard_normal((c.n_nodes, c.n_features), np.float32)
    x *= np.where(labels, c.stray, 1.0).astype(np.float32)[:, None] * np.float32(0.5)
    x += means[community]

    pairs = _links(c, rng, community, labels)
    about = (
        f"Generated: {c.n_communities} communities; {n_anomalies:,} anomalies, of whose links "
        f"{c.camouflage:.0%} go to normal nodes anywhere and whose {c.n_features} features stray "
        f"{c.stray:g} times as far from their community's mean."
    )
    return node_graph("synthetic", x, pairs, labels, about=about)


def _links(
    c: FraudGraphConfig,
    rng: np.random.Generator,
    community: Int32[np.ndarray, " n"],
    labels: Integer[np.ndarray, " n"],
) -> Int32[np.ndarray, "2 m"]:
    """Pairs (who starts a link, with whom), a chunk at a time."""
    # Few links come to an anomaly, so it starts more: the number of neighbours tells nothing.
    # Without the bound, a graph half of anomalies that link to none of their kind asks for more
    # than there is.
    odds = labels.mean() / (1 - labels.mean())
    more = (1 + c.inside) / max(1 - c.camouflage * odds, 0.1)
    weight = rng.lognormal(-(c.degree_spread**2) / 2, c.degree_spread, c.n_nodes)  # mean 1
    weight += (more - 1) * labels
    started = rng.poisson(weight / (1 + (more - 1) * labels.mean()) * c.mean_degree / 2)
    pairs = np.empty((2, started.sum()), np.int32)
    pairs[0] = np.repeat(np.arange(c.n_nodes, dtype=np.int32), started)

    # The normal members of each community, one community after the other.
    normal = np.flatnonzero(labels == 0).astype(np.int32)
    normal = normal[np.argsort(community[normal], kind="stable")]
    size = np.bincount(community[normal], minlength=c.n_communities)
    first = np.cumsum(size) - size

    for at in range(0, pairs.shape[1], _CHUNK):
        sender = pairs[0, at : at + _CHUNK]
        home = community[sender]
        u, v = rng.random((2, len(sender)))
        stays = (labels[sender] == 0) & (u < c.inside) & (size[home] > 0)
        hides = (labels[sender] == 1) & (u < c.camouflage)
        mate = first[home] + (v * size[home]).astype(np.int64)
        anywhere = (v * len(normal)).astype(np.int64)
        anyone = (v * c.n_nodes).astype(np.int32)
        partner = normal[np.minimum(np.where(stays, mate, anywhere), len(normal) - 1)]
        pairs[1, at : at + _CHUNK] = np.where(stays | hides, partner, anyone)
    return pairs
