"""What a chapter calls, in a live shell and under bare papermill."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell

from etlib import chapters, results, runs
from etlib.errors import DeviceError, ParameterError, ResultError
from tests import notebooks
from tests.notebooks import CONFIGURE, PARAMETERS, TOY


@pytest.fixture(autouse=True)
def toy(monkeypatch, tmp_path):
    """A registered toy chapter, an empty working directory, no run yet."""
    monkeypatch.setitem(chapters.CHAPTERS, "toy", TOY)
    monkeypatch.setattr(runs, "_run", None)
    monkeypatch.setattr(runs, "_folder", None)
    monkeypatch.delenv(runs.RUN_DIR, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def shell(monkeypatch):
    """Execute cells as a kernel does, in this process."""
    made = InteractiveShell()
    made.history_manager.enabled = False
    monkeypatch.setattr(runs, "_shell", lambda: made)
    monkeypatch.setattr("IPython.display.display", lambda table: None)

    def execute(source):
        return made.run_cell(source, store_history=True).raise_error()

    execute.variables = made.user_ns
    yield execute
    made.reset(new_session=False)
    made.history_manager.end_session()


def papermill(path, *arguments):
    """Run papermill's own command, which knows nothing of this project."""
    command = [sys.executable, "-m", "papermill", "--no-progress-bar", "-k", "python3"]
    done = subprocess.run(
        [*command, str(path), "out.ipynb", *arguments],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(notebooks.ROOT), "JAX_PLATFORMS": "cpu", "PATH": "/usr/bin:/bin"},
    )
    return done.returncode, done.stdout + done.stderr


def test_bare_papermill_misspelt_name_fails_before_computing(tmp_path):
    path = notebooks.write(tmp_path / "toy.ipynb", PARAMETERS, CONFIGURE, "print('computing')")
    status, log = papermill(path, "-p", "rtae", "0.2")
    assert status != 0
    assert "unknown parameter 'rtae' of chapter toy: did you mean 'rate'?" in log
    assert notebooks.printed(tmp_path / "out.ipynb") == ""


def test_bare_papermill_number_for_a_text_is_refused(tmp_path):
    path = notebooks.write(tmp_path / "toy.ipynb", PARAMETERS, CONFIGURE, "print('computing')")
    status, log = papermill(path, "-p", "folder", "1e5")
    assert status != 0
    assert "'folder' of chapter toy: got 100000.0, but it takes text" in log
    assert "-r folder VALUE" in log


def test_bare_papermill_text_is_converted(tmp_path):
    show = "print(p.smoke, p.sizes, p.folder, p.rate)"
    path = notebooks.write(tmp_path / "toy.ipynb", PARAMETERS, CONFIGURE, show)
    arguments = ["-p", "smoke", "false", "-p", "sizes", "[1,2]", "-r", "folder", "007"]
    status, log = papermill(path, *arguments, "-p", "preset", "smoke")
    assert status == 0, log
    assert notebooks.printed(tmp_path / "out.ipynb") == "False (1, 2) 007 0.5\n"


def test_bare_papermill_checks_the_device(tmp_path):
    configure = CONFIGURE.replace('"toy", g', '"energy", g')
    path = notebooks.write(tmp_path / "toy.ipynb", 'preset = "smoke"', configure, "print(1)")
    status, log = papermill(path, "-p", "device", "gpu")
    assert status != 0
    assert "device 'gpu' asked for, JAX sees 1 device (cpu: cpu)" in log
    assert notebooks.printed(tmp_path / "out.ipynb") == ""


def test_no_false_alarm_in_a_live_kernel(shell):
    shell(PARAMETERS)
    shell(CONFIGURE)
    shell("i = 3\nresult = {'a': 1}\nrtae = 'mine'\nname: str = 'x'")
    shell(CONFIGURE)
    shell(PARAMETERS.replace("rate = None", "rate = 0.7"))
    shell(CONFIGURE)
    assert shell.variables["p"].rate == 0.7


def test_misspelt_name_typed_into_the_parameters_cell(shell):
    shell(PARAMETERS.replace("rate", "rtae"))
    with pytest.raises(ParameterError, match="unknown parameter 'rtae'"):
        shell(CONFIGURE)
    shell(PARAMETERS)
    shell(CONFIGURE)  # corrected and run again


def test_misspelt_name_in_the_injected_cell(shell):
    shell(PARAMETERS)
    shell("# Parameters\nrtae = 0.3\n")
    with pytest.raises(ParameterError, match="unknown parameter 'rtae'"):
        shell(CONFIGURE)
    shell("# Parameters\nrate = 0.3\n")
    shell(CONFIGURE)
    assert shell.variables["p"].rate == 0.3


def test_a_plain_script_is_checked_too(monkeypatch):
    monkeypatch.setattr(runs, "_shell", lambda: None)
    assert runs.configure("toy", {"__name__": "x", "preset": "smoke", "np": np}).rate == 0.5
    with pytest.raises(ParameterError, match="unknown parameter 'rtae'"):
        runs.configure("toy", {"preset": "smoke", "rtae": 0.1})


def test_device_asked_for_is_checked(monkeypatch):
    monkeypatch.setattr(runs, "_shell", lambda: None)
    with pytest.raises(DeviceError, match="device 'gpu' asked for"):
        runs.configure("energy", {"preset": "smoke", "device": "gpu"})


