"""A reserve file sets space aside and gives it back."""

import os

from shoal.core.disk.reserve import Reserve

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
    assert not (tmp_path / "reserve").exists()
    assert not reserve.shrink(1)


def test_what_is_left_of_a_reserve_stays_when_there_is_no_room_for_the_rest(tmp_path, monkeypatch):
    reserve = Reserve(tmp_path / "reserve", SIZE)
    reserve.allocate()
    reserve.shrink(SIZE // 2)

    def full(descriptor, _offset, size):
        os.ftruncate(descriptor, size)  # as some file systems do before they fail
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert not reserve.allocate()
    assert (tmp_path / "reserve").stat().st_size == SIZE // 2


def test_a_directory_that_is_missing_is_survived(tmp_path, caplog):
    reserve = Reserve(tmp_path / "missing" / "reserve", SIZE)
    assert reserve.allocate()
    assert reserve.allocate()
    assert not reserve.is_allocated
    assert caplog.text.count("cannot be made") == 1
    assert not reserve.release()


def test_it_is_given_back_in_parts_and_taken_again(tmp_path):
    reserve = Reserve(tmp_path / "reserve", SIZE)
    assert not reserve.shrink(SIZE)
    reserve.allocate()
    assert reserve.shrink(SIZE // 2)
    assert (tmp_path / "reserve").stat().st_size == SIZE // 2
    assert not reserve.is_allocated
    assert reserve.shrink(SIZE)
    assert not reserve.shrink(SIZE)
    assert reserve.allocate()
    assert reserve.is_allocated


def test_a_file_with_holes_is_no_reserve(tmp_path):
    with (tmp_path / "reserve").open("wb") as file:
        file.truncate(SIZE)
    reserve = Reserve(tmp_path / "reserve", SIZE)
    assert not reserve.is_allocated
    assert reserve.allocate()
