"""The data root, the cache beside it, and the error for a set that is not there."""

from pathlib import Path

import pytest

from etlib.data.root import cache, data_root, missing
from etlib.errors import DataError


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A user's cache of its own."""
    monkeypatch.setattr("pooch.os_cache", lambda name: str(tmp_path / "home" / name))
    monkeypatch.delenv("ETLIB_DATA", raising=False)
    return tmp_path


def test_without_a_root_data_is_looked_for_in_the_users_cache(home):
    assert data_root() == home / "home" / "etlib" / "data"
    assert not data_root().exists()  # looking makes nothing


def test_the_environment_names_the_root(home, monkeypatch):
    (home / "mine").mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setenv("ETLIB_DATA", "mine")
    assert data_root() == home / "mine"


def test_a_root_that_is_no_folder_is_refused(monkeypatch):
    monkeypatch.setenv("ETLIB_DATA", "/no/such/place")
    with pytest.raises(DataError, match="ETLIB_DATA is /no/such/place, which is no folder"):
        data_root()


def test_the_cache_is_never_in_the_root(home, monkeypatch):
    (home / "mine").mkdir()
    monkeypatch.setenv("ETLIB_DATA", str(home / "mine"))
    folder = cache("tu", "MUTAG")
    assert folder.is_dir() and folder.parts[-2:] == ("tu", "MUTAG")
    assert not folder.is_relative_to(home / "mine") and not any((home / "mine").iterdir())


def test_a_missing_set_is_named_with_the_place_and_the_way(home):
    error = missing("TOY", Path("somewhere/TOY"), "Run this to get it.")
    for part in ("TOY", "somewhere/TOY", "Run this to get it.", "ETLIB_DATA", str(data_root())):
        assert part in str(error)
