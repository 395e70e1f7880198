from __future__ import annotations

import shutil

import pytest

from shoal.core.errors import UnavailableError
from shoal.serving.models.files import ModelFiles, find_versions, plan_copy, versions_to_remove

SUB_MODELS = ("ps_item_embedding_0", "ps_item_embedding_1")


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "p2p"
    folder.mkdir()
    return folder


@pytest.fixture
def files(tmp_path, source):
    return ModelFiles("rank", source, tmp_path / "received")


def put(source, version: int, *, model: str = "rank", done: bool = True) -> None:
    for name in SUB_MODELS:
        folder = source / f"{model}@{version}" / model / name / str(version)
        folder.mkdir(parents=True)
        (folder / "saved_model.pb").write_text(f"{name} {version}")
    if done:
        (source / f"{model}@{version}.write.done").touch()


def received(tmp_path) -> list[str]:
    return sorted(str(path.relative_to(tmp_path / "received")) for path in (tmp_path / "received").glob("*/*/*"))


@pytest.mark.parametrize(
    ("complete", "present", "chosen"),
    [([], None, None), ([9, 10], None, 10), ([9, 10], 9, 10), ([9, 10], 10, None), ([8], 9, None)],
)
def test_the_version_to_copy(complete, present, chosen):
    assert plan_copy(complete, present) == chosen


def test_only_complete_versions_of_this_very_model_count():
    names = [
        "abc@9.write.done",
        "abc@10.write.done",
        "abcd@11.write.done",
        "abc@12",
        "abc@13.read.lock",
        "abc@x.write.done",
    ]
    assert find_versions(names, "abc") == [9, 10]
    assert find_versions(["a@b@7.write.done"], "a@b") == [7]


@pytest.mark.parametrize(("present", "gone"), [([], []), ([1, 2, 3], []), ([10, 9, 8, 1, 2, 100], [1, 2])])
def test_the_versions_to_remove(present, gone):
    assert versions_to_remove(present, 4) == gone


def test_the_newest_version_is_copied_whole(tmp_path, source, files):
    put(source, 9)
    put(source, 10)
    copied = files.copy_newest()
    assert copied.version == 10
    assert received(tmp_path) == [f"rank/{name}/10" for name in SUB_MODELS]
    assert [(path / "saved_model.pb").read_text() for path in copied.paths] == [f"{name} 10" for name in SUB_MODELS]
    assert not list(source.glob("*.read.lock"))
    assert files.copy_newest() is None


def test_an_older_version_that_appears_later_is_ignored(tmp_path, source, files):
    put(source, 1234567)
    files.copy_newest()
    put(source, 1234566)
    assert files.copy_newest() is None
    assert files.present() == [1234567]


def test_an_incomplete_version_is_not_touched(source, files):
    put(source, 7, done=False)
    assert files.copy_newest() is None
    assert not list(source.glob("*.read.lock"))


def test_nothing_there_yet(tmp_path):
    assert ModelFiles("rank", tmp_path / "none", tmp_path / "received").copy_newest() is None


def test_the_lock_is_held_while_files_are_read(source, files, monkeypatch):
    put(source, 5)
    seen = []
    real = shutil.copytree

    def copy(origin, target):
        seen.append(sorted(path.name for path in source.glob("*.read.lock")))
        return real(origin, target)

    monkeypatch.setattr(shutil, "copytree", copy)
    files.copy_newest()
    assert seen == [["rank@5.read.lock"]] * 2


def test_what_a_killed_agent_left_is_replaced(tmp_path, source, files):
    put(source, 5)
    half = tmp_path / "received" / "rank" / SUB_MODELS[1] / "5-temp"
    half.mkdir(parents=True)
    (half / "rubbish").touch()
    done = tmp_path / "received" / "rank" / SUB_MODELS[0] / "5"
    done.mkdir(parents=True)
    (done / "saved_model.pb").write_text("whole")
    assert files.present() == []
    files.copy_newest()
    assert files.present() == [5]
    assert (done / "saved_model.pb").read_text() == "whole"
    assert not list((tmp_path / "received").rglob("rubbish"))


def test_a_copy_that_fails_leaves_nothing_and_is_tried_again(tmp_path, source, files, monkeypatch):
    put(source, 4)
    files.copy_newest()
    put(source, 5)
    real, calls = shutil.copytree, []

    def copy(origin, target):
        calls.append(origin)
        if len(calls) == 2:
            target.mkdir()
            raise OSError(5, "Input/output error")
        return real(origin, target)

    monkeypatch.setattr(shutil, "copytree", copy)
    with pytest.raises(UnavailableError, match="version 5 of model rank cannot be copied"):
        files.copy_newest()
    assert received(tmp_path) == [f"rank/{name}/4" for name in SUB_MODELS]
    assert not list(source.glob("*.read.lock"))
    assert files.copy_newest().version == 5


def test_a_version_without_files(source, files):
    (source / "rank@3" / "rank").mkdir(parents=True)
    (source / "rank@3.write.done").touch()
    with pytest.raises(UnavailableError, match="has no files"):
        files.copy_newest()


def test_old_versions_go(tmp_path, source):
    files = ModelFiles("rank", source, tmp_path / "received", keep=2)
    for version in (8, 9, 10, 11):
        put(source, version)
        files.copy_newest()
    assert files.remove_old() == [8, 9]
    assert files.present() == [10, 11]


def test_a_start_clears_what_was_received_and_its_own_locks(tmp_path, source, files):
    put(source, 5)
    files.copy_newest()
    for name in ("rank@5.read.lock", "rank@gone.read.lock", "other@5.read.lock", "rank@4.read.lock"):
        (source / name).touch()
    files.clear()
    assert files.present() == []
    assert sorted(path.name for path in source.glob("*.read.lock")) == ["other@5.read.lock", "rank@gone.read.lock"]


def test_a_directory_that_vanishes_while_it_is_looked_at_has_no_versions(tmp_path, source, files, monkeypatch):
    put(source, 5)
    files.copy_newest()
    there = files._sub_models()
    monkeypatch.setattr(files, "_sub_models", lambda: [*there, tmp_path / "gone"])
    assert files.present() == []
    assert files.remove_old() == []
