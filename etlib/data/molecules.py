"""`pains`: screening molecules that come with RDKit, told apart by RDKit's own PAINS filters.

Pan-assay interference compounds are molecules that look active in many screens for the wrong
reason. The label is computed, not measured: 1 where one of the 480 substructure filters of
RDKit's PAINS catalogue (Baell and Holloway 2010) matches. A molecule holds its label, so there
is no noise in it and a perfect classifier exists; what is learnt is to see the substructures.
"""

import csv
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from etlib.data.graphset import Graph, GraphSet, graph
from etlib.errors import UserError

N_POSITIVE = 840  # of the 10,000 molecules

ELEMENTS = ("C", "N", "O", "S", "F", "Cl", "Br", "I", "P")  # all that occur
BONDS = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")
FEATURES = (
    f"one-hot element ({', '.join(ELEMENTS)}), one-hot number of hydrogens (0 to 3), "
    "formal charge, aromatic, in a ring; edges: one-hot bond (single, double, triple, aromatic)"
)


def pains(n: int = 2 * N_POSITIVE) -> GraphSet:
    """A balanced subset of `n` molecules: the first n / 2 of each class, in the file's order.

    Atoms are nodes, hydrogens are counted but are no nodes. Labelling takes about 3 ms a
    molecule read, half a minute for all.

    Raises UserError for an `n` that is odd, or more than the positives allow.
    """
    if n % 2 or not 2 <= n <= 2 * N_POSITIVE:
        raise UserError(f"pains takes an even number of molecules, 2 to {2 * N_POSITIVE}, not {n}")
    chosen: list[tuple[str, int]] = []
    room = [n // 2, n // 2]
    for smiles, y in _labelled(_smiles()):
        if room[y]:
            room[y] -= 1
            chosen.append((smiles, y))
        if not any(room):
            break
    return GraphSet(
        name="pains",
        graphs=tuple(molecule(smiles, y) for smiles, y in chosen),
        class_names=("no alert", "PAINS alert"),
        features=FEATURES,
        labels="computed by RDKit's PAINS filter catalogue, not measured",
        sources=tuple(smiles for smiles, _ in chosen),
    )


def molecule(smiles: str, y: int = 0) -> Graph:
    """A molecule as a graph with the features that `FEATURES` names."""
    from rdkit.Chem import GetPeriodicTable
    from torch_geometric.utils.smiles import e_map, from_smiles, x_map

    data = from_smiles(smiles)
    atoms = dict(zip(x_map, data.x.numpy().T, strict=True))
    bonds = dict(zip(e_map, data.edge_attr.numpy().T, strict=True))
    numbers = [GetPeriodicTable().GetAtomicNumber(symbol) for symbol in ELEMENTS]
    charge = np.array(x_map["formal_charge"])[atoms["formal_charge"]]
    rest = np.stack([charge, atoms["is_aromatic"], atoms["is_in_ring"]], axis=1)
    x = [_one_hot(atoms["atomic_num"], numbers), _one_hot(atoms["num_hs"], [0, 1, 2, 3]), rest]
    kinds = [e_map["bond_type"].index(name) for name in BONDS]
    return graph(
        np.concatenate(x, axis=1, dtype=np.float32),
        data.edge_index.numpy(),
        y,
        _one_hot(bonds["bond_type"], kinds),
    )


def alert(smiles: str) -> tuple[str, tuple[int, ...]]:
    """The first PAINS filter that a molecule sets off, and the atoms (nodes) that it matches.

    Raises ValueError for a molecule that sets off none.
    """
    from rdkit import Chem

    mol = Chem.MolFromSmiles(smiles)
    found = _catalog().GetFirstMatch(mol)
    if found is None:
        raise ValueError(f"no PAINS filter matches {smiles}")
    pairs = found.GetFilterMatches(mol)[0].atomPairs
    return found.GetDescription(), tuple(sorted(atom for _, atom in pairs))


def _one_hot(values: Int[np.ndarray, " n"], alphabet: list[int]) -> Float[np.ndarray, "n letters"]:
    return (values[:, None] == np.array(alphabet)).astype(np.float32)


def _smiles() -> list[str]:
    from rdkit import RDConfig

    path = Path(RDConfig.RDDataDir, "Pains", "test_data", "wehi_mols.csv")
    with path.open(newline="") as file:
        return [smiles for smiles, _ in csv.reader(file)]


def _labelled(smiles: list[str]) -> Iterator[tuple[str, int]]:
    """The molecules with their labels, 200 at a time on all cores."""
    from rdkit.Chem.FilterCatalog import RunFilterCatalog

    for start in range(0, len(smiles), 200):
        part = smiles[start : start + 200]
        found = RunFilterCatalog(_catalog(), part, numThreads=0)
        yield from ((s, int(len(alerts) > 0)) for s, alerts in zip(part, found, strict=True))


@cache
def _catalog():
    from rdkit.Chem.FilterCatalog import FilterCatalog, FilterCatalogParams

    wanted = FilterCatalogParams()
    wanted.AddCatalog(FilterCatalogParams.FilterCatalogs.PAINS)
    return FilterCatalog(wanted)
