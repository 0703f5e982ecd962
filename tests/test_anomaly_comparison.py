"""The detectors of chapter 5 on one task, the energy of a node, and the recorded runs."""

import jax
import numpy as np
import pytest

from etlib import anomaly_comparison as ac
from etlib import results
from etlib.anomaly import NodeTrace
from etlib.chapters import anomaly_detection_sweep as sweep
from etlib.chapters.anomaly_detection import MODELS, PRESETS
from etlib.data.wdbc import wdbc
from etlib.detection import split
from etlib.errors import DataError
from etlib.parameters import resolve

SMALL = PRESETS["smoke"].model_copy(
    update={"dataset": "wdbc", "seeds": (0,), "n_steps": 2, "epochs": 30}
)


@pytest.fixture(scope="module")
def tumours():
    return wdbc()


@pytest.fixture(scope="module")
def found(tumours):
    return ac.detect("et", tumours, SMALL, seed=0)


def test_an_energy_transformer_finds_tumours(tumours, found):
    assert found.test.auc > 0.9 and 1 <= found.epoch <= 30
    assert found.scores.shape == (tumours.n_nodes,)


@pytest.mark.parametrize("name", MODELS[1:])
def test_every_model_runs_on_the_same_split(tumours, name):
    """The metrics are those of the split's test nodes, whichever model it is."""
    made = ac.detect(name, tumours, SMALL, seed=0)
    test = split(tumours.labels, SMALL.train_ratio, 0).test
    from sklearn.metrics import average_precision_score

    expected = average_precision_score(tumours.labels[test], made.scores[test])
    assert made.test.average_precision == pytest.approx(expected)
    assert made.model is None and made.seconds > 0


def test_the_trace_is_the_models_own_descent(tumours, found):
    steps = ac.trace(found.model, tumours)
    assert isinstance(steps, NodeTrace) and steps.energy.shape == (3, tumours.n_nodes)
    logits = found.model.read(steps.tokens[0], steps.tokens[-1])
    np.testing.assert_allclose(jax.nn.sigmoid(logits), found.scores, atol=1e-5)


def test_a_longer_descent_begins_as_the_short_one(tumours, found):
    short, longer = ac.trace(found.model, tumours), ac.trace(found.model, tumours, n_steps=4)
    assert longer.energy.shape[0] == 5 and found.model.config.block.n_steps == 2
    np.testing.assert_allclose(longer.energy[:3], short.energy, rtol=1e-5)


def test_energy_areas_are_those_of_the_last_energy(tumours, found):
    from sklearn.metrics import roc_auc_score

    nodes = np.arange(200, tumours.n_nodes)
    areas = ac.energy_areas(found.model, tumours, nodes)
    last = np.asarray(ac.trace(found.model, tumours).energy[-1])
    assert areas["energy"] == pytest.approx(roc_auc_score(tumours.labels[nodes], last[nodes]))
    assert set(areas) == {"energy", "attention", "hopfield"}


def test_parameters_that_make_no_sense_are_refused_at_once():
    for given, said in [
        ({"models": ["et", "gnc"]}, "no model 'gnc': did you mean 'gcn'"),
        ({"seeds": []}, "seeds and models name at least one"),
        ({"dataset": "yelpchi"}, "it takes one of wdbc, synthetic, yelp"),
        ({"train_ratio": 1.0}, "train_ratio"),
    ]:
        with pytest.raises(ValueError, match=said):
            resolve("anomaly-detection", PRESETS, given)


def test_a_missing_set_is_said_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("pooch.os_cache", lambda name: str(tmp_path / "home"))
    monkeypatch.setenv("ETLIB_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"the data set yelp is not in .*YelpChi\.mat.*https"):
        ac.load(PRESETS["book"].model_copy(update={"dataset": "yelp"}))


# --- recorded runs ------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch):
    """The sweep on tumours with two models and one seed; counts what it computes."""
    calls = []
    monkeypatch.setitem(PRESETS, "book", SMALL.model_copy(update={"seeds": (0, 1)}))
    monkeypatch.setattr(sweep, "RATIOS", {"wdbc": (0.4,)})
    monkeypatch.setattr(sweep, "MODELS", ("et", "logistic"))
    detect = ac.detect
    monkeypatch.setattr(sweep, "detect", lambda *a: calls.append(a) or detect(*a))
    return calls


def test_a_stopped_sweep_goes_on(tmp_path, quick):
    sweep.main(folder=tmp_path)
    names = [path.name for path in results.files(tmp_path)]
    stem = "05-anomaly-detection-wdbc-"
    assert names == [f"{stem}{what}.json" for what in ("card", "train0.4-et", "train0.4-logistic")]
    assert len(quick) == 4
    recorded = {r.experiment: r for r in results.load(folder=tmp_path)}
    et = recorded["wdbc-train0.4-et"]
    assert len(et.metrics["auc"]) == 2 and "untrained_energy_auc" in et.metrics
    assert et.config["train_ratio"] == 0.4 and et.data[0].name == "wdbc"
    assert recorded["wdbc-card"].metrics["anomalies"] == 36

    (tmp_path / names[2]).unlink()
    sweep.main(folder=tmp_path)
    assert [path.name for path in results.files(tmp_path)] == names and len(quick) == 6
