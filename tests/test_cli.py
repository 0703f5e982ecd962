"""The front door: refused before anything runs, executed in a new folder, recorded."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from etlib import chapters, launch
from etlib.cli import app
from tests import notebooks
from tests.notebooks import CONFIGURE, PARAMETERS, ROOT, TOY

cli = CliRunner()

LATE_FLAG = """\
import os, jax
jax.devices()
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
"""
WHICH_PYTHON = "import sys\nprint(sys.executable)"


@pytest.fixture(autouse=True)
def toy(monkeypatch, tmp_path):
    """A registered toy chapter, and kernels that find it; an empty working directory."""
    monkeypatch.setitem(chapters.CHAPTERS, "toy", TOY)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)


def refused(*arguments):
    """Run a command that must end with one line on stderr, and return the line."""
    done = cli.invoke(app, ["run", *map(str, arguments)])
    assert done.exit_code == 2, done.output
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    return done.stderr


def run_json(folder):
    return json.loads((folder / "run.json").read_text())


@pytest.fixture
def chapter(tmp_path):
    return notebooks.write(tmp_path / "toy.ipynb", PARAMETERS, CONFIGURE)


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["rtae=0.1"], "unknown parameter 'rtae' of chapter toy: did you mean 'rate'?"),
        (["smoke=maybe"], "'smoke' of chapter toy: got 'maybe', but it takes true or false"),
        (["sizes=1,x"], "'sizes' of chapter toy: got '1,x', but it takes a list such as [1, 2]"),
        (["preset=smok"], "unknown preset 'smok': did you mean 'smoke'?"),
        (["rate"], "-p takes name=value, got 'rate'"),
        (["rate=1", "rate=2"], "parameter 'rate' is given twice"),
    ],
)
def test_wrong_parameters_are_refused(chapter, tmp_path, assignments, message):
    arguments = [word for text in assignments for word in ("-p", text)]
    assert message in refused(chapter, *arguments)
    assert not (tmp_path / "runs").exists(), "nothing was begun"


@pytest.mark.parametrize("tagged", [None, 1])
def test_without_the_tag_on_the_first_cell_nothing_runs(tmp_path, tagged):
    path = notebooks.write(tmp_path / "toy.ipynb", PARAMETERS, CONFIGURE, tagged=tagged)
    line = refused(path, "-p", "rate=5")
    assert "must be tagged 'parameters'" in line
    assert ", ".join(TOY.parameter_names) in line


@pytest.mark.parametrize("form", ["same file", "same folder", "file in the way", "notebook name"])
def test_output_never_replaces_anything(chapter, tmp_path, form):
    before = chapter.read_bytes()
    (tmp_path / "file").write_text("kept")
    output = {
        "same file": chapter,
        "same folder": tmp_path,
        "file in the way": tmp_path / "file",
        "notebook name": tmp_path / "new.ipynb",
    }[form]
    assert f"--output {output}" in refused(chapter, "--output", output)
    assert chapter.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "toy.ipynb"]


@pytest.mark.parametrize("name", ["energy", "01-energy", "1", "01"])
def test_chapters_have_several_names(name):
    assert chapters.get(name).name == "energy"


def test_unknown_chapters_and_files_are_refused(tmp_path):
    assert "unknown chapter 'enrgy': did you mean 'energy'?" in refused("enrgy")
    assert "no notebook nowhere.ipynb" in refused("nowhere.ipynb")
    (tmp_path / "text.ipynb").write_text("print('no notebook')")
    assert "text.ipynb is not a notebook" in refused("text.ipynb")
    path = notebooks.write(tmp_path / "copy.ipynb", PARAMETERS, etlib=None)
    assert "does not say which chapter it is" in refused(path)


def test_a_copy_without_metadata_is_known_by_its_name(tmp_path):
    path = notebooks.write(tmp_path / "99-toy.ipynb", PARAMETERS, etlib=None)
    assert launch.find(str(path)) == (TOY, path)


def test_typographic_dash_is_refused_before_a_kernel_dies_of_it(chapter, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "–xla_force_host_platform_device_count=8")
    assert "typographic dash" in refused(chapter)


def test_completed_run(tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_DISABLE_MOST_OPTIMIZATIONS")  # a smoke run sets it itself
    record = 'runs.data_fingerprint("toy", [1])\nruns.record("toy", {"rate": p.rate})'
    show = "import jax; print(p.smoke, p.sizes, p.folder, p.rate)"
    quick = 'print(jax.config.read("jax_disable_most_optimizations"))'
    source = notebooks.write(
        tmp_path / "toy.ipynb", PARAMETERS, CONFIGURE, show, quick, record, "runs.provenance()"
    )
    before = source.read_bytes()
    given = ["preset=smoke", "smoke=false", "sizes=[1,2]", "folder=1e5", "rate=1e-3"]
    arguments = [word for text in given for word in ("-p", text)]
    done = cli.invoke(app, ["run", "toy.ipynb", *arguments])
    assert done.exit_code == 0, done.output
    (folder,) = tmp_path.glob("runs/toy-*")
    assert f"runs/{folder.name}/toy.ipynb" in done.stdout
    assert notebooks.printed(folder / "toy.ipynb") == "False (1, 2) 1e5 0.001\nTrue\n"
    assert source.read_bytes() == before

    content = run_json(folder)
    assert content["status"] == "completed"
    assert (content["chapter"], content["preset"], content["seed"]) == ("toy", "smoke", 0)
    assert content["overrides"] == {"smoke": False, "sizes": [1, 2], "folder": "1e5", "rate": 0.001}
    assert content["parameters"]["mode"] == "fast"
    assert content["device"] == {"platform": "cpu", "kind": "cpu", "count": 2}
    assert {"python", "etlib", "jax", "papermill"} <= content["versions"].keys()
    assert [item["name"] for item in content["data"]] == ["toy"]
    assert content["duration_s"] > 0
    assert content["started"] < content["ended"]
    assert cli.invoke(app, ["results", str(folder)]).exit_code == 0

    assert sorted(p.name for p in folder.iterdir()) == ["result-toy.json", "run.json", "toy.ipynb"]
    for path in folder.iterdir():
        for private in (str(tmp_path), str(ROOT), os.uname().nodename):
            assert private not in path.read_text(), path.name


def test_failing_chapter_names_chapter_cell_and_error(tmp_path):
    boom = "# the cell that fails\nraise ValueError('boom')"
    path = notebooks.write(tmp_path / "toy.ipynb", PARAMETERS, "print('first')", boom, "print(2)")
    before = path.read_bytes()
    done = cli.invoke(app, ["run", "toy.ipynb", "-p", "rate=1", "--output", "out {1}"])
    assert done.exit_code == 1
    message = "chapter toy failed in cell [4] `# the cell that fails`: ValueError: boom"
    assert f"etlib: {message}\n" in done.stderr
    assert "partial notebook: out {1}/toy.ipynb" in done.stderr
    assert path.read_bytes() == before
    assert notebooks.printed(tmp_path / "out {1}" / "toy.ipynb") == "first\n"
    content = run_json(tmp_path / "out {1}")
    assert (content["status"], content["error"]) == ("failed", message)


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("import time\ntime.sleep(60)", "still running after 1 s"),
        ("import os\nos._exit(1)", "the kernel died, perhaps for want of memory"),
    ],
)
def test_a_stuck_or_dead_chapter_ends_with_its_cell(tmp_path, cell, reason):
    path = notebooks.write(tmp_path / "toy.ipynb", PARAMETERS, cell, "print('later')")
    done = cli.invoke(app, ["run", str(path), "--timeout", "1", "--output", "out"])
    assert done.exit_code == 1
    first_line = cell.partition("\n")[0]
    assert f"chapter toy failed in cell [2] `{first_line}`: {reason}" in done.stderr
    assert run_json(tmp_path / "out")["status"] == "failed"


@pytest.mark.parametrize(
    ("assignment", "cell", "message"),
    [
        ("device=gpu", "", "DeviceError: device 'gpu' asked for, JAX sees 2 devices (cpu: cpu)"),
        ("device=cpu", LATE_FLAG, "DeviceError: 2 devices visible, 8 requested by XLA_FLAGS"),
    ],
)
def test_devices_that_are_not_there_fail_before_computing(tmp_path, assignment, cell, message):
    configure = 'from etlib import runs\np = runs.configure("energy", globals())'
    cells = ['preset = "smoke"', cell, configure, "print('computing')"]
    notebooks.write(tmp_path / "01-energy.ipynb", *cells, chapter="energy")
    done = cli.invoke(app, ["run", "01-energy.ipynb", "-p", assignment, "--output", "out"])
    assert done.exit_code == 1
    assert message in done.stderr
    assert notebooks.printed(tmp_path / "out" / "01-energy.ipynb") == ""


def test_a_notebook_that_papermill_cannot_read_ends_in_one_line(chapter, tmp_path):
    content = json.loads(chapter.read_text())
    content["nbformat_minor"] = "five"
    chapter.write_text(json.dumps(content))
    done = cli.invoke(app, ["run", "toy.ipynb", "--output", "out"])
    assert done.exit_code == 1
    assert "chapter toy failed in no cell (it did not start): " in done.stderr
    assert run_json(tmp_path / "out")["status"] == "failed"


@pytest.mark.parametrize(
    "kernelspec",
    [
        {"name": "et-env", "display_name": "et-env", "language": "python"},
        None,
        {"name": "Python 3.11.7 ('et': venv)", "display_name": "Python 3.11.7 ('et': venv)"},
    ],
)
def test_the_running_interpreter_is_the_kernel_whatever_is_named(tmp_path, kernelspec):
    path = notebooks.write(tmp_path / "toy.ipynb", PARAMETERS, WHICH_PYTHON, kernelspec=kernelspec)
    done = cli.invoke(app, ["run", str(path), "--output", "out"])
    assert done.exit_code == 0, done.output
    executed = tmp_path / "out" / "toy.ipynb"
    assert notebooks.printed(executed) == f"{sys.executable}\n"
    assert json.loads(executed.read_text())["metadata"]["kernelspec"]["name"] == "python3"


def test_interrupted_run_says_so(tmp_path):
    path = notebooks.write(
        tmp_path / "01-energy.ipynb", PARAMETERS, "import time\ntime.sleep(60)", chapter="energy"
    )
    command = [sys.executable, "-m", "etlib", "run", str(path), "--output", "out"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    executed, deadline = tmp_path / "out" / "01-energy.ipynb", time.monotonic() + 60
    while not (executed.exists() and '"running"' in executed.read_text().split("sleep")[0]):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; partial notebook: out/01-energy.ipynb" in log
    assert run_json(tmp_path / "out")["status"] == "interrupted"


def test_runs_that_start_together_get_folders_of_their_own():
    first, second = launch.new_folder("toy"), launch.new_folder("toy")
    assert first != second
    assert re.fullmatch(r"toy-\d{8}-\d{6}", first.name)


def test_help_and_mistakes_do_not_load_jax_or_papermill():
    code = (
        "import sys; from etlib.launch import Run, parse_assignments; import etlib.cli\n"
        "assert not {'jax', 'papermill', 'nbformat', 'IPython'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    done = subprocess.run([sys.executable, "-m", "etlib", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "results" in done.stdout
