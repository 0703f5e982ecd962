"""Molecules as graphs, and the label that RDKit computes."""

import numpy as np
import pytest
from rdkit import Chem

from etlib.data import molecules
from etlib.errors import UserError

NAMES = (*molecules.ELEMENTS, "H0", "H1", "H2", "H3", "charge", "aromatic", "ring")


@pytest.fixture(scope="module")
def pains():
    return molecules.pains(20)


def test_acetonitrile_by_hand():
    made = molecules.molecule("CC#N", 1)
    said = [{NAMES[i]: float(row[i]) for i in np.flatnonzero(row)} for row in made.x]
    assert said == [{"C": 1, "H3": 1}, {"C": 1, "H0": 1}, {"N": 1, "H0": 1}]
    assert made.edges.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    single, triple = [1, 0, 0, 0], [0, 0, 1, 0]
    assert made.edge_attr.tolist() == [single, single, triple, triple] and made.y == 1


def test_charges_rings_and_an_ion_pair():
    made = molecules.molecule("[O-]c1ccccc1.[Cl-]")
    assert made.x[:, NAMES.index("charge")].tolist() == [-1, 0, 0, 0, 0, 0, 0, -1]
    assert made.x[:, NAMES.index("ring")].tolist() == [0, 1, 1, 1, 1, 1, 1, 0]
    assert made.degrees[-1] == 0


def test_a_subset_is_balanced_and_its_atoms_are_those_of_the_molecules(pains):
    assert np.bincount(pains.y).tolist() == [10, 10]
    for made, smiles in zip(pains.graphs, pains.sources, strict=True):
        mol = Chem.MolFromSmiles(smiles)
        symbols = [atom.GetSymbol() for atom in mol.GetAtoms()]
        assert [NAMES[i] for i in made.x[:, :9].argmax(axis=1)] == symbols
        assert made.edges.shape[1] == 2 * mol.GetNumBonds()
        assert np.array_equal(made.x[:, :13].sum(axis=1), np.full(len(symbols), 2))
        assert np.array_equal(made.edge_attr.sum(axis=1), np.ones(made.edges.shape[1]))


def test_an_alert_names_atoms_of_a_positive_molecule(pains):
    for made, smiles in zip(pains.graphs, pains.sources, strict=True):
        if made.y:
            name, atoms = molecules.alert(smiles)
            assert name and set(atoms) <= set(range(len(made.x))) and len(atoms) > 2
        else:
            with pytest.raises(ValueError, match="no PAINS filter"):
                molecules.alert(smiles)


def test_a_quinone_is_an_alert_by_its_own_atoms():
    name, atoms = molecules.alert("CCCC1=CC(=O)C=CC1=O")
    assert name.startswith("quinone") and 0 not in atoms and {6, 10} <= set(atoms)


@pytest.mark.parametrize("n", [3, 0, 1682])
def test_other_sizes_are_refused(n):
    with pytest.raises(UserError, match=f"2 to 1680, not {n}"):
        molecules.pains(n)
