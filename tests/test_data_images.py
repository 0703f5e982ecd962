"""The pipeline: one stream for a seed, whoever reads it, wherever it is cut and resumed."""

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from etlib.data import images
from etlib.data.transforms import Augmentation
from etlib.errors import DataError
from tests.imagetrees import cut, picture, tree

SAMPLE = Path(__file__).parents[2] / "shared/data/imagenet-sample"


@pytest.fixture
def ten(tmp_path):
    """Ten classes of one picture each, so that a label names a picture."""
    return f"imagefolder:{tree(tmp_path / 'ten', [f'n{i:02}' for i in range(10)])}"


def train(spec, *, unreadable="stop", crops=40, **options):
    options = {"size": 8, "batch": 4} | options
    source = images.source(spec, "train", unreadable=unreadable, crops=crops)
    return images.training_batches(source, **options)


def val(spec, *, unreadable="stop", **options):
    source = images.source(spec, "val", unreadable=unreadable)
    return list(images.evaluation_batches(source, size=8, **options))


def take(batches, n):
    return [next(batches) for _ in range(n)]


def assert_same(first, second):
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def labels(batches):
    return np.concatenate([batch["label"] for batch in batches]).tolist()


@pytest.mark.parametrize("spec", ["photos", "ten"])
def test_batches_follow_from_the_seed(spec, request):
    spec = request.getfixturevalue(spec) if spec == "ten" else spec
    first, again, other = (take(train(spec, seed=s), 5) for s in (1, 1, 2))
    assert first[0]["image"].shape == (4, 8, 8, 3) and first[0]["image"].dtype == np.float32
    assert first[0]["label"].shape == (4,) and first[0]["label"].dtype == np.int32
    assert_same(first, again)
    assert any(
        not np.array_equal(a["image"], b["image"]) for a, b in zip(first, other, strict=True)
    )
    assert labels(first) != labels(other)


def test_an_epoch_shows_every_picture_once_in_an_order_of_its_own(ten):
    with train(ten, batch=5, epochs=3) as batches:
        assert batches.steps_per_epoch == 2
        shown = np.reshape(labels(batches), (3, 10))
    assert [sorted(epoch) for epoch in shown.tolist()] == [list(range(10))] * 3
    assert len({tuple(epoch) for epoch in shown.tolist()}) == 3


def test_what_does_not_fill_a_batch_is_left_out_of_its_epoch_only(ten):
    shown = np.reshape(labels(train(ten, batch=4, epochs=20)), (20, 8))
    assert all(len(set(epoch)) == 8 for epoch in shown.tolist())
    assert set(shown.flat) == set(range(10))


def test_a_picture_is_augmented_anew_each_epoch(ten):
    by_epoch = [{}, {}]
    for step, batch in enumerate(take(train(ten, batch=10), 2)):
        by_epoch[step] = dict(zip(batch["label"].tolist(), batch["image"], strict=True))
    assert all(not np.array_equal(by_epoch[0][i], by_epoch[1][i]) for i in range(10))


def test_augmentation_is_a_parameter(ten):
    still = Augmentation(area=(1, 1), flip=0, jitter=0)
    one, two = take(train(ten, batch=10, augmentation=still), 2)
    order = [np.argsort(batch["label"]) for batch in (one, two)]
    # Whole pictures (40 x 30, so of aspect 4/3) in both epochs, but for the drawn aspect.
    np.testing.assert_allclose(
        one["image"][order[0]].mean((1, 2)), two["image"][order[1]].mean((1, 2)), atol=0.2
    )


@pytest.mark.parametrize("at", [0, 1, 3, 5])
def test_a_resumed_stream_goes_on_as_if_it_had_not_stopped(ten, at):
    through = take(train(ten, epochs=3), 6)
    first = train(ten, epochs=3)
    take(first, at)
    state = json.loads(json.dumps(first.get_state()))
    resumed = train(ten, epochs=3)
    next(resumed)
    resumed.set_state(state)
    assert_same(list(resumed), through[at:])
    assert resumed.step == 6


