"""Serving agents as workloads: the group of the example, its model servers, and what the tree says of one meanwhile."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from shoal.cli.commands.common.specs import read_specs
from shoal.discovery.remote import RemoteStore
from shoal.discovery.store import NodeValue
from shoal.model.documents import GroupDocument, read_document, write_document

ENTRY, PS = "ranker-0", "ranker-ps-0"
EXAMPLE = Path(__file__).parents[3] / "examples/serving/group.yaml"
LOOPBACK = {"MY_HOST_IP": "127.0.0.1"}


def group(
    *names: str,
    grace: str = "10s",
    env: Mapping[str, str] = LOOPBACK,
    flags: tuple[str, ...] = (),
    identity: bool = True,
    **fields: object,
) -> GroupDocument:
    """The members of the example, with the fake model server."""
    (located,) = read_specs([str(EXAMPLE)])
    document = write_document(located.document)
    members = {each["id"]: each for each in document["members"]}
    for each in members.values():
        process = each["process"]
        process["command"] = [sys.executable, "-m", *process["command"], "--drain", "0s", *flags]
        model_server = f"{sys.executable} -m shoal.testing.model_server"
        process["env"] = {"MONOLITH_TFS_BINARY": model_server, **env}
        process["restart"] = {"delay": "100ms", "max_delay": "500ms"}
        process["stop"] = {"grace": grace}
        process["identity"] = identity
        each.update(fields)
    return read_document({**document, "members": [members[name] for name in names]})


def model_servers(folder: Path) -> set[int]:
    """The model servers below a directory of a fleet or a node, also those whose agent is gone."""
    found = set()
    for each in psutil.process_iter(["cmdline"]):
        words = " ".join(each.info["cmdline"] or ())
        if "shoal.testing.model_server" in words and f"{folder}/" in words:
            found.add(each.pid)
    return found


class Sampler:
    """Counts the model servers of a fleet, again and again, and keeps what the tree says of one container."""

    def __init__(self, folder: Path, store: RemoteStore, path: str) -> None:
        self._folder = folder
        self.most = 0
        #: The gRPC address of each registration, None while there is none.
        self.seen: list[str | None] = []
        self._watch = store.watch_data(path, self._note)
        self._task = asyncio.create_task(self._run())

    def _note(self, value: NodeValue | None) -> None:
        self.seen.append(json.loads(value.data)["grpc"] if value is not None else None)

    async def _run(self) -> None:
        while True:
            self.most = max(self.most, len(await asyncio.to_thread(model_servers, self._folder)))
            await asyncio.sleep(0.05)

    @property
    def addresses(self) -> list[str]:
        """Each registration in its turn."""
        seen = [address for address in self.seen if address is not None]
        return [address for number, address in enumerate(seen) if seen[number - 1 : number] != [address]]

    async def close(self) -> None:
        self._watch.close()
        self._task.cancel()
        await asyncio.wait({self._task})
