"""The store of blobs: whole or absent, bounded, collected; on a disk and on an object store."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.artifacts.store import CHUNK, ArtifactStore, StoreLimits
from shoal.core import files
from shoal.core.entropy import SystemEntropy
from shoal.core.errors import DamagedError, ExhaustedError, InvalidError, NotFoundError, ShoalError
from shoal.testing.disks import DiskCall, faulty_disk

LIMITS = StoreLimits(most_blob=2000, most_total=3000, keep_unreferenced=10.0)


@pytest.fixture(params=["disk", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "blobs") if request.param == "disk" else f"memory://{SystemEntropy().token(12)}"
    yield path
    if request.param == "memory" and files.exists(path):
        files.remove(path, recursive=True)


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def put(store: ArtifactStore, content: bytes, *, step: int = 700) -> str:
    digest = digest_of(content)
    upload = store.upload(digest, len(content))
    if upload is not None:
        with upload:
            for start in range(0, len(content), step):
                upload.write(content[start : start + step])
            upload.finish()
    return digest


def test_what_was_put_is_read_and_outlives_the_store(root: str) -> None:
    content = bytes(range(256)) * 5
    digest = put(ArtifactStore(root, LIMITS), content)
    store = ArtifactStore(root, LIMITS)
    assert digest in store
    assert b"".join(store.read(digest)) == content
    assert store.total == len(content)
    assert store.upload(digest, len(content)) is None, "a second upload is not needed"
    put(store, b"")
    with pytest.raises(NotFoundError):
        list(store.read(digest_of(b"another")))


def test_a_large_blob_is_read_in_chunks(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path))
    digest = put(store, bytes(CHUNK * 2 + 1), step=CHUNK)
    assert [len(each) for each in store.read(digest)] == [CHUNK, CHUNK, 1]


@pytest.mark.parametrize(
    ("announced", "sent", "match"),
    [
        (b"right", b"wrong", "sha256"),
        (b"right", b"righ", "size"),
        (b"right", b"right and more", "size"),
    ],
    ids=["hash", "short", "long"],
)
def test_what_is_not_as_announced_changes_nothing(root: str, announced: bytes, sent: bytes, match: str) -> None:
    store = ArtifactStore(root, LIMITS)
    with pytest.raises(InvalidError, match=match):
        _send(store, announced, sent)
    assert digest_of(announced) not in store
    assert files.list_files(root) == ()
    assert ArtifactStore(root, LIMITS).total == store.total == 0
    put(store, announced)


def _send(store: ArtifactStore, announced: bytes, sent: bytes) -> None:
    upload = store.upload(digest_of(announced), len(announced))
    assert upload is not None
    with upload:
        upload.write(sent)
        upload.finish()


def test_a_half_upload_is_never_visible(root: str) -> None:
    store = ArtifactStore(root, LIMITS)
    upload = store.upload(digest_of(b"content"), 7)
    assert upload is not None
    with upload:
        upload.write(b"cont")
        assert digest_of(b"content") not in store
        assert ArtifactStore(root, LIMITS).total == 0
    assert files.list_files(root) == ()
    put(store, b"content")


def test_two_uploads_of_the_same_blob_are_one(root: str) -> None:
    store = ArtifactStore(root, LIMITS)
    one, two = (store.upload(digest_of(b"same"), 4) for _ in range(2))
    assert one is not None
    assert two is not None
    for upload in (one, two):
        with upload:
            upload.write(b"same")
            upload.finish()
    assert store.total == 4
    assert b"".join(store.read(digest_of(b"same"))) == b"same"


def test_the_store_is_bounded_and_uploads_under_way_count(root: str) -> None:
    store = ArtifactStore(root, LIMITS)
    with pytest.raises(ExhaustedError, match="at most 2,000 bytes"):
        store.upload(digest_of(b""), 2001)
    with pytest.raises(ExhaustedError):
        store.upload(digest_of(b""), -1)
    first = store.upload(digest_of(b"1"), 2000)
    assert first is not None
    with pytest.raises(ExhaustedError, match="no room for 1,001 more"):
        store.upload(digest_of(b"2"), 1001)
    with first:
        pass  # given up
    put(store, b"x" * 2000)
    put(store, b"y" * 1000)
    with pytest.raises(ExhaustedError):
        put(store, b"z")
    for wrong in ("", "x" * 64, "../" + "a" * 61, "A" * 64):
        with pytest.raises(InvalidError, match="hexadecimal"):
            store.upload(wrong, 1)
        with pytest.raises(InvalidError, match="hexadecimal"):
            list(store.read(wrong))


def test_what_nothing_refers_to_goes_after_a_while(root: str) -> None:
    store = ArtifactStore(root, LIMITS)
    kept, loose, late = (put(store, content) for content in (b"kept", b"loose", b"late"))
    assert store.collect([kept, late], 100.0) == ()
    assert store.collect([kept], 109.0) == (), "its time has begun, and is not over"
    assert store.collect([kept], 110.0) == (loose,)
    assert store.upload(late, 4) is None, "somebody wants it again"
    assert store.collect([kept], 119.5) == ()
    assert store.collect([kept], 130.0) == (late,)
    assert sorted(files.name(each.path) for each in files.list_files(root)) == [kept]


def test_a_cache_makes_room_by_what_was_used_longest_ago(root: str) -> None:
    store = ArtifactStore(root, LIMITS)
    old, used, new = (put(store, bytes([number]) * 1000) for number in range(3))
    store.make_room(500, recent=[old, used, new], in_use=[old])
    assert [each in store for each in (old, used, new)] == [True, False, True]
    with pytest.raises(ExhaustedError, match="in use"):
        store.make_room(2500, recent=[], in_use=[old, new])
    assert store.total == 2000
    store.make_room(2000, recent=[new], in_use=[])
    assert [each in store for each in (old, new)] == [False, True]


@pytest.mark.parametrize("call", [DiskCall.WRITE, DiskCall.RENAME])
def test_a_full_disk_is_told_and_changes_nothing(tmp_path: Path, call: DiskCall) -> None:
    with faulty_disk(tmp_path) as disk:
        store = ArtifactStore(disk.url, LIMITS)
        before = put(store, b"before")
        disk.fail(call)
        with pytest.raises(ShoalError):
            put(store, b"content")
        disk.heal()
        assert digest_of(b"content") not in store
        assert store.total == ArtifactStore(disk.url, LIMITS).total == 6
        assert b"".join(store.read(before)) == b"before"
        put(store, b"x" * 2000)
        put(store, b"y" * 994)


def test_a_damaged_blob_is_told(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path))
    digest = put(store, b"content")
    (tmp_path / digest).write_bytes(b"c0ntent")
    with pytest.raises(DamagedError):
        list(store.read(digest))
