"""The released graph classifier against numbers computed with the authors' code."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from etlib import graph_classifier as gc
from etlib import released_graphs as rg
from etlib.buckets import Bucket

ORACLE = Path(__file__).parents[2] / "shared" / "oracles" / "released_graph_classifier.npz"


def n_parameters(model):
    return sum(a.size for a in jax.tree.leaves(nnx.state(model, nnx.Param)))


def put(param, value):
    value = jnp.asarray(value).reshape(param.shape)
    param.set_value(value)


@pytest.fixture
def oracle():
    if not ORACLE.exists():
        pytest.skip(f"numbers of the released code are not at {ORACLE}")
    with jax.enable_x64(True):
        yield np.load(ORACLE, allow_pickle=False)


def released(o):
    """The model of the oracle, and its two graphs."""
    block = gc.graph_block(token_dim=16, n_heads=2, head_dim=8, n_memories=32, n_steps=3)
    config = rg.released_config(3, 2, k=4, n_blocks=2, block=block)
    model = rg.ReleasedGraphClassifier(config, rngs=nnx.Rngs(0))
    layers = {"encoder": "node", "pos_pj": "position", "adj_pj": "pair", "decoder": "decoder"}
    for theirs, ours in layers.items():
        put(getattr(model, ours).kernel, o[f"param/{theirs}/kernel"])
        put(getattr(model, ours).bias, o[f"param/{theirs}/bias"])
    put(model.CLS, o["param/cls_token"])
    put(model.conv, o["param/conv/kernel"])
    for s, block in enumerate(model.blocks):
        for ours, theirs in {"Wk": "Wk", "Wq": "Wq", "Hw": "Hw", "beta": "betas"}.items():
            put(getattr(block, ours), o[f"param/encode_block_{s}/attn/{theirs}"])
        put(block.Xi, o[f"param/encode_block_{s}/chn/proj/kernel"].T)
        put(block.gamma, o[f"param/encode_norm_{s}/gamma"])
        put(block.delta, o[f"param/encode_norm_{s}/bias"])
    b, n, f = o["X"].shape
    graphs = Bucket(
        x=jnp.asarray(np.concatenate([np.zeros((b, 1, f)), o["X"]], axis=1)),
        encoding=jnp.asarray(o["P"]),
        valid=jnp.ones((b, n + 1), bool),
        edges=jnp.asarray(o["A"].any(axis=-1)),
        edge_attr=jnp.asarray(o["A"]),
        y=jnp.zeros(b, int),
        index=jnp.arange(b),
    )
    return model, graphs


def test_reproduces_the_released_code(oracle):
    model, graphs = released(oracle)
    logits, traces = model.run(graphs, trace=True)
    energies = np.concatenate([trace.energy[:-1] for trace in traces])
    weights = model.weighted_adjacency(model.tokens(graphs), graphs)
    as_released = np.moveaxis(np.asarray(weights).swapaxes(-1, -2), 1, -1)
    np.testing.assert_allclose(as_released, oracle["weighted_adjacency"], atol=1e-8, rtol=0)
    np.testing.assert_allclose(energies, oracle["energies"], atol=1e-8, rtol=0)
    np.testing.assert_allclose(logits, oracle["cls_logits"], atol=1e-8, rtol=0)


def test_a_bias_of_zero_confines_attention_to_the_edges(oracle):
    """The oracle's pairs without an edge have a weight, and lose it with the bias."""
    model, graphs = released(oracle)
    x = model.tokens(graphs)
    apart = ~np.asarray(graphs.edges)[:, None].repeat(2, axis=1)
    assert apart.any()
    assert np.all(np.asarray(model.weighted_adjacency(x, graphs))[apart] != 0)
    put(model.pair.bias, np.zeros(2))
    assert np.all(np.asarray(model.weighted_adjacency(x, graphs))[apart] == 0)


def test_parameter_count_of_the_released_dd_classifier():
    model = rg.ReleasedGraphClassifier(rg.released_config(n_features=89), rngs=nnx.Rngs(0))
    assert n_parameters(model) == 1_064_834


def test_head_mixing_is_all_that_a_block_has_more():
    """Without Hw and with two outputs, the default has the rest of the released parameters."""
    model = gc.GraphClassifier(gc.GraphConfig(n_features=89, n_classes=2), rngs=nnx.Rngs(0))
    assert n_parameters(model) == 1_064_834 - 4 * 12**2 - 8 * (128 + 1)
