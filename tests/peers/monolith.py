"""Monolith's side of the tree and of `AgentService`, scripted: it shares no code with ours.

`ForeignAgent` writes the bytes that Monolith's agents write. `HeartbeatClient` does what the client inside its model
servers does, down to how it learns the names of its peers from the first answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc

from shoal.discovery.store import CoordinationStore

_SERVICE = "/monolith.serving.agent_service.AgentService/"
PS, ENTRY, DENSE = 0, 1, 2
AVAILABLE = 30


@dataclass
class ForeignAgent:
    """Writes nodes with its own session."""

    store: CoordinationStore
    bzid: str = "gip"

    async def replica(self, path: str, host: str, *, port: int = 44059, stat: int = AVAILABLE) -> str:
        """Register or update a replica of version 1 below `service/`."""
        data = (
            f'{{"address": "{host}:{port}", "address_ipv6": "[::]:{port}", "stat": {stat}, "model_name": null, '
            f'"server_type": null, "task": -1, "replica": -1, "archon_address": "{host}:40279", '
            '"archon_address_ipv6": "[::]:40279"}'
        )
        return await self.ephemeral(f"service/{path}", data)

    async def scheduled_replica(self, model: str, kind: str, task: int, replica: int, address: str) -> str:
        """Register a replica of version 2."""
        data = (
            f'{{"address": "{address}", "address_ipv6": null, "stat": 30, "model_name": "{model}", '
            f'"server_type": "{kind}", "task": {task}, "replica": {replica}, "archon_address": null, '
            '"archon_address_ipv6": null}'
        )
        return await self.ephemeral(f"service/{model}/{kind}:{task}/{replica}", data)

    async def container(self, name: str, grpc_address: str) -> str:
        """Announce the addresses of a container."""
        data = (
            f'{{"grpc": "{grpc_address}", "http": "192.0.2.2:53887", "archon": "192.0.2.2:33421", '
            '"agent": "192.0.2.2:50811", "idc": "lf", "debug_info": "{}"}'
        )
        return await self.ephemeral(f"container_service/{name}", data)

    async def bind(self, model: str, sub_graph: str, container: str) -> str:
        """Say that a container serves a sub-graph."""
        return await self.ephemeral(f"binding/{model}/{sub_graph}:{container}", "")

    async def declare(self, model: str, sub_graph: str, base_path: str, policy: str = "latest") -> str:
        """Declare a sub-graph."""
        data = f'{{"model_base_path": "{base_path}", "version_policy": "{policy}"}}'
        return await self.write(f"saved_models/{model}/{sub_graph}", data)

    async def publish(self, layout: str, member: str) -> str:
        """Add a member to a layout."""
        return await self.write(f"layouts/{layout}/{member}", "")

    async def ephemeral(self, path: str, data: str) -> str:
        return await self._put(path, data, ephemeral=True)

    async def write(self, path: str, data: str) -> str:
        return await self._put(path, data, ephemeral=False)

    async def _put(self, path: str, data: str, *, ephemeral: bool) -> str:
        full = f"/{self.bzid}/{path}"
        if await self.store.exists(full) is not None:
            await self.store.set(full, data.encode())
            return full
        return await self.store.create(full, data.encode(), ephemeral=ephemeral, makepath=True)

    async def remove(self, path: str) -> None:
        await self.store.delete(f"/{self.bzid}/{path}", recursive=True)


@dataclass
class HeartbeatClient:
    """The client inside Monolith's model servers. `beat` is one round, which happens every 15 seconds."""

    address: str
    addresses: dict[str, list[str]] = field(default_factory=dict)
    api_version: int | None = None

    async def beat(self) -> None:
        """Ask for PS, then for DENSE, and merge. A part that fails is missing."""
        merged: dict[str, list[str]] = {}
        async with grpc.aio.insecure_channel(self.address) as channel:
            for server_type in (PS, DENSE):
                try:
                    merged |= _addresses(await _call(channel, "HeartBeat", _number(1, server_type)))
                except grpc.aio.AioRpcError:
                    continue
        if self.api_version is None:  # decided once, whatever the first answer was
            self.api_version = 1 if any(":ps" in key for key in merged) else 0
        self.addresses = merged

    async def heart_beat(self, server_type: int) -> dict[str, list[str]]:
        async with grpc.aio.insecure_channel(self.address) as channel:
            return _addresses(await _call(channel, "HeartBeat", _number(1, server_type)))

    async def get_replicas(self, server_type: int, task: int, model: str = "") -> list[str]:
        request = _number(1, server_type) + _number(2, task) + (_text(3, model) if model else b"")
        async with grpc.aio.insecure_channel(self.address) as channel:
            answer = await _call(channel, "GetReplicas", request)
        return [text.decode() for _, found in _fields(answer) for _, text in _fields(found)]

    def peers(self, model: str, sub_graph: str) -> list[str]:
        """The addresses that the remote predict op of a model finds."""
        key = f"{model}:{sub_graph}" if self.api_version == 1 else sub_graph.replace("_", ":", 1)
        return self.addresses.get(key, [])


async def _call(channel: grpc.aio.Channel, method: str, request: bytes) -> bytes:
    return await channel.unary_unary(f"{_SERVICE}{method}")(request, timeout=5)


def _number(tag: int, value: int) -> bytes:
    return bytes([tag << 3, value]) if value else b""


def _text(tag: int, text: str) -> bytes:
    return bytes([tag << 3 | 2, len(text)]) + text.encode()


def _addresses(data: bytes) -> dict[str, list[str]]:
    found = {}
    for _, entry in _fields(data):
        parts = dict(_fields(entry))
        found[parts[1].decode()] = [address.decode() for _, address in _fields(parts.get(2, b""))]
    return found


def _fields(data: bytes) -> list[tuple[int, bytes]]:
    """The length-delimited fields of a message."""
    found, at = [], 0
    while at < len(data):
        tag, at = _varint(data, at)
        assert tag & 7 == 2, f"a field of type {tag & 7}"
        size, at = _varint(data, at)
        found.append((tag >> 3, data[at : at + size]))
        at += size
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
