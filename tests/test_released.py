"""Reading the released weights: layout, refusals, download. Files of the same keys, but small."""

import subprocess
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from etlib import masked_images as mi
from etlib import released
from etlib.block import BlockConfig
from etlib.errors import DataError
from etlib.vision import patchify, unpatchify

D, H, Y, K, PATCH, SIDE, N = 10, 2, 4, 7, 2, 3, 9
Z = 3 * PATCH**2

SHAPES = {
    "Wk": (H, Y, D), "Wq": (H, Y, D), "Xi": (D, K), "Wenc": (Z, D), "Benc": (D,),
    "Wdec": (D, Z), "Bdec": (Z,), "LNORM_gamma": (), "LNORM_bias": (D,), "CLS_token": (D,),
    "MASK_token": (D,), "POS_embed": (N + 1, D),
}  # fmt: skip


def arrays(**changed):
    rng = np.random.default_rng(0)
    drawn = {name: 0.3 * rng.normal(size=shape) for name, shape in SHAPES.items()}
    return drawn | {"LNORM_gamma": np.array(1.3)} | changed


def written(folder, **changed):
    path = folder / "weights.npz"
    stored = {n: np.asarray(a) for n, a in arrays(**changed).items() if a is not None}
    np.savez(path, **stored)
    return path


def released_model(w, image, hidden, n_steps=12, alpha=0.1):
    """The released convention as loops over float64 arrays: a picture (3, 6, 6) in and out."""

    def norm(x):
        centred = x - x.mean()
        return w["LNORM_gamma"] * centred / np.sqrt((centred**2).mean() + 1e-5) + w["LNORM_bias"]

    def corner(n):
        return n // SIDE * PATCH, n % SIDE * PATCH

    tokens = [w["CLS_token"] + w["POS_embed"][0]]
    for n in range(N):
        r, c = corner(n)
        values = image[:, r : r + PATCH, c : c + PATCH].reshape(-1)  # channel, row, column
        token = w["MASK_token"] if hidden[n] else values @ w["Wenc"] + w["Benc"]
        tokens.append(token + w["POS_embed"][n + 1])
    beta = 1 / np.sqrt(Y)
    for _ in range(n_steps):
        g = [norm(x) for x in tokens]
        update = [np.zeros(D) for _ in g]
        for h in range(H):
            k, q = ([W[h] @ gi for gi in g] for W in (w["Wk"], w["Wq"]))
            for C in range(N + 1):  # its own key included
                p = np.exp([beta * k[B] @ q[C] for B in range(N + 1)])
                p /= p.sum()
                for B in range(N + 1):
                    update[C] += p[B] * (w["Wq"][h].T @ k[B])
                    update[B] += p[B] * (w["Wk"][h].T @ q[C])
        for A in range(N + 1):
            for mu in range(K):
                update[A] += w["Xi"][:, mu] * max(w["Xi"][:, mu] @ g[A], 0)
        tokens = [x + alpha * u for x, u in zip(tokens, update, strict=True)]
    out = np.zeros_like(image)
    for n in range(N):
        r, c = corner(n)
        values = norm(tokens[n + 1]) @ w["Wdec"] + w["Bdec"]
        out[:, r : r + PATCH, c : c + PATCH] = values.reshape(3, PATCH, PATCH)
    return out


def test_the_model_computes_what_the_released_one_does(tmp_path):
    rng = np.random.default_rng(1)
    image = rng.normal(size=(3, 6, 6))
    hidden = rng.permutation(N) < 5
    expected = released_model(arrays(), image, hidden)
    model = released.load(written(tmp_path))
    patches = jnp.asarray(patchify(image.transpose(1, 2, 0), PATCH), jnp.float32)
    occlusion = jnp.where(hidden, mi.MASKED, mi.SEEN)
    found = unpatchify(np.asarray(model(patches, occlusion)), 6, 6, PATCH).transpose(2, 0, 1)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)


def test_sizes_come_from_the_file_and_the_rest_from_the_caller(tmp_path):
    config = released.load(written(tmp_path), n_steps=3, alpha=0.2, beta=0.7).config
    assert (config.height, config.width, config.patch, config.n_patches) == (6, 6, PATCH, N)
    assert config.block == BlockConfig(D, H, Y, K, 3, 0.2, 0.7, self_attention=True)


def test_the_shapes_of_the_released_file_are_those_of_the_paper():
    shapes = released._shapes(mi.MaskedImageConfig())
    assert sum(int(np.prod(s)) for s in shapes.values()) == 4_873_729
    assert shapes["Xi"] == (768, 3072) and shapes["POS_embed"] == (197, 768)


