"""Anomaly sets by name: where they are looked for, downloads, conversions, the real files."""

import http.server
import sys
import threading
import types
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from etlib.data import fraud
from etlib.data import fraud_formats as formats
from etlib.errors import DataError
from tests.test_data_fraud_formats import LABELS, attributed, edge_list, save

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
TOOLS = Path(__file__).parents[1] / "tools"


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """An empty data root, and a user's cache of its own."""
    monkeypatch.setattr("pooch.os_cache", lambda name: str(tmp_path / "home" / name))
    monkeypatch.setenv("ETLIB_DATA", str(tmp_path))
    return tmp_path


# --- places -------------------------------------------------------------------


@pytest.mark.parametrize("name", fraud.SOURCES)
def test_a_missing_set_says_where_and_how(root, name):
    with pytest.raises(DataError) as caught:
        fraud.load(name)
    source, message = fraud.SOURCES[name], str(caught.value)
    assert str(root / "fraud" / name / source.file) in message
    assert "http" in message and "ETLIB_DATA" in message
    assert ("download=true" in message) == bool(source.url)


def test_an_unknown_name():
    with pytest.raises(
        DataError, match="no set 'yelpchi'; there are wdbc, synthetic, yelp, amazon"
    ):
        fraud.load("yelpchi")


def test_another_file_under_a_known_name(root):
    save(root / "fraud/amazon_upu/Amazon.mat", attributed())
    with pytest.raises(DataError, match="6 nodes and 1 anomalies instead of 10224 and 693"):
        fraud.load("amazon_upu")


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Serves YelpChi.mat in an archive, as DGL's server does."""
    folder = tmp_path / "served"
    path = save(folder / "YelpChi.mat", attributed())
    with zipfile.ZipFile(folder / "FraudYelp.zip", "w") as archive:
        archive.write(path, "YelpChi.mat")
    (folder / "page.zip").write_text("<html>moved</html>")
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    with http.server.ThreadingHTTPServer(("localhost", 0), handler) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()

        def source(file):
            url = f"http://localhost:{serving.server_port}/{file}"
            toy = fraud.Source("YelpChi.mat", formats.attributed_mat, 6, 1, "toy", "", url)
            monkeypatch.setitem(fraud.SOURCES, "yelp", toy)

        yield source
        serving.shutdown()


def test_a_download_lands_in_the_cache_and_is_found_again(root, server, monkeypatch):
    server("FraudYelp.zip")
    graph = fraud.load("yelp", download=True)
    assert graph.name == "yelp" and graph.about == "toy" and graph.n_nodes == 6
    assert not (root / "fraud").exists()  # nothing is written into a data root
    assert [p.name for p in (root / "home/etlib/data/fraud/yelp").iterdir()] == ["YelpChi.mat"]
    assert fraud.load("yelp").n_nodes == 6


@pytest.mark.parametrize("file", ["page.zip", "nothing.zip"])
def test_a_download_that_fails(root, server, file):
    server(file)
    with pytest.raises(DataError, match=rf"YelpChi.mat could not be had from .*{file}"):
        fraud.load("yelp", download=True)
    assert not list((root / "home").rglob("*.*"))


# --- conversions --------------------------------------------------------------


def tool(name, monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    return __import__(name)


class Tensor(np.ndarray):
    def numpy(self):
        return np.asarray(self)


@pytest.mark.parametrize("label", [np.eye(2)[LABELS % 2], (LABELS % 2)[:, None], LABELS % 2])
def test_a_dgl_graph_becomes_an_npz(root, monkeypatch, label):
    """DGL itself is not among the dependencies: a stand-in with the calls that are used."""
    made = edge_list()
    fields = {"label": label.view(Tensor), "feature": made["x"].astype(float).view(Tensor)}
    graph = types.SimpleNamespace(
        ndata=fields,
        edges=lambda: tuple(row.view(Tensor) for row in made["edge_index"]),
        num_nodes=lambda: 6,
        num_edges=lambda: 3,
    )
    utils = types.SimpleNamespace(load_graphs=lambda path: ([graph], {}))
    for name in ("dgl", "dgl.data"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "dgl.data.utils", utils)
    tool("dgl_to_npz", monkeypatch).convert("tfinance", str(root / "out" / "a.npz"))
    converted = formats.edge_list_npz(root / "out" / "a.npz", "tfinance")
    expected = formats.edge_list_npz(save(root / "b.npz", edge_list(y=LABELS % 2)), "tfinance")
    for a, b in zip(converted[:4], expected[:4], strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_pygod_set_becomes_an_npz(root, monkeypatch):
    folder = SHARED / "fraud" / "disney"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here: the set Disney of PyGOD")
    target = root / "fraud/disney/disney.npz"
    tool("pygod_to_npz", monkeypatch).convert(str(folder / "disney.pt.zip"), str(target))
    graph = fraud.load("disney")
    monkeypatch.setenv("ETLIB_DATA", str(SHARED))
    for a, b in zip(graph[:4], fraud.load("disney")[:4], strict=True):
        np.testing.assert_array_equal(a, b)


# --- the real sets ------------------------------------------------------------

# nodes, features, anomalies; directed edges after the rule, counted by hand from the files
FOUND = {
    "amazon_upu": (10224, 25, 693, 351_216),
    "tolokers": (11758, 10, 2566, 1_038_000),
    "reddit": (10984, 64, 366, 168_016 - 10_984),
    "facebook": (1081, 576, 25, 55_104),
    "books": (1418, 21, 28, 2 * 3695),
    "enron": (13533, 18, 5, 2 * 176_987),
    "disney": (124, 28, 6, 2 * 335),
    "cora_injected": (2708, 1433, 150, 11_604),
    "citeseer_injected": (3327, 3703, 150, 10_275 - 121),
    "inj_cora": (2708, 1433, 138, None),
    "inj_amazon": (13752, 767, 694, None),
}


@pytest.mark.parametrize("name", FOUND)
def test_real_sets(name, monkeypatch):
    folder = SHARED / "fraud" / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here: the set {name}")
    monkeypatch.setenv("ETLIB_DATA", str(SHARED))
    graph = fraud.load(name)
    nodes, features, anomalies, edges = FOUND[name]
    assert graph.x.shape == (nodes, features)
    assert (graph.labels == 1).sum() == anomalies and len(graph.labelled) == nodes
    senders, receivers = graph.edges
    assert (senders != receivers).all()
    if edges is not None:
        assert len(senders) == edges
    A = graph.adjacency()
    assert abs(A - A.T).nnz == 0 and A.max() == 1
