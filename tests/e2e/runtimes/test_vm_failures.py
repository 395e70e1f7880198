"""Each sentence by which a failed start of QEMU is judged, provoked on a real QEMU."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from shoal.model.workloads import FailureReason
from shoal.runtimes.vm.failures import SENTENCES, start_failure
from tests.services.guests import find_guests

pytestmark = pytest.mark.e2e

QEMU = ("qemu-system-x86_64", "-machine", "q35", "-accel", "tcg", "-nodefaults", "-display", "none", "-S")
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
Provoke = Callable[[Path], AbstractContextManager[list[str]]]


def disk(path: Path, *options: str, kind: str = "qcow2") -> list[str]:
    return ["-drive", ",".join(["if=none", "id=d", f"file={path}", f"format={kind}", *options])]


def new_disk(folder: Path) -> Path:
    path = folder / "disk.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", path, "1M"], check=True, timeout=60)
    return path


@contextlib.contextmanager
def port_is_taken(_folder: Path) -> Iterator[list[str]]:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        yield ["-netdev", f"user,id=n,hostfwd=tcp::{taken.getsockname()[1]}-:22"]


@contextlib.contextmanager
def tap_is_taken(_folder: Path) -> Iterator[list[str]]:
    name = f"shoalt{os.getpid()}"
    tap = os.open("/dev/net/tun", os.O_RDWR)
    try:
        fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
        yield ["-netdev", f"tap,id=n,ifname={name},script=no,downscript=no"]
    finally:
        os.close(tap)


@contextlib.contextmanager
def script_fails(folder: Path) -> Iterator[list[str]]:
    script = folder / "script"
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    yield ["-netdev", f"tap,id=n,ifname=shoals{os.getpid()},script={script},downscript=no"]


@contextlib.contextmanager
def disk_is_used(folder: Path, *options: str) -> Iterator[list[str]]:
    path = new_disk(folder)
    holds = ["-chardev", f"socket,id=m,path={folder}/m.sock,server=on,wait=off", "-mon", "chardev=m,mode=control"]
    with subprocess.Popen([*QEMU, *disk(path), *holds], stderr=subprocess.PIPE) as holder:
        try:
            with socket.socket(socket.AF_UNIX) as monitor:
                monitor.settimeout(60)
                while holder.poll() is None:  # it answers once it has opened its disks
                    with contextlib.suppress(OSError):
                        monitor.connect(f"{folder}/m.sock")
                        assert monitor.recv(1000)
                        break
            assert holder.poll() is None
            yield disk(path, *options)
        finally:
            holder.kill()


@contextlib.contextmanager
def kernel(folder: Path, *, name: str) -> Iterator[list[str]]:
    yield ["-kernel", str(folder / name)]


@contextlib.contextmanager
def initrd(folder: Path, *, size: int | None = None) -> Iterator[list[str]]:
    path = folder / "initrd"
    if size is not None:
        path.touch()
        os.truncate(path, size)
    yield ["-kernel", find_guests().kernel, "-initrd", str(path)]


@contextlib.contextmanager
def given(folder: Path, *arguments: str) -> Iterator[list[str]]:
    yield [each.format(folder=folder) for each in arguments]


@contextlib.contextmanager
def no_qcow2(folder: Path) -> Iterator[list[str]]:
    path = folder / "junk"
    path.write_bytes(b"no image" * 1000)
    yield disk(path)


@contextlib.contextmanager
def marked_as_corrupt(folder: Path) -> Iterator[list[str]]:
    path = new_disk(folder)
    with path.open("r+b") as image:  # an incompatible feature of the header: the corrupt bit
        image.seek(72)
        image.write((2).to_bytes(8, "big"))
    yield disk(path)


PROVOKED: dict[str, Provoke] = {
    r"Could not set up host forwarding rule": port_is_taken,
    r"could not configure /dev/net/tun": tap_is_taken,
    r"network script .* failed with status": script_fails,
    r"Failed to get \"write\" lock": disk_is_used,
    r"Failed to get shared \"write\" lock": lambda folder: disk_is_used(folder, "readonly=on"),
    r"cannot set up guest memory": lambda folder: given(folder, "-m", "999999999"),
    r"could not open kernel file": lambda folder: kernel(folder, name="nowhere"),
    r"could not load kernel": lambda folder: kernel(folder, name="."),
    r"error reading initrd": initrd,
    r"initrd is too large": lambda folder: initrd(folder, size=300 << 20),
    r"Could not open '": lambda folder: given(folder, *disk(folder / "nowhere")),
    r"Image is not in qcow2 format": no_qcow2,
    r"Image is corrupt": marked_as_corrupt,
    r"Invalid SMP CPUs": lambda folder: given(folder, "-smp", "1024"),
}


def run_qemu(arguments: list[str]) -> str:
    """What QEMU prints before it ends by itself."""
    memory = () if "-m" in arguments else ("-m", "64")
    done = subprocess.run([*QEMU, *memory, *arguments], capture_output=True, timeout=60, check=False)
    assert done.returncode == 1, done
    return done.stderr.decode()


@pytest.mark.parametrize("sentence", PROVOKED)
def test_a_sentence_is_what_qemu_says(sentence: str, tmp_path: Path) -> None:
    find_guests()
    (failure, transient), *more = [each[1:] for each in SENTENCES if each[0] == sentence]
    assert not more
    with PROVOKED[sentence](tmp_path) as arguments:
        printed = run_qemu(arguments)
    assert re.search(sentence, printed), printed
    error = start_failure(printed)
    assert (error.failure, error.transient) == (failure, transient)


def test_no_sentence_is_from_memory() -> None:
    assert [sentence for sentence, *_ in SENTENCES if sentence not in PROVOKED] == []


def test_other_words_of_qemu_are_a_runtime_error_that_may_go_away() -> None:
    find_guests()
    error = start_failure(run_qemu(["-device", "no-such-device"]))
    assert (error.failure, error.transient) == (FailureReason.RUNTIME_ERROR, True)
    assert "no-such-device" in error.message
