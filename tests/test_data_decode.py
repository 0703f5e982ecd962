"""Every kind of picture becomes RGB by its rule; a file that cannot be read is named in full."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from etlib.data.decode import read_rgb
from etlib.errors import DataError


def rgb(path):
    image = read_rgb(path)
    assert image.mode == "RGB"
    return np.asarray(image).tolist()


def saved(tmp_path, image, name="picture.png", **options):
    image.save(tmp_path / name, **options)
    return tmp_path / name


def of(values, mode):
    """A picture of one row."""
    image = Image.new(mode, (len(values), 1))
    image.putdata(values)
    return image


def test_rgb_is_unchanged(tmp_path):
    assert rgb(saved(tmp_path, of([(1, 2, 3), (4, 5, 6)], "RGB"))) == [[[1, 2, 3], [4, 5, 6]]]


def test_grey_goes_to_all_channels(tmp_path):
    assert rgb(saved(tmp_path, of([0, 100], "L"))) == [[[0, 0, 0], [100, 100, 100]]]
    assert rgb(saved(tmp_path, of([0, 255], "1"))) == [[[0, 0, 0], [255, 255, 255]]]


@pytest.mark.parametrize("name", ["picture.png", "picture.tif", "picture.ppm"])
def test_grey_of_16_bits_is_scaled_by_its_full_range(tmp_path, name):
    deep = Image.fromarray(np.array([[0, 257, 25_700, 65_535]], np.uint16))
    expected = [[[v] * 3 for v in (0, 1, 100, 255)]]
    assert rgb(saved(tmp_path, deep, name)) == expected


def test_grey_of_32_bits_is_refused(tmp_path):
    path = saved(tmp_path, Image.fromarray(np.array([[0.5]], np.float32)), "picture.tif")
    with pytest.raises(DataError, match=f"{path}: grey of 32 bits"):
        read_rgb(path)


def palette():
    image = of([0, 1, 2], "P")
    image.putpalette([10, 20, 30, 200, 100, 0, 0, 0, 255])
    return image


def test_palette_is_looked_up(tmp_path):
    expected = [[[10, 20, 30], [200, 100, 0], [0, 0, 255]]]
    assert rgb(saved(tmp_path, palette())) == expected


@pytest.mark.parametrize(
    "transparency, expected",
    [
        (1, [[[10, 20, 30], [255, 255, 255], [0, 0, 255]]]),
        (bytes([255, 255, 51]), [[[10, 20, 30], [200, 100, 0], [204, 204, 255]]]),
    ],
)
def test_transparent_palette_shows_white(tmp_path, transparency, expected):
    assert rgb(saved(tmp_path, palette(), transparency=transparency)) == expected


def test_alpha_is_composited_on_white(tmp_path):
    colours = [(255, 0, 0, 255), (255, 0, 0, 51), (9, 9, 9, 0)]
    expected = [[[255, 0, 0], [255, 204, 204], [255, 255, 255]]]
    assert rgb(saved(tmp_path, of(colours, "RGBA"))) == expected
    assert rgb(saved(tmp_path, of([(0, 255), (0, 51)], "LA"))) == [[[0] * 3, [204] * 3]]


def test_transparent_colour_of_an_rgb_picture_is_white(tmp_path):
    path = saved(tmp_path, of([(1, 2, 3), (4, 5, 6)], "RGB"), transparency=(4, 5, 6))
    assert rgb(path) == [[[1, 2, 3], [255, 255, 255]]]


def test_cmyk(tmp_path):
    inks = [(255, 0, 0, 0), (0, 0, 0, 255), (0, 0, 0, 55), (0, 55, 0, 0)]
    expected = [[[0, 255, 255], [0, 0, 0], [200, 200, 200], [255, 200, 255]]]
    assert rgb(saved(tmp_path, of(inks, "CMYK"), "picture.tif")) == expected


def test_cmyk_jpeg_is_not_inverted(tmp_path):
    path = saved(tmp_path, Image.new("CMYK", (16, 16), (255, 0, 0, 0)), "p.jpg", quality=95)
    np.testing.assert_allclose(rgb(path), np.broadcast_to([0, 255, 255], (16, 16, 3)), atol=3)


UPRIGHT = {
    1: lambda a: a,
    2: np.fliplr,
    3: lambda a: np.rot90(a, 2),
    4: np.flipud,
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).swapaxes(0, 1),
    8: np.rot90,
}


@pytest.mark.parametrize("orientation", UPRIGHT)
def test_exif_orientation_is_applied(tmp_path, orientation):
    values = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path, Image.fromarray(values), exif=exif)
    assert rgb(path) == UPRIGHT[orientation](values).tolist()


def test_first_frame_of_several(tmp_path):
    frames = [of([(1, 2, 3)], "RGB"), of([(9, 9, 9)], "RGB")]
    path = saved(tmp_path, frames[0], "p.tif", save_all=True, append_images=frames[1:])
    assert rgb(path) == [[[1, 2, 3]]]


def test_damaged_exif_is_ignored_without_a_warning(tmp_path):
    exif = b"Exif\0\0II*\0\x08\0\0\0\x05\0"  # says five entries, has none
    path = saved(tmp_path, Image.new("RGB", (4, 4)), "p.jpg", exif=exif)
    code = "import sys; from etlib.data.decode import read_rgb; print(read_rgb(sys.argv[1]).size)"
    command = [sys.executable, "-W", "error", "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "(4, 4)\n" and done.stderr == ""


def noise(size=(40, 30)):
    values = np.random.default_rng(0).integers(256, size=(*size[::-1], 3), dtype=np.uint8)
    return Image.fromarray(values)


def test_unreadable_files_are_named_in_full(tmp_path, monkeypatch):
    whole = saved(tmp_path, noise(), "whole.jpg").read_bytes()
    bad = {
        "empty.JPEG": (b"", "the file is empty"),
        "cut.JPEG": (whole[: len(whole) // 2], "truncated"),
        "text.JPEG": (b"<html>404</html>", "cannot identify"),
    }
    monkeypatch.chdir(tmp_path)
    for name, (content, reason) in bad.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=f"unreadable image {tmp_path}/{name}: .*{reason}"):
            read_rgb(name)
    with pytest.raises(DataError, match=f"unreadable image {tmp_path}/gone.JPEG: .*No such file"):
        read_rgb("gone.JPEG")