@pytest.mark.parametrize("dtype, tolerance", [("float32", 0), ("float16", 1e-3)])
def test_what_is_saved_is_what_is_loaded(tmp_path, dtype, tolerance):
    model = released.load(written(tmp_path))
    released.save(model, tmp_path / "again.npz", dtype)
    again = released.load(tmp_path / "again.npz")
    for ours, theirs in zip(*(jax.tree.leaves(nnx.state(m)) for m in (again, model)), strict=True):
        assert ours.dtype == jnp.float32
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def test_every_name_and_shape_that_differs_is_listed(tmp_path):
    config = released.load(written(tmp_path)).config
    path = written(tmp_path, Xi=np.zeros((K, D)), CLS_token=None, head=np.zeros(4))
    with pytest.raises(DataError) as refused:
        released.load(path, config)
    assert str(refused.value).splitlines() == [
        "weights.npz does not hold this model's weights:",
        "  CLS_token: stored nothing, wanted [10]",
        "  Xi: stored [7, 10], wanted [10, 7]",
        "  head: stored [4], wanted nothing",
    ]


def test_a_file_of_something_else(tmp_path):
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(DataError, match=r"(?s)Wk: stored nothing.*  a: stored \[3\], wanted no"):
        released.load(tmp_path / "other.npz")
    (tmp_path / "text.npz").write_text("no array")
    np.savez(tmp_path / "objects.npz", Wk=np.array([{}], dtype=object))
    np.save(tmp_path / "single.npy", np.zeros(3))
    for name in ("text.npz", "objects.npz", "single.npy"):
        with pytest.raises(DataError, match=f"{name} is not an npz file of plain arrays"):
            released.load(tmp_path / name)
    with pytest.raises(DataError, match="no file"):
        released.load(tmp_path / "missing.npz")
    with pytest.raises(DataError, match="not floating-point numbers: Benc"):
        released.load(written(tmp_path, Benc=np.zeros(D, int)))


@pytest.mark.parametrize("side", [16, 8])
def test_positions_of_another_size(tmp_path, side):
    """1 + 196 positions for 1 + 256 and 1 + 64."""
    table = np.random.default_rng(0).normal(size=(197, D))
    path = written(tmp_path, POS_embed=table)
    block = BlockConfig(D, H, Y, K, self_attention=True)
    size = side * PATCH
    config = mi.MaskedImageConfig(size, size, PATCH, 20, 5, block=block)
    n = side**2 + 1
    with pytest.raises(DataError, match=rf"POS_embed: stored \[197, 10\], wanted \[{n}, 10\]"):
        released.load(path, config)
    with pytest.warns(UserWarning, match=f"positions of 196 patches interpolated for {n - 1}"):
        model = released.load(path, config, interpolate=True)
    positions = np.asarray(model.positions[...])
    np.testing.assert_array_equal(positions[0], table[0].astype(np.float32))
    assert positions.shape == (n, D)
    assert np.abs(positions[1:]).max() <= np.abs(table[1:]).max()


def test_interpolated_positions_keep_their_place():
    """A table that is its row and column stays so: a ramp, but for the borders."""
    rows, columns = np.mgrid[:14, :14] + 0.5
    table = np.concatenate([[[9.0, 9.0]], np.stack([rows, columns], -1).reshape(-1, 2) / 14])
    resized = released.resize_positions(table, 64)[1:].reshape(8, 8, 2)
    expected = (np.stack(np.mgrid[:8, :8], -1) + 0.5) / 8
    np.testing.assert_allclose(resized[1:-1, 1:-1], expected[1:-1, 1:-1], atol=0.01)
    with pytest.raises(DataError, match="both must be squares"):
        released.resize_positions(table, 60)


# --- the download -------------------------------------------------------------


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments) -> None:
        pass


@pytest.fixture
def address(tmp_path):
    published = tmp_path / "published"
    published.mkdir()
    written(published)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=published)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/weights.npz"
        server.shutdown()


def test_blob_id_is_gits(tmp_path):
    path = written(tmp_path)
    git = subprocess.run(
        ["git", "hash-object", "--no-filters", path], capture_output=True, text=True, check=True
    )
    assert released.git_blob_id(path) == git.stdout.strip()


def test_download_once_and_check(tmp_path, address):
    cache = tmp_path / "cache"
    blob = released.git_blob_id(tmp_path / "published" / "weights.npz")
    path = released.fetch(cache, address, blob)
    assert released.load(path).config.n_patches == N
    (tmp_path / "published" / "weights.npz").unlink()
    assert released.fetch(cache, address, blob) == path  # from the cache


def test_another_file_than_the_published_is_not_kept(tmp_path, address):
    with pytest.raises(DataError, match=f"is git blob [0-9a-f]{{40}}, not {released.BLOB}"):
        released.fetch(tmp_path / "cache", address)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_file_that_was_there_is_refused_but_stays(tmp_path, address):
    own = tmp_path / "plaindict_ckpt.npz"
    own.write_text("mine")
    with pytest.raises(DataError, match="not the published file"):
        released.fetch(tmp_path, address)
    assert own.read_text() == "mine"


def test_no_download(tmp_path, address):
    with pytest.raises(DataError, match="could not be downloaded"):
        released.fetch(tmp_path / "cache", address + "-not-there")
