"""Parameters: every type from text and from values, and one line for every mistake."""

import math

import pytest

from etlib import chapters
from etlib.errors import ParameterError
from etlib.parameters import resolve
from tests.notebooks import PRESETS, Parameters


def value(name, given):
    return getattr(resolve("toy", PRESETS, {name: given})[1], name)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("smoke", "false", False),
        ("smoke", "False", False),
        ("smoke", "true", True),
        ("sizes", "[1,2]", (1, 2)),
        ("sizes", [1, 2], (1, 2)),
        ("sizes", "[]", ()),
        ("rate", "1e-3", 1e-3),
        ("rate", "2", 2.0),
        ("rate", 2, 2.0),
        ("seed", "007", 7),
        ("folder", "007", "007"),
        ("folder", "1e5", "1e5"),
        ("folder", "false", "false"),
        ("folder", "[1,2]", "[1,2]"),
        ("limit", "inf", math.inf),
        ("beta", "None", None),
        ("beta", "0.5", 0.5),
        ("rate", None, 0.1),
    ],
)
def test_value_is_read_as_its_field_declares(name, given, expected):
    found = value(name, given)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("smoke", "flase", "got 'flase', but it takes true or false"),
        ("smoke", "1", "got '1', but it takes true or false"),
        ("seed", True, "got True, but it takes a whole number >= 0"),
        ("seed", "true", "got 'true', but it takes a whole number >= 0"),
        ("seed", "1.5", "got '1.5', but it takes a whole number >= 0"),
        ("seed", -1, "got -1, but it takes a whole number >= 0"),
        ("rate", True, "got True, but it takes a finite number > 0 and <= 10"),
        ("rate", "nan", "got 'nan', but it takes a finite number > 0 and <= 10"),
        ("rate", math.inf, "got inf, but it takes a finite number > 0 and <= 10"),
        ("beta", "0", "got '0', but it takes a finite number > 0 or None"),
        ("sizes", "1,x", "got '1,x', but it takes a list such as [1, 2]"),
        ("sizes", "[1,true]", "got '[1,true]', but it takes a list such as [1, 2]"),
        ("mode", "fats", "got 'fats', but it takes one of fast, slow"),
        ("folder", 7, "got 7, but it takes text (bare papermill turns text into numbers: "),
    ],
)
def test_mistake_is_one_line_with_name_value_and_what_is_accepted(name, given, message):
    with pytest.raises(ParameterError) as error:
        value(name, given)
    assert f"parameter {name!r} of chapter toy: {message}" in str(error.value)
    assert "\n" not in str(error.value)


def test_unknown_name_suggests_the_nearest_and_lists_all():
    with pytest.raises(ParameterError) as error:
        resolve("toy", PRESETS, {"rtae": 1})
    assert "unknown parameter 'rtae' of chapter toy: did you mean 'rate'?" in str(error.value)
    assert all(name in str(error.value) for name in ["preset", *Parameters.model_fields])


def test_unknown_preset_suggests_the_nearest():
    with pytest.raises(ParameterError, match="unknown preset 'smok': did you mean 'smoke'"):
        resolve("toy", PRESETS, {"preset": "smok"})


def test_overrides_stand_on_their_preset():
    preset, parameters, overrides = resolve("toy", PRESETS, {"preset": "smoke", "seed": "3"})
    assert (preset, parameters.rate, parameters.seed) == ("smoke", 0.5, 3)
    assert overrides == {"seed": 3}
    with pytest.raises(ValueError, match="frozen"):
        parameters.seed = 4


@pytest.mark.parametrize("name", list(chapters.CHAPTERS))
def test_every_chapter_has_three_presets_and_describes_its_parameters(name):
    chapter = chapters.get(name)
    assert list(chapter.presets) == ["smoke", "book", "paper"]
    model = type(chapter.presets["book"])
    assert chapter.presets["book"] == model(), "the defaults are the book's"
    assert all(field.description for field in model.model_fields.values())


def test_energy_refuses_patches_that_fill_no_square():
    with pytest.raises(ParameterError, match=r"'n_tokens'.*got '10'.*perfect square: 9 or 16"):
        resolve("energy", chapters.get("energy").presets, {"n_tokens": "10"})


def test_memories_refuse_what_a_model_that_is_read_would_ignore():
    presets = chapters.get("memories").presets
    with pytest.raises(ParameterError, match=r"train_steps, patch would .*add weights=train"):
        resolve("memories", presets, {"train_steps": 20, "patch": 4})
    with pytest.raises(ParameterError, match=r"peak_lr .*weights is 'released'"):
        resolve("memories", presets, {"preset": "paper", "peak_lr": 1e-3})
    for others in ({"weights": "train"}, {"sweep_steps": 10}, {"preset": "smoke"}):
        assert resolve("memories", presets, {"train_steps": 20, **others})[1].train_steps == 20
    assert resolve("memories", presets, {"n_steps": 20, "alpha": 0.05})[1].weights == "kept"
