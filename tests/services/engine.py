"""A container engine for tests: a Podman of its own, with its own storage, and one small image made from busybox.

Nothing is shared with an engine of the machine, and nothing is left when the session ends. Needs root and the Debian
packages podman, runc, netavark, iptables and busybox-static; where they are missing the tests that need it are skipped
with their names, and with CI=true they fail.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.services.absence import do_without

PACKAGES = {"podman": "podman", "runc": "runc", "iptables": "iptables", "busybox": "busybox-static"}
IMAGE = "localhost/shoal-test:1"


@dataclass(frozen=True, slots=True)
class Engine:
    """A private Podman: where it keeps things, and how it is called."""

    folder: Path

    @property
    def arguments(self) -> tuple[str, ...]:
        """What keeps it apart from others on this machine."""
        return (
            *("--root", str(self.folder / "root"), "--runroot", str(self.folder / "run")),
            *("--tmpdir", str(self.folder / "tmp"), "--runtime", "runc", "--cgroup-manager", "cgroupfs"),
        )

    def podman(self, *words: str, given: bytes | None = None) -> str:
        """Run one podman command."""
        done = subprocess.run(
            ["podman", *self.arguments, *words], input=given, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return done.stdout.decode()

    def containers(self) -> list[str]:
        """The names of all containers."""
        return self.podman("ps", "--all", "--format", "{{.Names}}").split()


@contextlib.contextmanager
def private_engine(*, insecure: tuple[str, ...] = (), size: str = "") -> Iterator[Engine]:
    """An engine with the test image, until the end of the block.

    `insecure` are registries that are spoken to over HTTP. With a `size`, such as 16m, its disk has that size.
    """
    missing = [package for program, package in PACKAGES.items() if shutil.which(program) is None]
    if os.geteuid() != 0:
        do_without("containers are tested as root")
    if missing:
        do_without(f"not installed: {', '.join(missing)} (on Debian: apt-get install {' '.join(missing)})")
    # Short: the paths of sockets below it must fit.
    folder = Path(tempfile.mkdtemp(prefix="shoal-podman-", dir="/var/tmp"))
    engine = Engine(folder)
    if size:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "shoal-test", str(folder)], check=True, timeout=60
        )
    with contextlib.ExitStack() as stack:
        stack.callback(_remove_engine, engine)
        registries = folder / "registries.conf"
        registries.write_text("".join(f'[[registry]]\nlocation = "{each}"\ninsecure = true\n' for each in insecure))
        stack.enter_context(_environment("CONTAINERS_REGISTRIES_CONF", str(registries)))
        stack.enter_context(_own_network(folder))
        engine.podman("import", "-", IMAGE, given=root_file_system())
        yield engine


@contextlib.contextmanager
def engine_service(engine: Engine) -> Iterator[str]:
    """The API of an engine, until the end of the block: its address."""
    path = engine.folder / "api.sock"
    command = ["podman", *engine.arguments, "system", "service", "--time", "0", f"unix://{path}"]
    with (engine.folder / "api.log").open("wb") as log:
        service = subprocess.Popen(command, stdout=log, stderr=log, cwd=engine.folder, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while not path.exists():
            assert service.poll() is None, (engine.folder / "api.log").read_text()
            assert time.monotonic() < deadline, "the API of Podman does not come up"
            time.sleep(0.05)
        yield f"unix://{path}"
    finally:
        service.terminate()
        service.wait(timeout=60)


@contextlib.contextmanager
def _own_network(folder: Path) -> Iterator[None]:
    """A bridge and addresses of the engine's own: others may run at the same time."""
    with contextlib.ExitStack() as stack:
        for number in range(100):
            lock = stack.enter_context(Path(f"/var/tmp/shoal-test-network-{number}").open("w"))
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
        networks = folder / "networks"
        networks.mkdir()
        settings = folder / "containers.conf"
        settings.write_text(
            f'[network]\nnetwork_backend = "netavark"\nnetwork_config_dir = "{networks}"\n'
            f'default_subnet_pools = [{{"base" = "10.{100 + number}.128.0/17", "size" = 24}}]\n'
        )
        default = {
            "name": "podman",
            "id": "2f259bab93aaaaa2542ba43ef33eb990d0999ee1b9924b557b7be53c0b7a1bb9",
            "driver": "bridge",
            "network_interface": f"shoaltest{number}",
            "created": "2026-01-01T00:00:00Z",
            "subnets": [{"subnet": f"10.{100 + number}.0.0/24", "gateway": f"10.{100 + number}.0.1"}],
            "ipv6_enabled": False,
            "internal": False,
            "dns_enabled": False,
            "ipam_options": {"driver": "host-local"},
        }
        (networks / "podman.json").write_text(json.dumps(default))
        with _environment("CONTAINERS_CONF", str(settings)):
            yield


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """A variable until the end of the block: for every podman that is called."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def _remove_engine(engine: Engine) -> None:
    for words in (("rm", "--all", "--force", "--time", "0"), ("system", "reset", "--force")):
        subprocess.run(["podman", *engine.arguments, *words], capture_output=True, check=False, timeout=60)
    with contextlib.suppress(OSError):
        for mount in mounts_in(engine.folder):
            subprocess.run(["umount", "-l", mount], capture_output=True, check=False, timeout=60)
    shutil.rmtree(engine.folder, ignore_errors=True)


def root_file_system() -> bytes:
    """A tar archive with a busybox and all of its names."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        for name in ("bin", "etc", "proc", "sys", "dev", "tmp"):
            (root / name).mkdir()
        shutil.copy(shutil.which("busybox") or "", root / "bin/busybox")
        names = subprocess.run([str(root / "bin/busybox"), "--list"], capture_output=True, check=True, text=True)
        for name in names.stdout.split():
            if name != "busybox":
                (root / "bin" / name).symlink_to("busybox")
        (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")
        archive = root / "root.tar"
        with tarfile.open(archive, "w") as tar:
            for name in ("bin", "etc", "proc", "sys", "dev", "tmp"):
                tar.add(root / name, arcname=name)
        return archive.read_bytes()


def mounts_in(folder: Path) -> list[str]:
    """What is mounted at a directory and below it, the innermost first."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in reversed(points) if point == str(folder) or point.startswith(f"{folder}/")]
