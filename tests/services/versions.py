"""What earlier versions wrote and sent, as `scripts/record_version.py` recorded it."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.message import Message

from shoal.control.store.migrate import find_migrations

VERSIONS = Path(__file__).resolve().parent.parent / "golden" / "versions"


@dataclass(frozen=True, slots=True)
class RecordedMessage:
    """One message as it went over the wire."""

    method: str
    side: str
    name: str
    data: bytes
    means: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RecordedVersion:
    """One folder."""

    folder: Path

    def __str__(self) -> str:
        return f"version-{self.folder.name}"

    @property
    def numbers(self) -> dict[str, Any]:
        return json.loads(self._text("version.json"))

    def picture(self, dialect: str) -> dict[str, Any]:
        """What a client read from the control plane just before it was dumped."""
        return json.loads(self._text(f"control.{dialect}.json"))

    def restore_control(self, path: Path) -> None:
        """Make the control plane's SQLite file."""
        self._restore(path, "control.sqlite.sql")

    def restore_agent(self, path: Path) -> None:
        """Make an agent's file."""
        self._restore(path, "agent.sqlite.sql")

    def restore_postgres(self, url: str) -> None:
        """Fill an empty PostgreSQL database."""
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(self._text("control.postgresql.sql"))

    def messages(self) -> Iterator[RecordedMessage]:
        """Everything that went over the wire."""
        for path in sorted((self.folder / "messages").glob("*.jsonl")):
            for line in path.read_text(encoding="utf-8").splitlines():
                given = json.loads(line)
                data = bytes.fromhex(given["bytes"])
                yield RecordedMessage(path.stem, given["side"], given["message"], data, given["means"])

    def contract(self) -> descriptor_pb2.FileDescriptorSet:
        """The protos as that version knew them."""
        return text_format.Parse(self._text("contract.textproto"), descriptor_pb2.FileDescriptorSet())

    def message_class(self, name: str) -> type[Message]:
        """A message class as that version had it, generated anew from its contract."""
        return message_factory.GetMessageClass(self.pool().FindMessageTypeByName(name))

    def pool(self) -> descriptor_pool.DescriptorPool:
        """That version's messages, apart from ours."""
        pool = _POOLS.get(self.folder)
        if pool is None:
            pool = _POOLS[self.folder] = descriptor_pool.DescriptorPool()
            for module in (any_pb2, timestamp_pb2, wrappers_pb2):
                known = descriptor_pb2.FileDescriptorProto()
                module.DESCRIPTOR.CopyToProto(known)
                pool.Add(known)
            for file in self.contract().file:
                pool.Add(file)
        return pool

    def _restore(self, path: Path, name: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.executescript(self._text(name))

    def _text(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")


_POOLS: dict[Path, descriptor_pool.DescriptorPool] = {}


def recorded_versions() -> list[RecordedVersion]:
    """Every version there is a recording of, oldest first."""
    return [RecordedVersion(path) for path in sorted(VERSIONS.iterdir(), key=lambda path: int(path.name))]


def version_before() -> RecordedVersion:
    """The newest recorded version whose formats are older than this program's: what it is upgraded from."""
    now = len(find_migrations("sqlite"))
    return [each for each in recorded_versions() if each.numbers["format"] < now][-1]
