"""Which directories of commits are removed, and what counts as data in one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.model.workloads import FileSpec
from shoal.runtimes.compose.commits import (
    Unused,
    has_several,
    list_files,
    listing_of,
    note_use,
    remove_superfluous,
    superfluous,
)
from shoal.runtimes.compose.files import write_files


def commit(base: Path, number: int) -> Path:
    """The directory of a commit, as it is after it was fetched."""
    folder = base / f"{number:040x}"
    (folder / "conf").mkdir(parents=True)
    (folder / "conf/settings").write_text(f"number {number}\n")
    (folder / "link").symlink_to("conf")
    list_files(folder, listing_of(folder))
    os.utime(listing_of(folder), (number, number))
    return folder


def left(base: Path) -> list[int]:
    """The numbers of the commits that are left, each with its listing, and nothing else."""
    folders = sorted(each.name for each in base.iterdir() if each.is_dir())
    assert sorted(each.name for each in base.iterdir() if not each.is_dir()) == [f"{name}.files" for name in folders]
    return [int(name, 16) for name in folders]


def test_the_newest_and_four_with_data_stay() -> None:
    clean = [Unused(f"clean {number}", number, has_data=False) for number in range(3)]
    data = [Unused(f"data {number}", number, has_data=True) for number in range(6)]
    assert superfluous([*clean, *data]) == [clean[1], clean[0], data[1], data[0]]
    assert superfluous([]) == []


def test_what_is_used_stays(tmp_path: Path) -> None:
    folders = [commit(tmp_path, number) for number in range(1, 7)]
    assert has_several(tmp_path)
    remove_superfluous(tmp_path, {str(folders[0]), f"{folders[2]}/conf/settings", f"{folders[3]}-more", "", "/conf"})
    assert left(tmp_path) == [1, 3, 6]


def test_a_commit_that_is_used_again_is_new(tmp_path: Path) -> None:
    folders = [commit(tmp_path, number) for number in range(1, 4)]
    note_use(folders[0])
    remove_superfluous(tmp_path, ())
    assert left(tmp_path) == [1]
    assert not has_several(tmp_path)


@pytest.mark.parametrize("how", ["a new file", "a changed file", "a link", "a file for a directory"])
def test_what_a_service_has_written_is_data(tmp_path: Path, how: str) -> None:
    folders = [commit(tmp_path, number) for number in range(1, 8)]
    for folder in folders[:5]:
        if how == "a new file":
            (folder / "conf/more").mkdir()
            (folder / "conf/more/data").touch()
        elif how == "a changed file":
            (folder / "conf/settings").write_text("changed\n")
        elif how == "a link":
            (folder / "conf/new").symlink_to("settings")
        else:
            (folder / "link").unlink()
            (folder / "link").write_text("conf")
    remove_superfluous(tmp_path, ())
    assert left(tmp_path) == [2, 3, 4, 5, 7]


def test_removed_files_empty_directories_and_files_of_the_spec_are_no_data(tmp_path: Path) -> None:
    folders = [commit(tmp_path, number) for number in range(1, 5)]
    (folders[0] / "conf/settings").unlink()
    (folders[1] / "mount/point").mkdir(parents=True)
    write_files(folders[2], [(FileSpec(path="keys/./one"), b"secret"), (FileSpec(path="conf/settings"), b"other")])
    os.utime(listing_of(folders[2]), (3, 3))
    remove_superfluous(tmp_path, ())
    assert left(tmp_path) == [4]


def test_what_was_cut_off_is_finished(tmp_path: Path) -> None:
    one, two, _ = (commit(tmp_path, number) for number in range(1, 4))
    one.rename(tmp_path / f".doomed-{one.name}")  # removed, without an end
    two.rename(tmp_path / ".fetch")  # fetched, and not yet in its place
    remove_superfluous(tmp_path, ())
    (tmp_path / ".fetch").rename(tmp_path / two.name)
    list_files(two, listing_of(two))
    assert left(tmp_path) == [2, 3]


def test_a_damaged_listing_makes_everything_data(tmp_path: Path) -> None:
    for number in range(1, 7):
        commit(tmp_path, number)
    for number, text in enumerate(("", "[]", "\xff", '{"link": 1}'), start=1):
        listing = listing_of(tmp_path / f"{number:040x}")
        listing.write_text(text, encoding="latin-1")
        os.utime(listing, (number, number))
    remove_superfluous(tmp_path, ())
    assert left(tmp_path) == [1, 2, 3, 4, 6]


def test_directories_of_earlier_versions_stay(tmp_path: Path) -> None:
    for number in range(1, 9):
        listing_of(commit(tmp_path, number)).unlink()
    remove_superfluous(tmp_path, ())
    assert len(list(tmp_path.iterdir())) == 8
