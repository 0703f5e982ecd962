"""TU sets: read from a root that is left alone, checked, downloaded only when asked."""

import http.server
import io
import os
import shutil
import threading
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from etlib.data import tu
from etlib.data.graphset import fill_features, statistics
from etlib.errors import DataError

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"

TOY = {
    "A": "1, 2\n2, 1\n4, 5\n5, 4\n",
    "graph_indicator": "1\n1\n1\n2\n2\n2\n",
    "graph_labels": "-1\n1\n",
}


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """An empty data root, and a user's cache of its own."""
    monkeypatch.setattr("pooch.os_cache", lambda name: str(tmp_path / "home" / name))
    monkeypatch.setenv("ETLIB_DATA", str(tmp_path))
    return tmp_path


def write(root, name="TOY", **files):
    raw = root / "TUDataset" / name / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for part, text in (TOY | files).items():
        (raw / f"{name}_{part}.txt").write_text(text)
    return raw


def snapshot(folder):
    return {p: p.stat().st_mtime_ns for p in folder.rglob("*")}


def test_a_set_without_features(root):
    write(root)
    toy = tu.load("TOY")
    assert statistics(toy) == (2, 2, 3.0, 1.0, 3, 0, 0)
    assert toy.y.tolist() == [0, 1] and toy.class_names == ("-1", "1")
    filled = fill_features(toy, np.array([0]))
    assert filled.graphs[1].x.tolist() == [[0, 1], [0, 1], [1, 0]]
    assert "one-hot degree, 0 to 1 or more" in filled.features
    constant = fill_features(toy, np.array([0]), "constant")
    assert constant.graphs[0].x.tolist() == [[1], [1], [1]]
    assert "constant" in constant.features


def test_degrees_beyond_those_of_the_training_graphs_are_clipped(root):
    write(root, A="1, 2\n2, 1\n4, 5\n5, 4\n4, 6\n6, 4\n")
    filled = fill_features(tu.load("TOY"), np.array([0]))
    assert filled.graphs[1].x.tolist() == [[0, 1], [0, 1], [0, 1]]
    assert fill_features(tu.load("TOY"), np.array([1])).n_features == 3
    assert fill_features(filled, np.array([1])) is filled  # has features


def test_attributes_come_before_one_hot_labels_and_edges_have_labels(root):
    write(
        root,
        node_labels="7\n8\n7\n8\n7\n7\n",
        node_attributes="0.5\n1.5\n2.5\n3.5\n4.5\n5.5\n",
        edge_labels="3\n3\n4\n4\n",
    )
    toy = tu.load("TOY")
    assert toy.graphs[0].x.tolist() == [[0.5, 1, 0], [1.5, 0, 1], [2.5, 1, 0]]
    assert toy.graphs[1].edge_attr.tolist() == [[0, 1], [0, 1]]
    assert toy.features == "1 attributes and one-hot label of 2 kinds"


def test_repeats_and_loops_are_dropped_and_one_way_edges_announced(root):
    write(root, A="1, 2\n2, 1\n1, 2\n2, 1\n3, 3\n4, 5\n")
    with pytest.warns(UserWarning, match="TOY: 1 graphs list edges in one direction only"):
        toy = tu.load("TOY")
    assert [g.edges.tolist() for g in toy.graphs] == [[[0, 1], [1, 0]]] * 2


def test_changed_files_are_read_anew(root):
    write(root)
    assert tu.load("TOY").graphs[0].edges.shape[1] == 2
    write(root, A=TOY["A"] + "2, 3\n3, 2\n")
    assert tu.load("TOY").graphs[0].edges.shape[1] == 4


def test_nothing_is_written_into_the_root(root, monkeypatch):
    write(root / "readonly")
    monkeypatch.setenv("ETLIB_DATA", str(root / "readonly"))
    before = snapshot(root / "readonly")
    tu.load("TOY")
    tu.load("TOY")
    assert snapshot(root / "readonly") == before
    assert list((root / "home").rglob("data.pt"))


