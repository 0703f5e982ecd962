"""Readers of the file formats that node-anomaly sets come in.

A file is a stranger's: it may be cut, of another kind, or a web page under the right name.
Each reader says in one DataError what it found and what it expected. Pickles are never loaded.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse as sp
from jaxtyping import Float32, Int8, Integer

from etlib.data.nodegraph import UNLABELLED, NodeGraph, node_graph
from etlib.errors import DataError

Pairs = Integer[np.ndarray, "2 any"]


def multi_relation_mat(
    path: Path, name: str, relations: tuple[str, ...], n_unlabelled: int = 0, about: str = ""
) -> NodeGraph:
    """YelpChi.mat and Amazon.mat as CARE-GNN and DGL share them: `features`, `label`, one sparse
    matrix for each relation, and `homo`, which joins them.

    The first `n_unlabelled` nodes carry a label 0 that means nothing; they become UNLABELLED.
    """
    content = _read_mat(path, ("features", "label", "homo", *relations))
    x = _features(path, "features", content["features"])
    labels = _labels(path, "label", content["label"], len(x))
    if n_unlabelled >= len(x):
        raise DataError(
            f"{path}: {len(x)} nodes, of which the first {n_unlabelled} would be unlabelled"
        )
    labels[:n_unlabelled] = UNLABELLED
    pairs = {kind: _adjacency(path, kind, content[kind], len(x)) for kind in relations}
    homo = _adjacency(path, "homo", content["homo"], len(x))
    return _checked(path, lambda: node_graph(name, x, homo, labels, pairs, about))


def attributed_mat(path: Path, name: str, about: str = "") -> NodeGraph:
    """An attributed network: `Network`, `Attributes`, `Label`."""
    content = _read_mat(path, ("Network", "Attributes", "Label"))
    x = _features(path, "Attributes", content["Attributes"])
    labels = _labels(path, "Label", content["Label"], len(x))
    pairs = _adjacency(path, "Network", content["Network"], len(x))
    return _checked(path, lambda: node_graph(name, x, pairs, labels, about=about))


def edge_list_npz(path: Path, name: str, kinds: bool = False, about: str = "") -> NodeGraph:
    """`x` (n, F), `edge_index` (2, m), `y` (n,).

    kinds: y numbers kinds of anomaly (1 contextual, 2 structural, 3 both); any is an anomaly.
    """
    content = _read_npz(path, ("x", "edge_index", "y"))
    x = _features(path, "x", content["x"])
    y = _integers(path, "y", content["y"])
    labels = _labels(path, "y", (y > 0).astype(int) if kinds else y, len(x))
    pairs = _pairs(path, "edge_index", content["edge_index"])
    return _checked(path, lambda: node_graph(name, x, pairs, labels, about=about))


def heterophilous_npz(path: Path, name: str, about: str = "") -> NodeGraph:
    """A set of Platonov et al.: `node_features`, `node_labels`, `edges` (m, 2), each once."""
    content = _read_npz(path, ("node_features", "node_labels", "edges"))
    x = _features(path, "node_features", content["node_features"])
    labels = _labels(path, "node_labels", content["node_labels"], len(x))
    pairs = _pairs(path, "edges", content["edges"].T)
    return _checked(path, lambda: node_graph(name, x, pairs, labels, about=about))


# --- files --------------------------------------------------------------------


def _read_mat(path: Path, names: tuple[str, ...]) -> dict[str, Any]:
    _look(path)
    try:
        content = scipy.io.loadmat(path, variable_names=names)
    except NotImplementedError:
        raise DataError(
            f"{path} is a MATLAB 7.3 file (HDF5); save it in MATLAB with the option -v7"
        ) from None
    except Exception as error:  # a parser of damaged input raises whatever it stumbles over
        raise DataError(f"{path} is no readable MATLAB file: {_reason(error)}") from None
    _complete(path, content, names)
    return content


def _read_npz(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    _look(path)
    try:
        with path.open("rb") as file:  # np.load leaves a file that it cannot read open
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise DataError(f"{path} holds one array; expected an .npz with {', '.join(names)}")
            _complete(path, archive, names)
            return {name: archive[name] for name in names}
    except DataError:
        raise
    except Exception as error:
        if "allow_pickle" in str(error):  # what NumPy says of anything that it does not know
            raise DataError(
                f"{path} is no readable .npz file of plain arrays; Python objects (a pickle) can "
                f"run code and are not loaded"
            ) from None
        raise DataError(f"{path} is no readable .npz file: {_reason(error)}") from None


def _look(path: Path) -> None:
    """Refuse what a failed download leaves under the right name."""
    with path.open("rb") as file:
        start = file.read(200)
    if not start:
        raise DataError(f"{path} is empty")
    if start.lstrip().startswith(b"<"):
        raise DataError(f"{path} is a web page, not a data file: its download failed")
    if start.startswith(b"version https://git-lfs"):
        raise DataError(f"{path} is a Git LFS pointer, not the file: run `git lfs pull`")


def _complete(path: Path, content: Iterable[str], names: tuple[str, ...]) -> None:
    absent = [name for name in names if name not in content]
    if absent:
        if path.suffix == ".mat":
            found = [name for name, _, _ in scipy.io.whosmat(path)]
        else:
            found = list(content)
        raise DataError(
            f"{path} lacks {', '.join(absent)}; it holds {', '.join(found[:20]) or 'nothing'}"
        )


def _reason(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _checked(path: Path, make: Callable[[], NodeGraph]) -> NodeGraph:
    try:
        return make()
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


# --- what a file holds --------------------------------------------------------


def _numbers(path: Path, key: str, value: Any) -> np.ndarray:
    if sp.issparse(value):
        value = value.toarray()
    value = np.asarray(value)
    if value.dtype.kind not in "biuf":
        raise DataError(f"{path}: {key} holds {value.dtype}, not real numbers")
    return value


def _features(path: Path, key: str, value: Any) -> Float32[np.ndarray, "n F"]:
    value = _numbers(path, key, value)
    if value.ndim != 2 or 0 in value.shape:
        raise DataError(f"{path}: {key} has shape {value.shape}; expected (nodes, features)")
    with np.errstate(over="ignore"):  # what overflows becomes infinite, which is refused
        return np.ascontiguousarray(value, np.float32)


def _integers(path: Path, key: str, value: Any) -> Integer[np.ndarray, "..."]:
    """Whole numbers, also when stored as floats."""
    value = _numbers(path, key, value)
    if value.dtype.kind == "f":
        if not (np.isfinite(value).all() and (value == np.round(value)).all()):
            raise DataError(f"{path}: {key} holds numbers that are not whole")
    return value.astype(np.int64)


def _labels(path: Path, key: str, value: Any, n: int) -> Int8[np.ndarray, " n"]:
    """One integer a node from a row, a column, a flat or a one-hot array, of any number type."""
    value = _integers(path, key, value)
    if value.shape == (n, 2) and n != 1 and (np.sort(value, axis=1) == (0, 1)).all():
        value = value.argmax(axis=1)
    if value.size != n or value.ndim > 2 or max(value.shape) != n:
        raise DataError(f"{path}: {key} has shape {value.shape}, but there are {n} nodes")
    if not np.isin(value, (0, 1, UNLABELLED)).all():
        raise DataError(
            f"{path}: {key} holds {np.unique(value)[:9].tolist()}; expected 0 (normal), "
            f"1 (anomaly) or -1 (unlabelled)"
        )
    return value.reshape(n).astype(np.int8)


def _adjacency(path: Path, key: str, value: Any, n: int) -> Pairs:
    """The entries of an adjacency matrix that are not zero, as pairs of nodes."""
    if not sp.issparse(value):
        value = sp.coo_array(np.atleast_2d(_numbers(path, key, value)))
    if value.shape != (n, n):
        raise DataError(
            f"{path}: {key} has shape {value.shape}, but there are {n} nodes: expected {(n, n)}"
        )
    value = value.tocoo()
    if not np.isfinite(value.data).all():
        raise DataError(f"{path}: {key} holds entries that are not finite")
    used = value.data != 0
    return np.stack([value.row[used], value.col[used]])


def _pairs(path: Path, key: str, value: Any) -> Pairs:
    value = _integers(path, key, value)
    if value.ndim != 2 or value.shape[0] != 2:
        raise DataError(f"{path}: {key} has shape {value.shape}; expected pairs of nodes")
    return value
