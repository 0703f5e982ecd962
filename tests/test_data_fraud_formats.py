"""Formats of anomaly sets: label forms, unlabelled nodes (A09), malformed files."""

from functools import partial

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from etlib.data import fraud_formats as formats
from etlib.data.nodegraph import UNLABELLED
from etlib.errors import DataError

RELATIONS = ("net_upu", "net_usu", "net_uvu")
amazon = partial(
    formats.multi_relation_mat, name="toy", relations=RELATIONS, n_unlabelled=5, about="made"
)


def multi_relation(n=20):
    """Trouble case A09: 5 unlabelled nodes with label 0, then 3 anomalies among 15."""
    rng = np.random.default_rng(0)
    relations = {}
    for kind in RELATIONS:
        a = np.triu(rng.random((n, n)) < 0.15, 1)
        relations[kind] = sp.csc_matrix((a | a.T).astype(float))
    label = np.zeros((1, n))
    label[0, [6, 9, 17]] = 1
    return {
        "features": sp.csc_matrix(rng.normal(size=(n, 4))),
        "label": label,
        "homo": sum(relations.values()),
        **relations,
    }


def attributed(n=6, **changes):
    a = np.zeros((n, n))
    a[0, 1] = a[1, 0] = a[2, 3] = 1
    label = np.zeros((n, 1), np.uint8)
    label[2] = 1
    made = {"Network": sp.csc_matrix(a), "Attributes": sp.csc_matrix(np.eye(n)), "Label": label}
    return made | changes


def edge_list(n=6, **changes):
    made = {
        "x": np.eye(n, dtype=np.float32),
        "edge_index": np.array([[0, 1, 2], [1, 0, 3]]),
        "y": np.array([0, 0, 1, 0, 0, 0]),
    }
    return made | changes


def save(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    (scipy.io.savemat if path.suffix == ".mat" else lambda p, c: np.savez(p, **c))(path, content)
    return path


# --- formats ------------------------------------------------------------------


def test_several_relations_and_unlabelled_nodes(tmp_path):
    content = multi_relation()
    graph = amazon(save(tmp_path / "a.mat", content))
    assert graph.n_nodes == 20 and graph.x.dtype == np.float32
    assert (graph.labels[:5] == UNLABELLED).all() and (graph.labels == 1).sum() == 3
    np.testing.assert_array_equal(graph.labelled, np.arange(5, 20))
    np.testing.assert_array_equal(graph.adjacency().toarray(), content["homo"].toarray() > 0)
    assert tuple(graph.relations) == RELATIONS
    for kind, edges in graph.relations.items():
        np.testing.assert_array_equal(np.sort(edges), np.sort(content[kind].nonzero()))
    # Edges of unlabelled nodes stay.
    assert graph.degrees[:5].sum() > 0


def test_all_formats_give_the_same_graph(tmp_path):
    mat = formats.attributed_mat(save(tmp_path / "a.mat", attributed()), "toy")
    npz = formats.edge_list_npz(save(tmp_path / "a.npz", edge_list()), "toy")
    once = {"node_features": npz.x, "node_labels": npz.labels, "edges": np.array([[1, 0], [2, 3]])}
    tolokers = formats.heterophilous_npz(save(tmp_path / "b.npz", once), "toy")
    for graph in (npz, tolokers):
        for a, b in zip(mat[:4], graph[:4], strict=True):
            np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(mat.edges, [[1, 0, 3, 2], [0, 1, 2, 3]])


LABELS = np.array([0, 0, 1, 0, -1, 0])


@pytest.mark.parametrize(
    "form",
    [
        LABELS[None],
        LABELS[:, None],
        LABELS.astype(float)[None],
        LABELS.astype(np.int8)[:, None],
        sp.csc_matrix(LABELS[:, None].astype(float)),
    ],
)
def test_label_forms(tmp_path, form):
    graph = formats.attributed_mat(save(tmp_path / "a.mat", attributed(Label=form)), "toy")
    assert graph.labels.dtype == np.int8 and graph.labels.tolist() == LABELS.tolist()


def test_one_hot_labels_and_truth_values(tmp_path):
    one_hot = np.eye(2)[np.maximum(LABELS, 0)]
    graph = formats.attributed_mat(save(tmp_path / "a.mat", attributed(Label=one_hot)), "toy")
    assert graph.labels.tolist() == [0, 0, 1, 0, 0, 0]
    truth = formats.edge_list_npz(save(tmp_path / "b.npz", edge_list(y=LABELS == 1)), "toy")
    assert truth.labels.tolist() == graph.labels.tolist()


def test_kinds_of_injected_anomalies_are_anomalies(tmp_path):
    path = save(tmp_path / "a.npz", edge_list(y=np.array([0, 3, 1, 0, 2, 0])))
    assert formats.edge_list_npz(path, "toy", kinds=True).labels.tolist() == [0, 1, 1, 0, 1, 0]
    with pytest.raises(DataError, match=r"y holds \[0, 1, 2, 3\]; expected 0 \(normal\)"):
        formats.edge_list_npz(path, "toy")


def test_weights_count_as_edges_and_stored_zeros_do_not(tmp_path):
    stored = sp.csc_matrix((np.array([0.0, 2.5]), ([0, 4], [1, 5])), shape=(6, 6))
    graph = formats.attributed_mat(save(tmp_path / "a.mat", attributed(Network=stored)), "toy")
    np.testing.assert_array_equal(graph.edges, [[5, 4], [4, 5]])


# --- malformed files ----------------------------------------------------------

NAN = np.eye(6)
NAN[3, 3] = np.nan


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"Attributes": NAN}, "1 of 6 nodes have features that are not finite"),
        ({"Attributes": np.eye(6) * 1e300}, "not finite"),
        ({"Attributes": np.eye(5)}, r"Label has shape \(6, 1\), but there are 5 nodes"),
        ({"Attributes": np.eye(6) * 1j}, "Attributes holds complex128, not real"),
        ({"Attributes": "words"}, "Attributes holds <U5, not real"),
        ({"Attributes": {"a": 1.0}}, "Attributes holds .*, not real"),
        ({"Attributes": np.zeros((6, 0))}, r"Attributes has shape \(6, 0\)"),
        ({"Network": np.eye(4)}, r"Network has shape \(4, 4\).* expected \(6, 6\)"),
        ({"Network": np.ones((6, 5))}, r"Network has shape \(6, 5\)"),
        ({"Network": NAN}, "Network holds entries that are not finite"),
        ({"Label": np.full((6, 1), 0.5)}, "Label holds numbers that are not whole"),
        ({"Label": np.full((6, 1), np.nan)}, "Label holds numbers that are not whole"),
        ({"Label": np.arange(6)}, r"Label holds \[0, 1, 2, 3, 4, 5\]"),
        ({"Label": np.ones((6, 2))}, r"Label has shape \(6, 2\)"),
        ({"Label": np.ones((2, 3))}, r"Label has shape \(2, 3\)"),
    ],
)
def test_contents_that_are_wrong(tmp_path, changes, said):
    path = save(tmp_path / "a.mat", attributed(**changes))
    with pytest.raises(DataError, match=said) as caught:
        formats.attributed_mat(path, "toy")
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"edge_index": np.array([[0], [6]])}, "edges name nodes 0 to 6, but there are 6 nodes"),
        ({"edge_index": np.array([[0], [-1]])}, "edges name nodes -1 to 0"),
        ({"edge_index": np.zeros((3, 4), int)}, r"edge_index has shape \(3, 4\)"),
        ({"edge_index": np.array([0, 1])}, r"edge_index has shape \(2,\)"),
        ({"edge_index": np.array([[0.5], [1]])}, "edge_index holds numbers that are not whole"),
        ({"y": np.zeros(7, int)}, r"y has shape \(7,\), but there are 6 nodes"),
        ({"x": np.zeros(6)}, r"x has shape \(6,\)"),
        ({"x": np.full((6, 1), np.inf)}, "6 of 6 nodes"),
        ({"x": np.array([[None]] * 6)}, "a pickle"),
    ],
)
def test_edge_lists_that_are_wrong(tmp_path, changes, said):
    path = save(tmp_path / "a.npz", edge_list(**changes))
    with pytest.raises(DataError, match=said):
        formats.edge_list_npz(path, "toy")


