"""The authors' released image weights, and our own in the same file layout.

The file is an npz of twelve arrays. Two conventions differ from this package: memories are
columns of Xi, and the values of a patch run channel, row, column where ours run row, column,
channel.
"""

import hashlib
import warnings
import zipfile
from collections.abc import Mapping
from math import isqrt
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from etlib.block import BlockConfig
from etlib.errors import DataError
from etlib.masked_images import MaskedImageConfig, MaskedImageModel

URL = "https://github.com/bhoov/energy-transformer-jax/raw/f01e90c/checkpoints/plaindict_ckpt.npz"
BLOB = "c25c150479eba1380a27fb3452881b61761c74f1"

Arrays = Mapping[str, np.ndarray]


def load(
    path: str | Path,
    config: MaskedImageConfig | None = None,
    *,
    n_steps: int = 12,
    alpha: float = 0.1,
    beta: float | None = None,
    interpolate: bool = False,
) -> MaskedImageModel:
    """The model whose weights `path` holds, in float32.

    config:      the model wanted; by default one of the file's own sizes, for square images,
                 that attends to itself (as released) and takes `n_steps` of `alpha` at `beta`:
                 those are not in the file.
    interpolate: resize the position table when the file's is of another size, with a warning;
                 the class token's row stays as it is.

    Raises DataError for a file that is no npz of arrays, and unless it holds exactly the twelve
    names, with the shapes of the model; every name and shape that differs is listed.
    """
    arrays = _read(Path(path).expanduser())
    if config is None:
        config = _sizes(arrays, n_steps, alpha, beta)
    arrays = _checked(arrays, config, interpolate, path)
    return _model(arrays, config)


def save(model: MaskedImageModel, path: Path, dtype: str = "float32") -> None:
    """Write the weights of an Energy Transformer in the released layout."""
    swap = _ours(model.config.patch).argsort()
    block = model.block
    arrays = {
        "Wk": block.Wk,
        "Wq": block.Wq,
        "Xi": block.Xi[...].T,
        "Wenc": model.encoder.kernel[...][swap],
        "Benc": model.encoder.bias,
        "Wdec": model.decoder.kernel[...][:, swap],
        "Bdec": model.decoder.bias[...][swap],
        "LNORM_gamma": block.gamma,
        "LNORM_bias": block.delta,
        "CLS_token": model.CLS,
        "MASK_token": model.MASK,
        "POS_embed": model.positions,
    }
    np.savez(path, **{name: np.asarray(array[...], dtype) for name, array in arrays.items()})


def fetch(folder: str | Path | None = None, url: str = URL, blob: str = BLOB) -> Path:
    """Download the released file (20 MB) unless `folder` has it, and check its git blob id.

    folder: by default that of `etlib` in the user's cache.

    Raises DataError when the download fails, or when the file is not the one published.
    """
    import pooch

    pooch.get_logger().setLevel("WARNING")
    folder = Path(folder).expanduser() if folder else Path(pooch.os_cache("etlib"))
    path = folder / "plaindict_ckpt.npz"
    was_there = path.exists()
    try:
        pooch.retrieve(url, known_hash=None, fname=path.name, path=folder)
    except Exception as error:  # what a download raises depends on how far it came
        raise DataError(
            f"{url} could not be downloaded ({type(error).__name__}); download it yourself and "
            "give the path of the file"
        ) from error
    found = git_blob_id(path)
    if found != blob:
        if not was_there:  # a file of the user's own is theirs to remove
            path.unlink()
        origin = path if was_there else url
        raise DataError(f"{origin} is git blob {found}, not {blob}: not the published file")
    return path


def git_blob_id(path: Path) -> str:
    """The name git gives a file's content: SHA-1 of a header with its size, and the bytes."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def resize_positions(table: Float[np.ndarray, "N1 D"], n_patches: int) -> Float[np.ndarray, "M1 D"]:
    """A position table for another square grid: bilinear, row 0 (CLS) as it was.

    Raises DataError when either grid is not square.
    """
    old, new = isqrt(len(table) - 1), isqrt(n_patches)
    if old**2 != len(table) - 1 or new**2 != n_patches:
        raise DataError(
            f"positions of {len(table) - 1} patches cannot be interpolated for {n_patches}: "
            "both must be squares"
        )
    rows = jnp.asarray(table[1:], jnp.float32).reshape(old, old, -1)
    rows = jax.image.resize(rows, (new, new, rows.shape[-1]), "bilinear")
    return np.concatenate([table[:1], np.asarray(rows.reshape(n_patches, -1), table.dtype)])


def _ours(patch: int) -> np.ndarray:
    """Position, in the released order of a patch's values, of each value in our order."""
    return np.arange(3 * patch**2).reshape(3, patch, patch).transpose(1, 2, 0).ravel()


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except FileNotFoundError:
        raise DataError(f"no file {path}") from None
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path.name} is not an npz file of plain arrays: {error}") from None


