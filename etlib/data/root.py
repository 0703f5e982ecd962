"""Where data sets lie, where processed files go, and what is said when a set is not there.

One root holds every set that a user brings: TU sets under `TUDataset/NAME/raw/`, anomaly graphs
under `fraud/NAME/`. It may be read-only: whatever is derived from it goes to the cache.
"""

import os
import warnings
from pathlib import Path

from etlib.errors import DataError

with warnings.catch_warnings():
    # Its progress bar would warn, in every chapter, that a notebook has no widgets.
    warnings.filterwarnings("ignore", message="IProgress not found")
    import pooch

VARIABLE = "ETLIB_DATA"


def data_root() -> Path:
    """The folder that ETLIB_DATA names; without it, `data` in the user's cache of etlib.

    Raises DataError when ETLIB_DATA names something that is no folder.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return default_root()
    root = Path(named).expanduser().absolute()
    if not root.is_dir():
        raise DataError(f"{VARIABLE} is {named}, which is no folder")
    return root


def default_root() -> Path:
    """`data` in the user's cache of etlib, where downloads go whatever ETLIB_DATA says."""
    return Path(pooch.os_cache("etlib")) / "data"


def cache(*parts: str) -> Path:
    """A writable folder for derived files, in the user's cache of etlib; made when missing."""
    folder = Path(pooch.os_cache("etlib")).joinpath("derived", *parts)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"the cache {folder} cannot be made: {error.strerror}") from None
    return folder


def missing(name: str, place: Path, how: str) -> DataError:
    """The error for a set that is not there: which one, where it was looked for, how to get it."""
    return DataError(
        f"the data set {name} is not in {place}. {how} "
        f"The data root is {data_root()}; the environment variable {VARIABLE} sets it."
    )
