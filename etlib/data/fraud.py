"""Node-anomaly sets by name: where each lies, how it is read, what it is, where to get it.

A set is one file, `fraud/NAME/FILE` under the data root (`etlib.data.root`), which may be
read-only. Two need no file: `wdbc` and `synthetic`.
"""

import tempfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pooch

from etlib.data import fraud_formats as formats
from etlib.data.nodegraph import NodeGraph
from etlib.data.root import data_root, default_root, missing
from etlib.data.synthetic_fraud import generate
from etlib.data.wdbc import wdbc
from etlib.errors import DataError

Reader = Callable[..., NodeGraph]


class Source(NamedTuple):
    """A set's file, what is known of it, how to get it, and where it can be fetched as it is."""

    file: str
    read: Reader
    n_nodes: int
    n_anomalies: int | None  # where the exact number is published
    about: str
    get: str
    url: str = ""


_CARE_GNN = (
    "Dou et al., Enhancing Graph Neural Network-based Fraud Detectors against Camouflaged "
    "Fraudsters, CIKM 2020"
)
_BWGNN = "Tang et al., Rethinking Graph Neural Networks for Anomaly Detection, ICML 2022"
_BWGNN_DRIVE = "https://drive.google.com/drive/folders/1PpNwvZx_YRSCDiHaBUmRIS3x1rZR7fMr"
_BOND = "Liu et al., BOND, NeurIPS 2022"
_PYGOD = "https://github.com/pygod-team/data"
_TAM = "https://github.com/mala-lab/TAM-master"
_ARC = "https://github.com/yixinliu233/ARC"
_TOLOKERS = "https://github.com/yandex-research/heterophilous-graphs/raw/main/data/tolokers.npz"
_UNLABELLED_AMAZON = 3305


def _from_bwgnn(file: str) -> str:
    return (
        f"Get it as a DGL graph from {_BWGNN_DRIVE} and convert it once: "
        f"tools/dgl_to_npz.py says how; the result is {file}."
    )


def _from_pygod(name: str) -> str:
    return f"Get {name}.pt.zip from {_PYGOD} and convert it once with tools/pygod_to_npz.py."


