"""Image folders: strays never shift a label, and every other layout is answered in words."""

import logging
import shutil

import pytest

from etlib.data.imagefolder import ImageFolder
from etlib.errors import DataError
from tests.imagetrees import picture, tree


def numbers(root, split="train"):
    """Class -> number, as the pictures have it."""
    folder = ImageFolder(root, split)
    return {folder.path(i).parent.name: int(folder.labels[i]) for i in range(len(folder))}


def test_pictures_by_number(tmp_path):
    folder = ImageFolder(tree(tmp_path, each=2), "train")
    assert len(folder) == 6
    assert folder.classes == ("n01", "n02", "n10")
    image, label = folder[4]
    assert (image.mode, image.size, label) == ("RGB", (40, 30), 2)
    assert folder.path(4) == tmp_path / "train/n10/n10_0.JPEG"


@pytest.mark.parametrize(
    "stray",
    [
        ".ipynb_checkpoints/x.JPEG",
        "n01/.ipynb_checkpoints/x.JPEG",
        "n01/._a.JPEG",
        "loose.JPEG",
        "n02/list.txt",
    ],
)
def test_strays_are_no_part_of_the_data(tmp_path, stray):
    picture(tree(tmp_path) / "train" / stray)
    (tmp_path / ".cache").mkdir()
    assert numbers(tmp_path) == {"n01": 0, "n02": 1, "n10": 2}
    assert len(ImageFolder(tmp_path, "train")) == 3


def test_an_empty_class_is_refused_by_name(tmp_path):
    (tree(tmp_path) / "train/n03").mkdir()
    (tmp_path / "train/n03/readme.txt").write_text("no picture")
    with pytest.raises(DataError, match=f"class folder {tmp_path}/train/n03 holds no picture"):
        ImageFolder(tmp_path, "train")


def test_an_empty_class_is_reported_and_keeps_its_number(tmp_path, caplog):
    (tree(tmp_path) / "train/n03").mkdir()
    with caplog.at_level(logging.WARNING):
        folder = ImageFolder(tmp_path, "train", unreadable="skip")
    assert f"{tmp_path}/train/n03 holds no picture" in caplog.text
    assert folder.classes == ("n01", "n02", "n03", "n10")
    assert folder.labels.tolist() == [0, 1, 3]


def test_a_class_has_one_number_in_both_splits(tmp_path):
    tree(tmp_path, ("a", "c"), ["train"])
    tree(tmp_path, ("b", "c"), ["val"])
    assert numbers(tmp_path, "train") == {"a": 0, "c": 2}
    assert numbers(tmp_path, "val") == {"b": 1, "c": 2}


def test_folders_within_a_class(tmp_path):
    picture(tmp_path / "train/n01/images/deep.jpg")
    picture(tmp_path / "train/n01/a.JPEG")
    folder = ImageFolder(tmp_path, "train")
    assert [folder.path(i).name for i in range(2)] == ["a.JPEG", "deep.jpg"]


def test_class_folders_may_be_links(tmp_path):
    tree(tmp_path / "elsewhere")
    (tmp_path / "root").mkdir()
    (tmp_path / "root/train").symlink_to(tmp_path / "elsewhere/train")
    assert numbers(tmp_path / "root") == {"n01": 0, "n02": 1, "n10": 2}


def flat(root):
    picture(root / "a.JPEG")


def flat_split(root):
    picture(root / "train/a.JPEG")
    tree(root, splits=["val"])


def only_val(root):
    tree(root, splits=["val"])


def split_given_as_root(root):
    picture(root / "n01/a.JPEG")


@pytest.mark.parametrize(
    "make, found",
    [
        (lambda root: None, "there is no such folder"),
        (flat, "there is no folder 'train' in it"),
        (split_given_as_root, "there is no folder 'train' in it"),
        (only_val, "there is no folder 'train' in it"),
        (flat_split, "'train' holds no class folders"),
    ],
)
def test_other_layouts_are_told_the_expected_one(tmp_path, make, found):
    root = tmp_path / "data"
    make(root)
    with pytest.raises(DataError) as error:
        ImageFolder(root, "train")
    assert f"no image folder at {root}: {found}" in str(error.value)
    assert f"Expected {root}/train/CLASS/*.JPEG and {root}/val/CLASS/*.JPEG" in str(error.value)


def test_a_missing_val_is_told_only_when_asked_for(tmp_path):
    tree(tmp_path, splits=["train"])
    assert len(ImageFolder(tmp_path, "train")) == 3
    with pytest.raises(DataError, match="there is no folder 'val' in it"):
        ImageFolder(tmp_path, "val")


def test_fingerprint_follows_names_and_sizes_but_not_the_place(tmp_path):
    first = ImageFolder(tree(tmp_path / "one"), "train").sha256
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert ImageFolder(tmp_path / "two", "train").sha256 == first
    file = tmp_path / "two/train/n01/n01_0.JPEG"
    file.write_bytes(file.read_bytes() + b"\0")
    longer = ImageFolder(tmp_path / "two", "train").sha256
    shutil.copy(tmp_path / "one/train/n01/n01_0.JPEG", file)
    file.rename(file.with_name("renamed.JPEG"))
    assert len({first, longer, ImageFolder(tmp_path / "two", "train").sha256}) == 3
