"""Recorded results: the schema, the table, the verdicts."""

import json

import pytest
from typer.testing import CliRunner

from etlib import results
from etlib.cli import app
from etlib.errors import ResultError

cli = CliRunner()

PUBLISHED = {"metric": "accuracy", "value": 90.0, "source": "Table 2", "confidence": "V"}


def content(**changes):
    return {
        "schema_version": 1,
        "chapter": "energy",
        "experiment": "toy",
        "preset": "smoke",
        "seed": 0,
        "commit": "0123456789abcdef",
        "dirty": False,
        "versions": {"jax": "0.10.2"},
        "device": {"platform": "cpu", "kind": "cpu", "count": 1},
        "started": "2026-01-01T00:00:00Z",
        "ended": "2026-01-01T00:00:01Z",
        "duration_s": 1.0,
        "data": [],
        "config": {"seed": 0, "alpha": 0.1},
        "metrics": {"accuracy": 90.5},
        "protocol": "held out",
        "reference": [PUBLISHED],
    } | changes


def write(folder, name, **changes):
    (folder / name).write_text(json.dumps(content(**changes)))


def test_a_folder_without_results_says_so(tmp_path):
    for arguments in ([str(tmp_path)], [str(tmp_path), "--markdown"]):
        done = cli.invoke(app, ["results", *arguments])
        assert (done.exit_code, done.stdout.strip()) == (0, results.NOTHING)


def test_recorded_results_of_the_book_are_valid():
    assert cli.invoke(app, ["results"]).exit_code == 0


def test_valid_files_are_listed_and_loaded(tmp_path):
    write(tmp_path, "a.json")
    write(tmp_path, "b.json", experiment="other", metrics={"loss": [1.0, 2.0]}, reference=[])
    (tmp_path / "run.json").write_text("{}")
    done = cli.invoke(app, ["results", str(tmp_path)], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    assert "accuracy 90.5" in done.stdout
    assert "loss 1.5 ± 0.71 (of 2)" in done.stdout
    assert [r.experiment for r in results.load(folder=tmp_path)] == ["toy", "other"]
    assert [r.experiment for r in results.load("other", folder=tmp_path)] == ["other"]
    assert results.load(chapter="cost", folder=tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"metrics": {}}, "metrics"),
        ({"metrics": {"accuracy": "high"}}, "metrics.accuracy"),
        ({"metrics": {"accuracy": []}}, "metrics.accuracy"),
        ({"started": "yesterday"}, "started"),
        ({"experiment": "../up"}, "experiment"),
        ({"host": "machine"}, "host"),
        ({"reference": [PUBLISHED | {"confidence": "X"}]}, "reference.0.confidence"),
        ({"reference": [PUBLISHED | {"metric": "acuracy"}]}, "'acuracy', which is missing"),
        ({"reference": [PUBLISHED | {"value": None}]}, "needs a value or a text"),
    ],
)
def test_broken_schema_names_file_and_field(tmp_path, changes, field):
    write(tmp_path, "broken.json", **changes)
    done = cli.invoke(app, ["results", str(tmp_path)])
    assert done.exit_code == 2
    assert "broken.json" in done.stderr
    assert field in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_is_no_json_is_named(tmp_path):
    (tmp_path / "cut.json").write_text('{"chapter": ')
    with pytest.raises(ResultError, match=r"cut\.json: not JSON"):
        results.load(folder=tmp_path)


def test_missing_folder_is_named(tmp_path):
    done = cli.invoke(app, ["results", str(tmp_path / "nowhere")])
    assert done.exit_code == 2
    assert "no folder" in done.stderr


def test_same_experiment_config_and_seed_is_listed(tmp_path):
    write(tmp_path, "a.json")
    write(tmp_path, "b.json")
    write(tmp_path, "c.json", seed=1, config={"seed": 1, "alpha": 0.1})
    done = cli.invoke(app, ["results", str(tmp_path)])
    assert "same experiment, config and seed: a.json, b.json\n" in done.stdout


def test_folds_are_runs_of_one_setting(tmp_path):
    for fold in range(3):
        write(tmp_path, f"{fold}.json", config={"seed": 0, "first_fold": fold})
    assert "(3 runs)" in results.markdown(results.load(folder=tmp_path))
    assert "same experiment" not in cli.invoke(app, ["results", str(tmp_path)]).stdout


def test_markdown_takes_seeds_together(tmp_path):
    write(tmp_path, "a.json", metrics={"accuracy": 89.0})
    write(tmp_path, "b.json", metrics={"accuracy": 90.0}, seed=1, config={"seed": 1, "alpha": 0.1})
    write(tmp_path, "c.json", metrics={"accuracy": 1.0}, config={"seed": 0, "alpha": 9.0})
    table = results.markdown(results.load(folder=tmp_path))
    assert "| 90 (Table 2, V) | 89.5 ± 0.71 (2 runs) | held out | agrees | 0123456 |" in table
    assert "| 90 (Table 2, V) | 1 | held out | differs | 0123456 |" in table
    assert results.RULE in table


def test_markdown_without_a_published_number(tmp_path):
    write(tmp_path, "a.json", reference=[], dirty=True)
    table = results.markdown(results.load(folder=tmp_path))
    assert "published |" not in table
    row = "| accuracy 90.5 | held out | 0123456 + modified |"
    assert row in table


def test_markdown_tells_settings_apart_and_keeps_series_back(tmp_path):
    for i, depth in enumerate([4, 12]):
        metrics = {"accuracy": 90.0 + i, "curve": [1.0, 2.0]}
        config = {"seed": 0, "depth": depth, "width": 3}
        write(tmp_path, f"{i}.json", reference=[], config=config, metrics=metrics)
    table = results.markdown(results.load(folder=tmp_path))
    for depth, accuracy in [(4, 90), (12, 91)]:
        assert f", depth {depth} | accuracy {accuracy} |" in table
    assert "width" not in table
    assert "curve" not in table


@pytest.mark.parametrize(
    ("changes", "mean", "spread", "expected"),
    [
        ({}, 90.8, None, "agrees"),
        ({}, 91.0, None, "differs"),
        ({}, 91.0, 0.6, "agrees"),
        ({}, 91.0, 0.4, "differs"),
        ({"tolerance": 2.0}, 91.9, 0.0, "agrees"),
        ({"tolerance": 0.5, "direction": "higher"}, 91.0, None, "better"),
        ({"tolerance": 0.5, "direction": "lower"}, 91.0, None, "worse"),
        ({"tolerance": 0.5, "direction": "lower"}, 89.0, None, "better"),
        ({"value": None, "text": "not printed"}, 89.0, None, "no published number"),
    ],
)
def test_verdict(changes, mean, spread, expected):
    assert results.verdict(results.Reference(**PUBLISHED | changes), mean, spread) == expected
