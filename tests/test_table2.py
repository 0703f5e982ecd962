"""The table of published and recorded accuracies."""

import pytest

from etlib import table2
from etlib.results import Result
from etlib.table2 import Ours, ours, verdict


def record(dataset="MUTAG", protocol="cross-validation", model="et", fold=0, **changed):
    given = {"epochs": 300, "accuracy": 80.0} | changed
    return Result(
        schema_version=1,
        chapter="graph-classification",
        preset="paper",
        seed=0,
        commit="0" * 40,
        dirty=False,
        versions={},
        device={"platform": "cpu", "kind": "cpu", "count": 1},
        started="2026-01-01T00:00:00Z",
        ended="2026-01-01T00:00:01Z",
        duration_s=1.0,
        data=[],
        experiment=f"{dataset.lower()}-{protocol}-{model}",
        config={"epochs": given["epochs"], "first_fold": fold},
        metrics={"accuracy": given["accuracy"], "majority": 66.5},
    )


def test_folds_are_averaged_whatever_their_order():
    found = ours(
        [record(fold=2, accuracy=90.0), record(fold=0, accuracy=80.0), record(model="gin")],
        "MUTAG",
        "cross-validation",
        "et",
    )
    assert found == Ours((80.0, 90.0), 300, 10)
    assert str(found) == "85.0 ± 7.1 (2 of 10 folds, 300 epochs)"


def test_of_several_lengths_the_one_with_most_folds_counts():
    short = [record(fold=i, epochs=30) for i in range(3)]
    long = [record(fold=i, epochs=300) for i in range(2)]
    assert ours(short + long, "MUTAG", "cross-validation", "et").epochs == 30
    assert ours(short[:2] + long, "MUTAG", "cross-validation", "et").epochs == 300


def test_nothing_recorded_is_a_dash():
    assert ours([], "MUTAG", "resubstitution", "et") is None
    line = next(line for line in table2.markdown([]).splitlines() if "MUTAG" in line)
    assert line == "| MUTAG | 96.6 ± 0.2 | 96.60 ± 0.23 | — | — | — | — | — |"


@pytest.mark.parametrize(
    ("fitted", "held_out", "said"),
    [
        (97.0, 88.0, "resubstitution +0.4, cross-validation -8.6: near resubstitution"),
        (100.0, 88.0, "resubstitution +3.4, cross-validation -8.6: between the two"),
        (97.0, 96.0, "resubstitution +0.4, cross-validation -0.6: near both"),
        (100.0, 95.0, "resubstitution +3.4, cross-validation -1.6: near cross-validation"),
        (90.0, 80.0, "resubstitution -6.6, cross-validation -16.6: near neither"),
    ],
)
def test_verdict(fitted, held_out, said):
    assert verdict(96.6, Ours((fitted,), 300, 1), Ours((held_out,), 300, 10)) == said


def test_a_row_with_everything():
    results = [
        record(protocol="resubstitution", accuracy=100.0),
        record(accuracy=88.0),
        record(model="gin", accuracy=87.0),
    ]
    line = next(line for line in table2.markdown(results).splitlines() if "MUTAG" in line)
    assert "| 100.0 (300 epochs) | 88.0 (1 of 10 folds, 300 epochs) |" in line
    assert "| 66.5 | resubstitution +3.4, cross-validation -8.6: between the two |" in line


def test_table_2_is_the_notebook_cut_to_one_decimal():
    """Every printed accuracy is the released notebook's number, truncated and not rounded."""
    for row in table2.TABLE2.values():
        assert int(row.notebook * 10) == round(row.accuracy * 10)
