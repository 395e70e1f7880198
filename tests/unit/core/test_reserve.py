"""A reserve file sets space aside and gives it back."""

import os

from shoal.core.reserve import Reserve

SIZE = 1 << 20


def test_space_is_set_aside_and_given_back(tmp_path):
    reserve = Reserve(tmp_path / "reserve", SIZE)
    assert not reserve.is_allocated
    assert reserve.allocate()
    assert reserve.allocate()
    assert reserve.is_allocated
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= SIZE
    assert reserve.release()
    assert not reserve.is_allocated
    assert not reserve.release()


def test_a_reserve_that_does_not_fit_takes_nothing(tmp_path, monkeypatch):
    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    reserve = Reserve(tmp_path / "reserve", SIZE)
    assert not reserve.allocate()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_missing_is_survived(tmp_path, caplog):
    reserve = Reserve(tmp_path / "missing" / "reserve", SIZE)
    assert reserve.allocate()
    assert reserve.allocate()
    assert not reserve.is_allocated
    assert caplog.text.count("cannot be made") == 1
    assert not reserve.release()


def test_a_file_with_holes_is_no_reserve(tmp_path):
    with (tmp_path / "reserve").open("wb") as file:
        file.truncate(SIZE)
    reserve = Reserve(tmp_path / "reserve", SIZE)
    assert not reserve.is_allocated
    assert reserve.allocate()
