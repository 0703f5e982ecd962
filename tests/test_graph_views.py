"""What is shown of a graph classifier, against its own energy and against a loop."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from etlib import graph_views
from etlib.buckets import bucket, encode
from tests.graphs import K, make, some_graph


@pytest.fixture(scope="module")
def graphs():
    return bucket(encode([some_graph(n) for n in (1, 5, 7)], K), np.arange(3), 10)


@pytest.fixture(scope="module")
def model():
    return make(n_blocks=1, noise_std=0.0)


def test_attention_against_a_loop(model, graphs):
    """Graph 2, head 0, from the tokens after the last step."""
    found = np.asarray(graph_views.attention(model, graphs))
    _, traces = model.run(graphs, trace=True)
    block = model.blocks[0]
    g = np.asarray(block.norm(traces[0].tokens[-1])[2])
    weights = np.asarray(model.weighted_adjacency(model.tokens(graphs), graphs))[2, 0]
    Wk, Wq = np.asarray(block.Wk[0]), np.asarray(block.Wq[0])
    beta = float(block.inverse_temperature[0])
    for C in range(8):
        keys = [B for B in range(8) if graphs.edges[2, B, C]]
        e = {B: np.exp(beta * weights[B, C] * (Wk @ g[B]) @ (Wq @ g[C])) for B in keys}
        for B in range(10):
            expected = e.get(B, 0.0) / sum(e.values())
            assert found[2, 0, B, C] == pytest.approx(expected, abs=1e-5)


def test_attention_is_shared_out_among_neighbours(model, graphs):
    found = np.asarray(graph_views.attention(model, graphs))
    sums = found.sum(axis=-2)
    np.testing.assert_allclose(sums[np.broadcast_to(graphs.valid[:, None], sums.shape)], 1, 1e-5)
    assert found[~np.broadcast_to(graphs.edges[:, None], found.shape)].max() == 0


def test_energies_start_as_the_model_does_and_fall_in_small_steps(model, graphs):
    _, traces = model.run(graphs, trace=True)
    T, alpha = model.config.block.n_steps, model.config.block.alpha
    along = graph_views.energies(model, graphs, n_steps=T, alpha=alpha)
    np.testing.assert_allclose(along, traces[0].energy, rtol=1e-5)
    small = np.asarray(graph_views.energies(model, graphs, n_steps=20, alpha=0.01))
    assert small.shape == (21, 3) and (np.diff(small, axis=0) < 1e-5).all()


def test_a_drawn_molecule_shows_its_atoms_and_bonds():
    figure, ax = plt.subplots()
    graph_views.draw_molecule(ax, "CC(=O)O", np.array([0.1, 0.2, 0.3, 0.4]), outlined=(2,))
    assert len(ax.lines) == 3  # bonds
    sizes = ax.collections[0].get_sizes()
    np.testing.assert_allclose(sizes / sizes.sum(), [0.1, 0.2, 0.3, 0.4])
    assert [text.get_text() for text in ax.texts] == ["O", "O"]
    plt.close(figure)