def test_a_set_that_is_missing_is_named_with_place_and_way(root):
    place = str(root / "TUDataset" / "MUTAG" / "raw")
    with pytest.raises(DataError) as error:
        tu.load("MUTAG")
    for part in ("MUTAG", place, "MUTAG_A.txt", "download=true", tu.URL.format(name="MUTAG")):
        assert part in str(error.value)


def test_a_set_that_is_there_in_part_is_not_downloaded(root):
    (write(root) / "TOY_graph_labels.txt").unlink()
    with pytest.raises(DataError, match=r"TOY in .* lacks TOY_graph_labels.txt"):
        tu.load("TOY", download=True)


def test_broken_files_are_refused_and_leave_no_cache(root):
    write(root, graph_indicator="1\n1\nthree\n")
    with pytest.raises(DataError, match=r"TOY in .* cannot be read"):
        tu.load("TOY")
    write(root)
    assert len(tu.load("TOY")) == 2


def test_another_set_under_a_published_name_is_refused(root):
    write(root, name="MUTAG")
    with pytest.raises(DataError, match="not the published set: graphs 2 instead of 188"):
        tu.load("MUTAG")


@pytest.fixture
def server(root, monkeypatch):
    """A local web server in place of the collection's."""
    served = root / "served"
    served.mkdir()
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(served))
    handler.log_message = lambda *_: None
    with http.server.ThreadingHTTPServer(("localhost", 0), handler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        monkeypatch.setattr(tu, "URL", f"http://localhost:{web.server_port}/{{name}}.zip")
        yield served
        web.shutdown()


def zipped(files):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


def test_a_set_is_downloaded_once_and_only_when_asked(root, server):
    files = {f"TOY/TOY_{part}.txt": text for part, text in TOY.items()}
    (server / "TOY.zip").write_bytes(zipped(files))
    with pytest.raises(DataError, match="is not in"):
        tu.load("TOY")
    assert len(tu.load("TOY", download=True)) == 2
    (server / "TOY.zip").unlink()
    assert len(tu.load("TOY")) == 2
    assert not (root / "TUDataset").exists()  # the root is the user's


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "could not be fetched from http"),
        (b"not a zip", "could not be fetched from http"),
        (zipped({"OTHER/x.txt": ""}), "holds no TOY/TOY_A.txt"),
    ],
)
def test_a_download_that_fails_says_so_and_leaves_nothing(root, server, content, said):
    if content is not None:
        (server / "TOY.zip").write_bytes(content)
    with pytest.raises(DataError, match=said):
        tu.load("TOY", download=True)
    assert not list((root / "home").rglob("*.txt"))


@pytest.mark.skipif(not SHARED.exists(), reason=f"no {SHARED.name} beside the checkout")
@pytest.mark.parametrize("name", ["MUTAG", "ENZYMES", "PROTEINS"])
def test_the_real_sets_agree_with_the_published_table(monkeypatch, name):
    monkeypatch.setenv("ETLIB_DATA", str(SHARED))
    found, wanted = tu.load(name), tu.PUBLISHED[name]
    assert statistics(found).features == wanted.attributes + wanted.labels
    assert found.y.min() == 0 and found.y.max() == wanted.classes - 1


@pytest.mark.skipif(not SHARED.exists(), reason=f"no {SHARED.name} beside the checkout")
def test_lost_attributes_are_noticed(root, monkeypatch):
    """ENZYMES without its continuous attributes is not ENZYMES."""
    place = root / "TUDataset" / "ENZYMES" / "raw"
    shutil.copytree(SHARED / "TUDataset" / "ENZYMES" / "raw", place)
    os.chmod(place, 0o755)
    (place / "ENZYMES_node_attributes.txt").unlink()
    with pytest.raises(DataError, match="attributes 0 instead of 18"):
        tu.load("ENZYMES")
