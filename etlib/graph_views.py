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
    """Draw a molecule; the area of a disc is proportional to the share of its atom, and as large
    as that of an outline where all atoms have the same."""
    from rdkit import Chem
    from rdkit.Chem.rdDepictor import Compute2DCoords

    mol = Chem.MolFromSmiles(smiles)
    Compute2DCoords(mol)
    xy = mol.GetConformer().GetPositions()[:, :2]
    for bond in mol.GetBonds():
        ends = xy[[bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()]]
        width = bond.GetBondTypeAsDouble()
        ax.plot(*ends.T, color=figures.INK, linewidth=width, zorder=1)
    area = 60 * len(xy) * np.asarray(share)
    ax.scatter(*xy.T, s=area, color=figures.BLUE, alpha=0.7, linewidth=0, zorder=2)
    around = xy[list(outlined)].T
    ax.scatter(*around, s=60, facecolor="none", edgecolor=figures.ORANGE, linewidth=1.5, zorder=3)
    for atom, place in zip(mol.GetAtoms(), xy, strict=True):
        if atom.GetSymbol() != "C":
            beside = {"xytext": (4, 4), "textcoords": "offset points"}
            ax.annotate(atom.GetSymbol(), place, fontsize="small", zorder=4, **beside)
    ax.margins(0.12)
    ax.set_aspect("equal", adjustable="datalim")
    ax.axis("off")