def _sizes(arrays: Arrays, n_steps: int, alpha: float, beta: float | None) -> MaskedImageConfig:
    """The configuration that the shapes speak of; the paper's where they make no sense."""
    try:
        (H, Y, D), (_, K) = arrays["Wk"].shape, arrays["Xi"].shape
        patch = isqrt(arrays["Wenc"].shape[0] // 3)
        n_patches = len(arrays["POS_embed"]) - 1
        side = isqrt(n_patches) * patch
        n_masked = round(90 / 196 * n_patches)
        block = BlockConfig(D, H, Y, K, n_steps, alpha, beta, self_attention=True)
        n_kept = max(round(10 / 196 * n_patches), 1)
        return MaskedImageConfig(side, side, patch, n_masked, n_kept, block=block)
    except (KeyError, ValueError, IndexError, TypeError, ZeroDivisionError):
        return MaskedImageConfig()


def _shapes(config: MaskedImageConfig) -> dict[str, tuple[int, ...]]:
    b, Z = config.block, config.patch_values
    D = b.token_dim
    return {
        "Wk": (b.n_heads, b.head_dim, D),
        "Wq": (b.n_heads, b.head_dim, D),
        "Xi": (D, b.n_memories),
        "Wenc": (Z, D),
        "Benc": (D,),
        "Wdec": (D, Z),
        "Bdec": (Z,),
        "LNORM_gamma": (),
        "LNORM_bias": (D,),
        "CLS_token": (D,),
        "MASK_token": (D,),
        "POS_embed": (config.n_patches + 1, D),
    }


def _checked(
    arrays: Arrays, config: MaskedImageConfig, interpolate: bool, path: str | Path
) -> dict[str, np.ndarray]:
    wanted = _shapes(config)
    found = {name: array.shape for name, array in arrays.items()}
    differ = [name for name in wanted | found if wanted.get(name) != found.get(name)]
    name = Path(path).name
    positions = found.get("POS_embed", ())
    another_grid = differ == ["POS_embed"] and positions[1:] == wanted["POS_embed"][1:]
    if another_grid and interpolate:
        warnings.warn(
            f"{name}: positions of {positions[0] - 1} patches interpolated for "
            f"{config.n_patches}; the class token's row is unchanged",
            stacklevel=3,
        )
        resized = resize_positions(arrays["POS_embed"], config.n_patches)
        return dict(arrays) | {"POS_embed": resized}
    if differ:
        lines = [
            f"  {n}: stored {_said(found, n)}, wanted {_said(wanted, n)}" for n in sorted(differ)
        ]
        advice = "\ninterpolate=True would resize the position table" if another_grid else ""
        raise DataError(f"{name} does not hold this model's weights:\n" + "\n".join(lines) + advice)
    odd = [n for n, array in arrays.items() if not np.issubdtype(array.dtype, np.floating)]
    if odd:
        raise DataError(f"{name}: not floating-point numbers: {', '.join(sorted(odd))}")
    return dict(arrays)


def _said(shapes: Mapping[str, tuple[int, ...]], name: str) -> str:
    return str(list(shapes[name])) if name in shapes else "nothing"


def _model(arrays: Arrays, config: MaskedImageConfig) -> MaskedImageModel:
    order = _ours(config.patch)
    model = nnx.eval_shape(lambda: MaskedImageModel(config, rngs=nnx.Rngs(0)))  # draws no weights
    block = model.block
    values = [
        (block.Wk, arrays["Wk"]),
        (block.Wq, arrays["Wq"]),
        (block.Xi, arrays["Xi"].T),
        (block.gamma, arrays["LNORM_gamma"]),
        (block.delta, arrays["LNORM_bias"]),
        (model.encoder.kernel, arrays["Wenc"][order]),
        (model.encoder.bias, arrays["Benc"]),
        (model.decoder.kernel, arrays["Wdec"][:, order]),
        (model.decoder.bias, arrays["Bdec"][order]),
        (model.CLS, arrays["CLS_token"]),
        (model.MASK, arrays["MASK_token"]),
        (model.positions, arrays["POS_embed"]),
    ]
    for variable, array in values:
        variable.set_value(jnp.asarray(array, jnp.float32))
    return model