def test_a_position_in_another_stream_is_refused(ten):
    state = train(ten).get_state()
    with pytest.raises(
        DataError, match=r"another stream of images: batch: 4 there, 5 here; seed: 0"
    ):
        train(ten, batch=5, seed=3).set_state(state)
    with pytest.raises(DataError, match="images: 40 there, 44 here"):
        train("photos", crops=44).set_state(train("photos").get_state())
    with pytest.raises(DataError, match="data: "):
        train("photos", crops=10).set_state(state)


@pytest.mark.parametrize("count", [2, 4])
def test_processes_share_the_batches_of_one(ten, count):
    whole = take(train(ten), 5)
    shares = [take(train(ten, process=(i, count)), 5) for i in range(count)]
    joined = [
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        for parts in zip(*shares, strict=True)
    ]
    assert_same(joined, whole)


def test_a_batch_that_processes_cannot_share(ten):
    with pytest.raises(DataError, match=r"batch of 5 does not divide over 2 processes.* 4 or 6"):
        train(ten, batch=5, process=(0, 2))
    with pytest.raises(DataError, match="process 2 of 2"):
        train(ten, process=(2, 2))


def test_fewer_images_than_one_batch(ten):
    message = "fewer images than one batch: imagefolder:ten has 10 in train, and the batch is 11"
    with pytest.raises(DataError, match=message):
        train(ten, batch=11)


@pytest.mark.parametrize("batch", [1, 3, 8, 10, 16])
def test_evaluation_counts_every_picture_once(ten, batch):
    batches = val(ten, batch=batch)
    assert {b["image"].shape for b in batches} == {(batch, 8, 8, 3)}
    valid = np.concatenate([b["valid"] for b in batches])
    assert np.array(labels(batches))[valid].tolist() == list(range(10))
    # Eight right, two wrong: 0.8 by the mask, whatever the batch.
    right = np.array(labels(batches)) < 8
    assert (right & valid).sum() / valid.sum() == 0.8
    assert all(not b["image"][~b["valid"]].any() for b in batches)
    assert_same(batches, val(ten, batch=batch))


@pytest.mark.parametrize("count", [2, 8])
def test_evaluation_of_three_pictures_over_more_processes(tmp_path, count):
    spec = f"imagefolder:{tree(tmp_path)}"
    whole = val(spec, batch=8)
    shares = [val(spec, batch=8, process=(i, count)) for i in range(count)]
    assert [len(share) for share in shares] == [1] * count
    joined = {n: np.concatenate([share[0][n] for share in shares]) for n in whole[0]}
    assert_same([joined], whole)
    assert joined["valid"].sum() == 3


def test_an_unreadable_picture_stops_with_its_path(ten):
    bad = cut(Path(ten.partition(":")[2]) / "train/n03/n03_0.JPEG")
    with pytest.raises(DataError, match=f"unreadable image {bad}"):
        next(train(ten, batch=10))


def test_unreadable_pictures_are_skipped_replaced_and_counted(ten, caplog):
    root = Path(ten.partition(":")[2])
    bad = [cut(root / "train/n03/n03_0.JPEG"), root / "train/n09/n09_0.JPEG"]
    bad[1].write_bytes(b"")
    with caplog.at_level(logging.WARNING), train(ten, batch=10, unreadable="skip") as batches:
        for batch in take(batches, 2):
            # Number 3 is replaced by 4, and the last by the first.
            assert sorted(batch["label"]) == [0, 0, 1, 2, 4, 4, 5, 6, 7, 8]
    assert sorted(batches.skipped) == sorted(map(str, bad))
    assert "the file is empty" in batches.skipped[str(bad[1])]
    assert [str(path) in caplog.text for path in bad] == [True, True]
    assert len(caplog.records) == 2  # once a file, not once an epoch


def test_evaluation_leaves_an_unreadable_picture_out(ten):
    cut(Path(ten.partition(":")[2]) / "val/n03/n03_0.JPEG")
    (batch,) = val(ten, batch=10, unreadable="skip")
    assert np.flatnonzero(~batch["valid"]).tolist() == [3]