SOURCES: dict[str, Source] = {
    "yelp": Source(
        "YelpChi.mat",
        partial(formats.multi_relation_mat, relations=("net_rur", "net_rtr", "net_rsr")),
        45_954,
        6_677,
        "Reviews of hotels and restaurants in Chicago; anomalies are those that Yelp filtered as "
        "spam. Joined: reviews of one user (R-U-R), of one product in one month (R-T-R), and of "
        f"one product with equal stars (R-S-R). 32 handcrafted features. {_CARE_GNN}.",
        "It is YelpChi.mat in https://data.dgl.ai/dataset/FraudYelp.zip; or pass download=true.",
        "https://data.dgl.ai/dataset/FraudYelp.zip",
    ),
    "amazon": Source(
        "Amazon.mat",
        partial(
            formats.multi_relation_mat,
            relations=("net_upu", "net_usu", "net_uvu"),
            n_unlabelled=_UNLABELLED_AMAZON,
        ),
        11_944,
        821,
        "Users who review musical instruments; an anomaly is a user with less than 20 % helpful "
        "votes, a normal one has more than 80 %. The first 3,305 nodes are unlabelled. Joined: "
        "users of one product (U-P-U), of one star rating in one week (U-S-U), of similar texts "
        "(U-V-U). 25 handcrafted features, some made of the votes that make the label. "
        f"{_CARE_GNN}.",
        "It is Amazon.mat in https://data.dgl.ai/dataset/FraudAmazon.zip; or pass download=true.",
        "https://data.dgl.ai/dataset/FraudAmazon.zip",
    ),
    "tfinance": Source(
        "tfinance.npz",
        formats.edge_list_npz,
        39_357,
        None,
        f"Accounts joined by transactions; anomalies are fraud, money laundering and gambling "
        f"accounts, annotated by experts. 10 features. {_BWGNN}.",
        _from_bwgnn("tfinance.npz"),
    ),
    "tsocial": Source(
        "tsocial.npz",
        formats.edge_list_npz,
        5_781_065,
        None,
        f"Accounts joined by friendships of more than three months; annotated as T-Finance is. "
        f"10 features. {_BWGNN}.",
        _from_bwgnn("tsocial.npz"),
    ),
    "amazon_upu": Source(
        "Amazon.mat",
        formats.attributed_mat,
        10_224,
        693,
        "The Amazon set cut to the relation U-P-U and to users with such an edge. The nodes that "
        "the full set calls unlabelled carry label 0 here and cannot be told apart. Some of the "
        "25 features are made of the votes that make the label. "
        f"{_CARE_GNN}; the cut is that of Qiao & Pang, TAM, NeurIPS 2023.",
        f"It is Amazon.mat of the data that {_TAM} shares.",
    ),
    "tolokers": Source(
        "raw/tolokers.npz",
        formats.heterophilous_npz,
        11_758,
        2_566,
        "Workers of the Toloka platform, joined when they worked on the same task; anomalies were "
        "banned from a project. 10 features from profiles and statistics. Likhobaba et al. 2023; "
        "Platonov et al., A critical look at the evaluation of GNNs under heterophily, ICLR 2023.",
        f"Put {_TOLOKERS} there; or pass download=true.",
        _TOLOKERS,
    ),
    "reddit": Source(
        "reddit.npz",
        formats.edge_list_npz,
        10_984,
        366,
        "Users and the forums they post in; anomalies are users who were banned. 64 features made "
        f"of texts. Kumar et al. 2019; {_BOND}.",
        _from_pygod("reddit"),
    ),
    "facebook": Source(
        "Facebook.mat",
        formats.attributed_mat,
        1_081,
        25,
        "Friendships of ego networks (McAuley & Leskovec 2012), with the anomaly labels used by "
        "Qiao & Pang, TAM, NeurIPS 2023. Whether the labels were annotated or injected is not "
        "known to us.",
        f"It is Facebook.mat of the data that {_TAM} shares.",
    ),
    "books": Source(
        "books.npz",
        formats.edge_list_npz,
        1_418,
        28,
        "Books bought together; anomalies were tagged 'amazonfail' by users. 21 features. "
        f"Sánchez et al. 2013; {_BOND}.",
        _from_pygod("books"),
    ),
    "enron": Source(
        "enron.npz",
        formats.edge_list_npz,
        13_533,
        5,
        "Mail addresses joined by messages; anomalies are spammers. 18 features of the mails. "
        f"Müller et al. 2013; {_BOND}.",
        _from_pygod("enron"),
    ),
    "disney": Source(
        "disney.npz",
        formats.edge_list_npz,
        124,
        6,
        "Films of one company bought together; anomalies by the vote of high-school students. 28 "
        f"features. Sánchez et al. 2013; {_BOND}.",
        _from_pygod("disney"),
    ),
    "cora_injected": Source(
        "cora.mat",
        formats.attributed_mat,
        2_708,
        150,
        "Cora's citations and words with 75 structural and 75 attribute anomalies injected, as in "
        "Liu et al., CoLA, TNNLS 2021; in the form of Liu et al., ARC, NeurIPS 2024.",
        f"It is cora.mat of the data that {_ARC} shares.",
    ),
    "citeseer_injected": Source(
        "citeseer.mat",
        formats.attributed_mat,
        3_327,
        150,
        "CiteSeer's citations and words with 75 structural and 75 attribute anomalies injected, "
        "as in Liu et al., CoLA, TNNLS 2021; in the form of Liu et al., ARC, NeurIPS 2024.",
        f"It is citeseer.mat of the data that {_ARC} shares.",
    ),
    "inj_cora": Source(
        "inj_cora.npz",
        partial(formats.edge_list_npz, kinds=True),
        2_708,
        138,
        f"Cora's citations and words with contextual and structural anomalies injected. {_BOND}.",
        _from_pygod("inj_cora"),
    ),
    "inj_amazon": Source(
        "inj_amazon.npz",
        partial(formats.edge_list_npz, kinds=True),
        13_752,
        694,
        "Computers that are bought together on Amazon (Shchur et al. 2018), with contextual and "
        f"structural anomalies injected. {_BOND}.",
        _from_pygod("inj_amazon"),
    ),
}

MADE: dict[str, Callable[[], NodeGraph]] = {"wdbc": wdbc, "synthetic": generate}

NAMES = (*MADE, *SOURCES)


def load(name: str, *, download: bool = False) -> NodeGraph:
    """The set of this name. `download` fetches a file that is not there, where it can be had.

    Raises DataError for an unknown name, and for a file that is not there, cannot be read, or is
    not the published set.
    """
    if name in MADE:
        return MADE[name]()
    if name not in SOURCES:
        raise DataError(f"there is no set {name!r}; there are {', '.join(NAMES)}")
    source = SOURCES[name]
    path = _locate(name, source, download)
    graph = source.read(path, name, about=source.about)
    found = graph.n_nodes, int((graph.labels == 1).sum())
    wanted = source.n_nodes, found[1] if source.n_anomalies is None else source.n_anomalies
    if found != wanted:
        raise DataError(
            f"{path} is not the published set {name}: it has {found[0]} nodes and {found[1]} "
            f"anomalies instead of {wanted[0]} and {wanted[1]}"
        )
    return graph


def _locate(name: str, source: Source, download: bool) -> Path:
    places = [root / "fraud" / name / source.file for root in (data_root(), default_root())]
    for place in places:
        if place.is_file():
            return place
    if download and source.url:
        return _download(source, places[-1])
    raise missing(name, places[0], source.get)


def _download(source: Source, place: Path) -> Path:
    """Fetch a file, or the archive that holds it, and put it in place when it is whole."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
        try:
            # No checksum is published; `load` looks at the content.
            fetched = Path(pooch.retrieve(source.url, known_hash=None, path=scratch))
            if source.url.endswith(".zip"):
                with zipfile.ZipFile(fetched) as archive:
                    fetched = Path(archive.extract(place.name, scratch))
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise DataError(f"{place.name} could not be had from {source.url}: {error}") from None
        fetched.rename(place)
    return place
