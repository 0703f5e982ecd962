"""Small random graphs, and a small model of them."""

import numpy as np
from flax import nnx

from etlib import graph_classifier as gc
from etlib.data.graphset import graph
from etlib.released_graphs import ReleasedGraphClassifier, released_config

F, FE, K, CLASSES = 3, 2, 4, 3
BLOCK = gc.graph_block(token_dim=8, n_heads=2, head_dim=4, n_memories=6, n_steps=2)


def some_graph(n, density=0.3, seed=0, repeated=False):
    """Features and edges at random; repeated edges and self-loops on request."""
    rng = np.random.default_rng([seed, n])
    pairs = np.argwhere(rng.random((n, n)) < density).reshape(-1, 2)
    if not repeated:
        pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    else:
        pairs = np.concatenate([pairs, pairs, np.repeat(np.arange(n)[:, None], 2, axis=1)])
    attr = rng.normal(size=(len(pairs), FE)).astype(np.float32)
    x = rng.normal(size=(n, F)).astype(np.float32)
    return graph(x, pairs.T, int(rng.integers(CLASSES)), attr)


def make(n_blocks=2, scale=30.0, released=False, **changed):
    """A small model whose attention weights are far from zero, so that the softmax is not flat."""
    config = dict(k=K, n_blocks=n_blocks, block=BLOCK) | changed
    if released:
        model = ReleasedGraphClassifier(released_config(F, FE, **config), rngs=nnx.Rngs(0))
    else:
        model = gc.GraphClassifier(gc.GraphConfig(F, CLASSES, FE, **config), rngs=nnx.Rngs(0))
    for block in model.blocks:
        for param in (block.Wk, block.Wq):
            param.set_value(param[...] * scale)
    return model