READERS = {
    ".mat": lambda path: formats.attributed_mat(path, "toy"),
    ".npz": lambda path: formats.edge_list_npz(path, "toy"),
}


@pytest.mark.parametrize("suffix", READERS)
@pytest.mark.parametrize(
    "content, said",
    [
        (b"", "is empty"),
        (b"<!DOCTYPE html><html>404</html>", "a web page"),
        (b"\n  <html>404</html>", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS pointer"),
        (b"node,feature\n1,2\n" * 50, "no readable"),
        (bytes(range(256)) * 4, "no readable"),
        (b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00.", "no readable|pickle"),
    ],
)
def test_files_of_another_kind(tmp_path, suffix, content, said):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(content)
    with pytest.raises(DataError, match=said):
        READERS[suffix](path)


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("suffix", READERS)
def test_cut_files(tmp_path, suffix, share):
    content = attributed() if suffix == ".mat" else edge_list()
    path = save(tmp_path / f"a{suffix}", content)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(DataError, match=r"no readable|lacks|is empty"):
        READERS[suffix](path)


def test_a_matlab_7_3_file(tmp_path):
    header = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM"
    (tmp_path / "a.mat").write_bytes(header + b"\x89HDF\r\n\x1a\n" + bytes(200))
    with pytest.raises(DataError, match=r"MATLAB 7\.3 .* -v7"):
        formats.attributed_mat(tmp_path / "a.mat", "toy")


def test_a_missing_relation_or_key(tmp_path):
    content = multi_relation()
    del content["net_usu"]
    with pytest.raises(DataError, match=r"lacks net_usu; it holds features, .*net_uvu"):
        amazon(save(tmp_path / "a.mat", content))
    with pytest.raises(DataError, match="lacks features, label, homo, net_upu"):
        amazon(save(tmp_path / "b.mat", attributed()))
    with pytest.raises(DataError, match="lacks edge_index; it holds x, y"):
        content = {k: v for k, v in edge_list().items() if k != "edge_index"}
        formats.edge_list_npz(save(tmp_path / "c.npz", content), "toy")


def test_fewer_nodes_than_unlabelled_ones(tmp_path):
    with pytest.raises(DataError, match="4 nodes, of which the first 5 would be unlabelled"):
        amazon(
            save(
                tmp_path / "a.mat",
                multi_relation(20)
                | {
                    **{
                        k: v[:4, :4]
                        for k, v in multi_relation().items()
                        if k.startswith(("net", "homo"))
                    },
                    "features": np.eye(4),
                    "label": np.array([[0, 1, 0, 1]]),
                },
            )
        )


def test_one_array_where_an_archive_belongs(tmp_path):
    np.save(tmp_path / "a.npy", np.eye(3))
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    with pytest.raises(
        DataError, match=r"holds one array; expected an \.npz with x, edge_index, y"
    ):
        formats.edge_list_npz(tmp_path / "a.npz", "toy")
