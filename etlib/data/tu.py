"""Sets of the TUDataset collection (Morris et al. 2020), read by PyTorch Geometric.

The raw files are looked for in the data root, then in what was downloaded. The root may be
read-only: PyTorch Geometric's processed file goes to a folder of the cache that is named by a
hash of the raw files, so that changed files are never answered from an old cache.
"""

import contextlib
import hashlib
import io
import shutil
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from etlib.data.graphset import Graph, GraphSet, graph
from etlib.data.root import cache, data_root, default_root, missing
from etlib.errors import DataError

URL = "https://www.chrsmrrs.com/graphkerneldatasets/{name}.zip"


class Published(NamedTuple):
    """What the collection's own table says of a set; its edges count once."""

    graphs: int
    classes: int
    mean_nodes: float
    mean_edges: float
    attributes: int  # continuous features of a node
    labels: int  # kinds of node, one-hot


PUBLISHED = {
    "MUTAG": Published(188, 2, 17.93, 19.79, 0, 7),
    "ENZYMES": Published(600, 6, 32.63, 62.14, 18, 3),
    "PROTEINS": Published(1113, 2, 39.06, 72.82, 1, 3),
    "NCI1": Published(4110, 2, 29.87, 32.30, 0, 37),
    "NCI109": Published(4127, 2, 29.68, 32.13, 0, 38),
    "DD": Published(1178, 2, 284.32, 715.66, 0, 89),
    "Mutagenicity": Published(4337, 2, 30.32, 30.77, 0, 14),
    "FRANKENSTEIN": Published(4337, 2, 16.90, 17.88, 780, 0),
}


def load(name: str, *, download: bool = False) -> GraphSet:
    """A TU set: node attributes followed by one-hot node labels, one-hot edge labels, classes
    from 0 in the order of their numbers in the file.

    A set without any node features has `x` of width 0; `etlib.data.graphset.fill_features`
    gives it some. `download` fetches a set that is not there.

    Raises DataError when the set is not there, cannot be read, or is not the set that the
    collection's table describes.
    """
    raw = raw_folder(name, download)
    classes = np.unique(np.loadtxt(raw / f"{name}_graph_labels.txt", dtype=int))
    data = _read(name, raw)
    graphs = tuple(_graph(item) for item in data)
    one_way = sum(
        made.edges.shape[1] > item.num_edges for made, item in zip(graphs, data, strict=True)
    )
    if one_way:
        warnings.warn(
            f"{name}: {one_way} graphs list edges in one direction only; they count in both",
            stacklevel=2,
        )
    return GraphSet(
        name=name,
        graphs=graphs,
        class_names=tuple(map(str, classes)),
        features=_checked(name, raw, graphs, data.num_node_attributes, data.num_node_labels),
        labels="TUDataset collection",
    )


def raw_folder(name: str, download: bool = False) -> Path:
    """The folder of the raw files: in the data root, or downloaded before, or now.

    Raises DataError when they are not there, or not all of them.
    """
    needed = [f"{name}_{part}.txt" for part in ("A", "graph_indicator", "graph_labels")]
    places = [root / "TUDataset" / name / "raw" for root in (data_root(), default_root())]
    for place in places:
        absent = [file for file in needed if not (place / file).is_file()]
        if not absent:
            return place
        if len(absent) < len(needed):
            raise DataError(f"the data set {name} in {place} lacks {', '.join(absent)}")
    if download:
        return _download(name, places[-1])
    raise missing(
        name,
        places[0],
        f"Put {', '.join(needed)} and its other files there, or let them be fetched from "
        f"{URL.format(name=name)} with the parameter download=true.",
    )


def _download(name: str, place: Path) -> Path:
    import pooch

    url = URL.format(name=name)
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
        try:
            pooch.retrieve(
                url,
                known_hash=None,  # the collection publishes none; `_checked` looks at the content
                path=scratch,
                fname=f"{name}.zip",
                processor=pooch.Unzip(extract_dir="content"),
            )
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise DataError(f"{name} could not be fetched from {url}: {error}") from None
        found = Path(scratch, "content", name)
        if not (found / f"{name}_A.txt").is_file():
            raise DataError(f"what {url} gave holds no {name}/{name}_A.txt")
        found.rename(place)
    return place


def _read(name: str, raw: Path):
    """PyTorch Geometric's data set, processed in the cache unless these raw files were before."""
    import torch_geometric

    digest = hashlib.sha256(torch_geometric.__version__.encode())
    for path in sorted(raw.glob(f"{name}_*.txt")):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    folder = cache("TUDataset", name) / digest.hexdigest()[:16]
    if not folder.exists():
        # Processed elsewhere and renamed when whole: a stopped run leaves no half behind.
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            made = Path(scratch, "made")
            _link(raw, made / name / "raw")
            try:
                _dataset(made, name)
            except (ValueError, RuntimeError, IndexError) as error:
                raise DataError(f"{name} in {raw} cannot be read: {error}") from None
            with contextlib.suppress(OSError):  # another process was first
                made.rename(folder)
    return _dataset(folder, name)


def _dataset(folder: Path, name: str):
    from torch_geometric.datasets import TUDataset

    with contextlib.redirect_stderr(io.StringIO()):  # it prints "Processing..."
        return TUDataset(str(folder), name, use_node_attr=True, use_edge_attr=True)


def _link(raw: Path, place: Path) -> None:
    place.parent.mkdir(parents=True)
    try:
        place.symlink_to(raw, target_is_directory=True)
    except OSError:  # a system that allows no links
        shutil.copytree(raw, place)


def _graph(item) -> Graph:
    x = np.zeros((item.num_nodes, 0), np.float32) if item.x is None else item.x.numpy()
    attr = None if item.edge_attr is None else item.edge_attr.numpy()
    return graph(x, item.edge_index.numpy(), int(item.y), attr)


def _checked(name: str, raw: Path, graphs: tuple[Graph, ...], attributes: int, labels: int) -> str:
    """What the features are, once the set agrees with the collection's table."""
    kinds = [f"{attributes} attributes"] * (attributes > 0)
    kinds += [f"one-hot label of {labels} kinds"] * (labels > 0)
    features = " and ".join(kinds) or "none"
    if name not in PUBLISHED:
        return features
    wanted = PUBLISHED[name]
    found = Published(
        len(graphs),
        len({g.y for g in graphs}),
        round(np.mean([len(g.x) for g in graphs]), 2),
        round(np.mean([g.edges.shape[1] / 2 for g in graphs]), 2),
        attributes,
        labels,
    )
    if found == wanted:
        return features
    if found == wanted._replace(attributes=0, labels=0):  # structure alone is of use
        return f"none (the {wanted.attributes} attributes that the collection lists are missing)"
    pairs = zip(Published._fields, found, wanted, strict=True)
    differ = [f"{field} {a} instead of {b}" for field, a, b in pairs if a != b]
    raise DataError(f"{name} in {raw} is not the published set: {'; '.join(differ)}")
