"""A private PostgreSQL for the areas that need one: on 127.0.0.1 and a free port, its data in a temporary directory."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.cli.local.children import free_port
from shoal.core.errors import UnavailableError

_STARTS_WITHIN = 60.0
_STOPS_WITHIN = 30.0


def find_programs() -> Path | None:
    """The directory with `initdb` and `postgres`, the newest version first; None where they cannot be run."""
    if os.geteuid() == 0 and not any(account.pw_name == "postgres" for account in pwd.getpwall()):
        return None  # it refuses to run as root, and there is nobody else
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    on_path = shutil.which("initdb")
    candidates = [*debian, *([Path(on_path).resolve().parent] if on_path else [])]
    return next((path for path in candidates if (path / "initdb").exists() and (path / "postgres").exists()), None)


@contextlib.contextmanager
def running(programs: Path) -> Iterator[str]:
    """A server for the length of a block; its only database, as a URL."""
    # It refuses to run as root; then it runs as the user that the package made, who has to be able to enter.
    account = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
    identity: dict[str, Any] = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if account else {}
    with tempfile.TemporaryDirectory(prefix="shoal-bench-postgres-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        if account:
            os.chown(home, account.pw_uid, account.pw_gid)
        data = str(home / "data")
        make = [str(programs / "initdb"), "-D", data, "-A", "trust", "-U", "shoal", "-E", "UTF8", "--no-locale"]
        subprocess.run(make, check=True, capture_output=True, cwd=home, **identity)
        port = free_port()
        command = [str(programs / "postgres"), "-D", data, "-p", str(port), "-k", folder, "-h", "127.0.0.1"]
        with (home / "log").open("wb") as log:
            process: subprocess.Popen[bytes] = subprocess.Popen(command, stdout=log, stderr=log, cwd=home, **identity)
        try:
            _wait_until_it_answers(programs, port, process, home / "log")
            yield f"postgresql://shoal@127.0.0.1:{port}/postgres"
        finally:
            process.send_signal(signal.SIGINT)  # "fast": connections are ended, nothing is lost
            process.wait(_STOPS_WITHIN)


def _wait_until_it_answers(programs: Path, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _STARTS_WITHIN
    ask = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    while subprocess.run(ask, check=False).returncode:
        if process.poll() is not None or time.monotonic() > deadline:
            raise UnavailableError(f"PostgreSQL did not start: {log.read_text(errors='replace')[-500:]}")
        time.sleep(0.05)
