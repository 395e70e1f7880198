"""A container engine for tests: a Podman of its own, with its own storage, and one small image made from busybox.

Nothing is shared with an engine of the machine, and nothing is left when the session ends. Needs root and the Debian
packages podman, runc, netavark, iptables and busybox-static; where they are missing the tests that need it are skipped
with their names, and with CI=true they fail.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.runtimes.container.engine.podman_settings import service_settings
from tests.services.absence import do_without
from tests.services.leftovers import directory_of_run, network_lock

PACKAGES = {"podman": "podman", "runc": "runc", "iptables": "iptables", "busybox": "busybox-static"}
IMAGE = "localhost/shoal-test:1"
#: What the name server of all engines on a machine knows, a file for each network.
_NAMES = Path("/run/containers/networks/aardvark-dns")
#: A name server that is older has said who it is.
_STARTING_SECONDS = 5.0


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
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(directory_of_run("podman"))
        engine = Engine(folder)
        if size:
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={size}", "shoal-test", str(folder)], check=True, timeout=60
            )
        registries = folder / "registries.conf"
        registries.write_text("".join(f'[[registry]]\nlocation = "{each}"\ninsecure = true\n' for each in insecure))
        stack.enter_context(_environment("CONTAINERS_REGISTRIES_CONF", str(registries)))
        stack.enter_context(_own_network(folder))
        # With its settings: without them it does not find its networks, and leaves their name server running.
        stack.callback(_reset, engine)
        engine.podman("import", "-", IMAGE, given=root_file_system())
        yield engine


@contextlib.contextmanager
def engine_service(engine: Engine, *, port: int = 0) -> Iterator[str]:
    """The API of an engine, at a port or on a unix socket, until the end of the block: its address."""
    address = f"tcp://127.0.0.1:{port}" if port else f"unix://{engine.folder}/api.sock"
    command = ["podman", *engine.arguments, "system", "service", "--time", "0", address]
    settings = engine.folder / "api.conf"
    settings.write_text(service_settings(os.environ))
    env = {**os.environ, "CONTAINERS_CONF": str(settings)}
    with (engine.folder / "api.log").open("wb") as log:
        service = subprocess.Popen(command, stdout=log, stderr=log, cwd=engine.folder, start_new_session=True, env=env)
    try:
        deadline = time.monotonic() + 60
        while not _listens(engine, port):
            assert service.poll() is None, (engine.folder / "api.log").read_text()
            assert time.monotonic() < deadline, "the API of Podman does not come up"
            time.sleep(0.05)
        yield address
    finally:
        service.terminate()
        service.wait(timeout=60)


def _listens(engine: Engine, port: int) -> bool:
    if not port:
        return (engine.folder / "api.sock").exists()
    with socket.socket() as link:
        return link.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def _own_network(folder: Path) -> Iterator[None]:
    """A network of the engine's own: its name, its bridge and its addresses. Others may run at the same time, and the
    rules of all of them in the machine's firewall go by the names of networks.
    """
    with contextlib.ExitStack() as stack:
        for number in range(100):
            lock = stack.enter_context(network_lock(number).open("w"))
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
        name = f"shoaltest{number}"
        networks = folder / "networks"
        networks.mkdir()
        settings = folder / "containers.conf"
        settings.write_text(
            f'[network]\nnetwork_backend = "netavark"\nnetwork_config_dir = "{networks}"\ndefault_network = "{name}"\n'
            f'default_subnet_pools = [{{"base" = "10.{100 + number}.128.0/17", "size" = 24}}]\n'
        )
        default = {
            "name": name,
            "id": hashlib.sha256(name.encode()).hexdigest(),
            "driver": "bridge",
            "network_interface": name,
            "created": "2026-01-01T00:00:00Z",
            "subnets": [{"subnet": f"10.{100 + number}.0.0/24", "gateway": f"10.{100 + number}.0.1"}],
            "ipv6_enabled": False,
            "internal": False,
            "dns_enabled": False,
            "ipam_options": {"driver": "host-local"},
        }
        (networks / f"{name}.json").write_text(json.dumps(default))
        _forget_names(f"10.{100 + number}.")  # of a killed session
        stack.callback(_forget_names, f"10.{100 + number}.")
        with _environment("CONTAINERS_CONF", str(settings)):
            yield


def _forget_names(addresses: str) -> None:
    """Have the name server forget the networks with these addresses. All engines of a machine share one, and it runs
    as long as it knows a network.
    """
    try:
        for entry in _NAMES.iterdir():
            if entry.name != "aardvark.pid" and entry.read_text().startswith(addresses):
                entry.unlink()
        known = int((_NAMES / "aardvark.pid").read_text())
        os.kill(known, signal.SIGHUP)
    except (OSError, ValueError):
        known = 0  # there is none, or it ends at this moment
    _end_lost_name_servers(known)


def _end_lost_name_servers(known: int) -> None:
    """End name servers that nobody knows: two engines that start one at the same time know only the second."""
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != known:
            with contextlib.suppress(OSError, ValueError):
                is_one = f"/aardvark-dns\0--config\0{_NAMES}\0".encode() in (entry / "cmdline").read_bytes()
                ticks = int((entry / "stat").read_text().rpartition(")")[2].split()[19])
                if is_one and now - ticks / os.sysconf("SC_CLK_TCK") > _STARTING_SECONDS:
                    os.kill(int(entry.name), signal.SIGTERM)


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


def _reset(engine: Engine) -> None:
    for words in (("rm", "--all", "--force", "--time", "0"), ("system", "reset", "--force")):
        subprocess.run(["podman", *engine.arguments, *words], capture_output=True, check=False, timeout=60)


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