def test_an_error_shows_as_one_line():
    assert ParameterError("wrong")._render_traceback_() == ["ParameterError: wrong"]


@pytest.fixture
def configured(monkeypatch):
    monkeypatch.setattr(runs, "_shell", lambda: None)
    runs.configure("toy", {"preset": "smoke", "seed": 3})


def test_table_says_who_chose_a_value(configured, capsys):
    _, parameters, overrides = runs.resolve("toy", TOY.presets, {"seed": 3})
    table = runs.Configuration("toy", "smoke", parameters, overrides)
    assert re.search(r"seed +3 +you", repr(table))
    assert re.search(r"rate +0.1 +preset", repr(table))
    assert "<caption>Chapter toy, preset smoke</caption>" in table._repr_html_()


def test_fingerprint_depends_on_shape_type_and_bytes(configured):
    array = np.arange(6.0)
    variants = [array, array.reshape(2, 3), array.astype("float32"), array + 1]
    found = {runs.data_fingerprint("toy", variant)["sha256"] for variant in variants}
    assert len(found) == 4
    assert runs.data_fingerprint("toy", array) == runs.data_fingerprint("toy", array.copy())
    assert len(runs.provenance().data) == 4, "the same data is named once"


def test_recorded_result_is_valid_and_complete(configured, tmp_path):
    data = runs.data_fingerprint("toy", np.arange(3))
    reference = {"metric": "loss", "value": 1.0, "source": "Table 1", "confidence": "V"}
    runs.record(
        "toy", {"loss": np.float32(0.5), "trace": np.arange(2)}, protocol="x", reference=reference
    )
    (path,) = tmp_path.glob("runs/toy-*/result-toy.json")
    (result,) = results.load(folder=path.parent)
    assert (result.chapter, result.preset, result.seed) == ("toy", "smoke", 3)
    assert result.metrics == {"loss": 0.5, "trace": [0.0, 1.0]}
    assert result.config["rate"] == 0.5
    assert [item.model_dump() for item in result.data] == [data]
    assert result.device.count == 2
    assert result.ended >= result.started


@pytest.mark.parametrize(
    ("given", "recorded"),
    [
        ("/home/someone/images", "images"),
        ("~/images/", "images"),
        ("imagefolder:/data/sample", "imagefolder:sample"),
        ("photos", "photos"),
        ("runs/mine", "runs/mine"),
    ],
)
def test_recorded_result_holds_no_folder_of_the_machine(configured, tmp_path, given, recorded):
    runs.configure("toy", {"preset": "smoke", "folder": given})
    runs.record("toy", {"loss": 0.5})
    (path,) = tmp_path.glob("runs/toy-*/result-toy.json")
    assert results.read(path).config["folder"] == recorded


def test_by_hand_a_repeated_record_opens_a_new_folder(configured, tmp_path):
    first, second = (runs.record("toy", {"loss": 1}) for _ in range(2))
    assert first != second
    assert len(list(tmp_path.glob("runs/*/result-toy.json"))) == 2


def test_the_folder_of_a_run_is_that_of_its_results(configured, tmp_path):
    with pytest.raises(ResultError, match="record first"):
        runs.folder()
    written = runs.record("toy", {"loss": 1})
    assert (runs.folder() / "result-toy.json").samefile(tmp_path / "runs" / written)


def test_in_a_run_nothing_is_overwritten(monkeypatch, tmp_path):
    monkeypatch.setattr(runs, "_shell", lambda: None)
    parameters = TOY.presets["book"]
    runs.RunRecord.begin("toy", "book", parameters, {}).save(tmp_path)
    monkeypatch.setenv(runs.RUN_DIR, str(tmp_path))
    runs.configure("toy", {})
    runs.record("toy", {"loss": 1})
    before = (tmp_path / "result-toy.json").read_bytes()
    with pytest.raises(ResultError, match="'toy' is already recorded"):
        runs.record("toy", {"loss": 2})
    assert (tmp_path / "result-toy.json").read_bytes() == before
    assert json.loads((tmp_path / "run.json").read_text())["device"]["platform"] == "cpu"


@pytest.mark.parametrize(
    ("experiment", "metrics", "field"),
    [
        ("toy", {"loss": float("nan")}, "metrics.loss"),
        ("toy", {}, "metrics"),
        ("to y", {"loss": 1}, "experiment: String should match"),
    ],
)
def test_record_names_what_breaks_the_schema(configured, tmp_path, experiment, metrics, field):
    with pytest.raises(ResultError, match=field):
        runs.record(experiment, metrics)
    assert not list(tmp_path.glob("runs/*/*"))


def test_nothing_is_recorded_before_configure():
    with pytest.raises(ResultError, match="no run: call"):
        runs.record("toy", {"loss": 1})


def test_panel_says_where_numbers_come_from(configured):
    runs.data_fingerprint("photograph", np.arange(3))
    panel = runs.provenance()
    for text in (repr(panel), panel._repr_html_()):
        for part in ("smoke", "seed = 3", "commit", "jax ", "2 × cpu", "photograph (sha256", " s"):
            assert part in text
