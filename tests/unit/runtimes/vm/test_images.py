"""The cache of base images: what is under a hash has that hash, whatever became of the fetches before."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

from shoal.runtimes.vm.images import ImageCache

_BLOCK = 64 * 1024


def _image(folder: Path, letter: bytes) -> tuple[Path, str]:
    path = folder / f"{letter.decode()}.img"
    path.write_bytes(letter * _BLOCK)
    return path, hashlib.sha256(letter * _BLOCK).hexdigest()


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def test_a_canceled_fetch_cannot_touch_the_image_that_its_retry_fetches(tmp_path: Path) -> None:
    image, sha256 = _image(tmp_path, b"a")
    slow = tmp_path / "slow"
    os.mkfifo(slow)
    folder = tmp_path / "images"
    cache = ImageCache(folder, limit_bytes=1 << 30)
    first = asyncio.create_task(cache.find(str(slow), sha256))
    # The pipe can be opened once the fetch reads from it: its own file is open by then.
    pipe = await asyncio.to_thread(slow.open, "wb")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first

    cached = await cache.find(str(image), sha256)
    pipe.write(b"something else")
    pipe.close()
    await asyncio.get_running_loop().shutdown_default_executor()  # the thread of the first fetch has ended

    assert cached.read_bytes() == image.read_bytes()
    assert _names(folder) == {sha256}


async def test_a_canceled_fetch_stops_although_its_content_is_right(tmp_path: Path) -> None:
    image, sha256 = _image(tmp_path, b"a")
    slow = tmp_path / "slow"
    os.mkfifo(slow)
    folder = tmp_path / "images"
    fetch = asyncio.create_task(ImageCache(folder, limit_bytes=1 << 30).find(str(slow), sha256))
    pipe = await asyncio.to_thread(slow.open, "wb")
    fetch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetch

    pipe.write(image.read_bytes())
    pipe.close()
    await asyncio.get_running_loop().shutdown_default_executor()

    assert _names(folder) == set()


async def test_what_a_killed_agent_left_half_fetched_makes_room(tmp_path: Path) -> None:
    image, sha256 = _image(tmp_path, b"a")
    folder = tmp_path / "images"
    folder.mkdir()
    kept = folder / ("0" * 64)
    kept.write_bytes(b"0" * _BLOCK)
    (folder / f".{'1' * 64}.part").write_bytes(b"1" * 4 * _BLOCK)

    await ImageCache(folder, limit_bytes=3 * _BLOCK).find(str(image.as_uri()), sha256)

    assert _names(folder) == {kept.name, sha256}


async def test_an_image_that_is_being_fetched_counts_and_stays(tmp_path: Path) -> None:
    image, sha256 = _image(tmp_path, b"a")
    other, other_sha256 = _image(tmp_path, b"b")
    slow = tmp_path / "slow"
    os.mkfifo(slow)
    folder = tmp_path / "images"
    cache = ImageCache(folder, limit_bytes=4 * _BLOCK)
    fetch = asyncio.create_task(cache.find(str(slow), sha256))
    pipe = await asyncio.to_thread(slow.open, "wb")

    await cache.find(str(other), other_sha256)
    pipe.write(image.read_bytes())
    pipe.close()

    assert (await fetch).read_bytes() == image.read_bytes()
    assert _names(folder) == {sha256, other_sha256}