def test_nothing_readable_is_an_error_even_when_skipping(tmp_path):
    for path in tree(tmp_path).glob("train/*/*"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match="none of the 3 images can be read"):
        take(train(f"imagefolder:{tmp_path}", batch=2, unreadable="skip"), 1)


def test_read_folder_in_file_name_order(tmp_path):
    for name in ("10_b.png", "02_a.JPEG", ".hidden.png"):
        picture(tmp_path / name)
    read = images.read_folder(tmp_path, 16)
    assert list(read) == ["02_a.JPEG", "10_b.png"]
    assert all(image.shape == (16, 16, 3) for image in read.values())
    with pytest.raises(DataError, match=f"no picture in {tmp_path}/none"):
        images.read_folder(tmp_path / "none", 16)


WORKERS = """
import sys, jax, numpy as np
from etlib.data import images
from etlib.errors import DataError

if __name__ == "__main__":
    spec, broken = sys.argv[1:]
    assert jax.jit(lambda x: x + 1)(1) == 2  # JAX is up, with its threads
    source = images.source(spec, "train")

    def stream(workers):
        options = dict(size=8, batch=3, epochs=2, workers=workers)
        with images.training_batches(source, **options) as batches:
            first = [next(batches)]
            state = batches.get_state()
            rest = list(batches)
            batches.set_state(state)
            return first + rest, [next(batches)]

    (two, two_again), (none, none_again) = stream(2), stream(0)
    assert len(two) == 6
    for a, b in zip(two + two_again, none + none_again, strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in b), "another stream"
        assert all(type(a[name]) is np.ndarray for name in a)
    try:
        next(images.training_batches(images.source(broken, "train"), size=8, batch=3, workers=1))
    except DataError as error:
        print(error)
"""


def script(tmp_path, text, *arguments, **options):
    (tmp_path / "script.py").write_text(text)
    command = [sys.executable, "-W", "error", str(tmp_path / "script.py"), *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def test_workers_beside_a_running_jax_read_the_same_stream_and_end(ten, tmp_path):
    broken = tree(tmp_path / "broken")
    bad = cut(broken / "train/n02/n02_0.JPEG")
    run = script(tmp_path, WORKERS, ten, f"imagefolder:{broken}")
    out, err = run.communicate(timeout=100)
    assert (run.returncode, err) == (0, "")
    assert out.startswith(f"unreadable image {bad}")


KILLED = """
import multiprocessing, time
from etlib.data import images

if __name__ == "__main__":
    source = images.source("photos", "train")
    batches = images.training_batches(source, size=8, batch=2, workers=1)
    next(batches)
    print(multiprocessing.active_children()[0].pid, flush=True)
    time.sleep(100)
"""


def test_workers_do_not_outlive_a_killed_parent(tmp_path):
    run = script(tmp_path, KILLED)
    worker = int(run.stdout.readline())
    run.kill()
    try:
        run.communicate(timeout=30)  # returns when the last process that could write has ended
    except subprocess.TimeoutExpired:
        os.kill(worker, signal.SIGKILL)
        run.communicate()
        pytest.fail("the worker goes on without its parent")


def test_the_imagenet_sample():
    if not SAMPLE.is_dir():
        pytest.skip(f"no ImageNet sample at {SAMPLE}")
    training, held_out = (images.source(f"imagefolder:{SAMPLE}", s) for s in ("train", "val"))
    assert (len(training), len(held_out), len(training.classes)) == (900, 100, 1000)
    # Every tenth class is held out; numbers are those of ImageNet's 1000.
    assert held_out.labels.tolist() == list(range(0, 1000, 10))
    (batch,) = take(images.training_batches(training, size=32, batch=64), 1)
    assert abs(batch["image"].mean()) < 0.5 and 0.8 < batch["image"].std() < 1.6
    (batch,) = images.evaluation_batches(held_out, size=32, batch=100)
    assert batch["valid"].all() and 0.8 < batch["image"].std() < 1.6
    assert images.fingerprint(training)["name"] == "imagefolder:imagenet-sample train, 900 images"
