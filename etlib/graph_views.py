"""Looking into a graph classifier of the paper's text: energies, attention, and a molecule."""

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Float
from matplotlib.axes import Axes

from etlib import energy as en
from etlib import figures
from etlib.block import descend
from etlib.buckets import Bucket
from etlib.graph_classifier import GraphClassifier


@nnx.jit
def attention(model: GraphClassifier, graphs: Bucket) -> Float[Array, "b H N C"]:
    """The share of the attention of query C that key B gets, after the last step.

    The softmax over B of the weighted logits, as in the energy's gradient; the columns of
    padding are zeros, the others sum to one.
    """
    _, traces = model.run(graphs, trace=True)
    block, x = model.blocks[-1], traces[-1].tokens[-1]
    weights = model.weighted_adjacency(model.tokens(graphs), graphs)
    keys_and_queries = en.keys_queries(block.norm(x), block.Wk[...], block.Wq[...])
    logits = en.attention_logits(*keys_and_queries, block.inverse_temperature, weights)
    pairs = en.attention_pairs(x.shape[-2], False, graphs.edges, graphs.valid)
    return jax.nn.softmax(logits, axis=-2, where=pairs[..., None, :, :])


@nnx.jit(static_argnames="n_steps")
def energies(
    model: GraphClassifier, graphs: Bucket, *, n_steps: int, alpha: float | Float[Array, ""]
) -> Float[Array, "T1 b"]:
    """Energy of each graph along `n_steps` steps of the first block, which may be more, and
    of other size, than the model was trained with."""
    x = model.tokens(graphs)
    pairs = model.pairs(x, graphs)
    _, trace = descend(model.blocks[0], x, n_steps=n_steps, alpha=alpha, trace=True, **pairs)
    return trace.energy


def draw_molecule(
    ax: Axes, smiles: str, share: Float[np.ndarray, " n"], outlined: tuple[int, ...] = ()
) -> None:
    """Draw a molecule; the area of a disc is proportional to the share of its atom."""
    from rdkit import Chem
    from rdkit.Chem.rdDepictor import Compute2DCoords

    mol = Chem.MolFromSmiles(smiles)
    Compute2DCoords(mol)
    xy = mol.GetConformer().GetPositions()[:, :2]
    for bond in mol.GetBonds():
        ends = xy[[bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()]]
        width = 1.0 + 1.0 * (bond.GetBondTypeAsDouble() - 1)
        ax.plot(*ends.T, color=figures.INK, linewidth=width, zorder=1)
    edge = [figures.ORANGE if i in outlined else "none" for i in range(len(xy))]
    area = 1500 * np.asarray(share)
    ax.scatter(*xy.T, s=area, color=figures.BLUE, alpha=0.7, zorder=2, linewidth=0)
    ax.scatter(*xy.T, s=110, facecolor="none", edgecolor=edge, zorder=3, linewidth=1.5)
    for atom, place in zip(mol.GetAtoms(), xy, strict=True):
        if atom.GetSymbol() != "C":
            ax.annotate(atom.GetSymbol(), place, ha="center", va="center", zorder=4)
    ax.set_aspect("equal")
    ax.axis("off")
