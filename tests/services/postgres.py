"""A private PostgreSQL for the tests, on 127.0.0.1 and a free port, with its data in a temporary directory.

`SHOAL_TEST_POSTGRES` names a server to use instead, as a URL of a user that may create databases. Where neither
that nor Debian's `postgresql` is to be had, the tests that need one are skipped with the name of the package; with
CI=true they fail.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import psycopg
import pytest
from psycopg import sql

from shoal.cli.local.children import free_port
from tests.services import absence

ENVIRONMENT = "SHOAL_TEST_POSTGRES"
PACKAGE = "postgresql"

_START_SECONDS = 60.0
_STOP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """A server that answers.

    Attributes:
        url: without a database.
        pid: of the server; None when it is not ours.
        data_dir: its directory; None when it is not ours.
    """

    url: str
    pid: int | None = None
    data_dir: Path | None = None

    def database_url(self, database: str) -> str:
        """How to reach one database."""
        return f"{self.url}/{database}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for all tests."""
    given = os.environ.get(ENVIRONMENT)
    if given:
        yield PostgresServer(url=given.rstrip("/"))
        return
    programs = find_programs()
    if programs is None:
        do_without()
    with _running(programs) as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of a database that is empty and this test's own."""
    database = f"test_{uuid.uuid4().hex}"
    _administer(postgres_server, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
    yield postgres_server.database_url(database)
    _administer(postgres_server, sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database)))


def _administer(server: PostgresServer, statement: sql.Composed) -> None:
    with psycopg.connect(server.database_url("postgres"), autocommit=True, connect_timeout=10) as connection:
        connection.execute(statement)


def do_without() -> NoReturn:
    """Skip the test, or fail it in CI, with the name of what is missing."""
    words = f"PostgreSQL is not installed: apt-get install {PACKAGE}, or set {ENVIRONMENT} to the URL of a server"
    absence.do_without(words)


def find_programs() -> Path | None:
    """The directory with initdb and postgres, newest version first."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    on_path = shutil.which("initdb")
    candidates = [*debian, *([Path(on_path).resolve().parent] if on_path else [])]
    if os.geteuid() == 0 and not any(account.pw_name == "postgres" for account in pwd.getpwall()):
        return None  # it refuses to run as root, and there is nobody else
    return next((path for path in candidates if (path / "initdb").exists() and (path / "postgres").exists()), None)


@contextlib.contextmanager
def _running(programs: Path) -> Iterator[PostgresServer]:
    # It refuses to run as root; then it runs as the user that the package made, who has to be able to enter.
    account = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
    identity = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if account else {}
    home = Path(tempfile.mkdtemp(prefix="shoal-postgres-"))
    try:
        if account:
            os.chown(home, account.pw_uid, account.pw_gid)
        data, log = home / "data", home / "log"
        subprocess.run(
            [programs / "initdb", "-D", data, "-A", "trust", "-U", "shoal", "-E", "UTF8", "--no-locale"],
            check=True,
            capture_output=True,
            cwd=home,
            **identity,
        )
        port = free_port()
        command = [programs / "postgres", "-D", data, "-p", str(port), "-k", home, "-h", "127.0.0.1"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "-c", "max_connections=200"], stdout=output, stderr=subprocess.STDOUT, cwd=home, **identity
            )
        server = PostgresServer(url=f"postgresql://shoal@127.0.0.1:{port}", pid=process.pid, data_dir=data)
        try:
            _wait_until_it_answers(server, process, log)
            yield server
        finally:
            _stop(process)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _wait_until_it_answers(server: PostgresServer, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            psycopg.connect(server.database_url("postgres"), connect_timeout=5).close()
            return
        except psycopg.OperationalError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                words = f"PostgreSQL did not start: {error}\n{log.read_text(errors='replace')[-2000:]}"
                raise RuntimeError(words) from error
            time.sleep(0.05)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End it by its own process id: ask, and after a while do not ask."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)  # "fast": connections are ended, nothing is lost
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGQUIT)  # "immediate"; its own children see to it that they end, too
        process.wait(_STOP_SECONDS)
