"""A control plane of ours over real gRPC, and foreign programs around it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import pytest

from shoal.control.server import ControlPlaneServer
from shoal.control.settings import ControlSettings
from shoal.wire.sockets.channel import GrpcTransport
from tests.peers.foreign import ForeignAgent, ForeignClient, until


class Stage:
    """A control plane, its foreign agents and a foreign client."""

    def __init__(self, folder, transport, *, insecure: bool, access: dict[str, str]) -> None:
        self.settings = ControlSettings(
            data_dir=str(folder),
            grpc_host="127.0.0.1",
            grpc_port=0,
            insecure=insecure,
            heartbeat_interval=timedelta(seconds=1),
            lease=timedelta(seconds=4),
            failover_burst=1.0,
            **access,
        )
        self._transport = transport
        self.plane = ControlPlaneServer(self.settings, transport=transport)
        self.agents: list[ForeignAgent] = []

    async def start(self, client_credentials=None) -> None:
        await self.plane.start(http=False)
        self.client = ForeignClient(self.plane.address, client_credentials)

    async def replace_plane(self) -> None:
        """Another control plane at the same address that knows nothing, as after a restore of an empty database."""
        port = int(self.plane.address.rpartition(":")[2])
        await self.plane.stop()
        self.settings = replace(self.settings, data_dir=f"{self.settings.data_dir}/another", grpc_port=port)
        self.plane = ControlPlaneServer(self.settings, transport=self._transport)
        await self.plane.start(http=False)

    async def restart_plane(self) -> None:
        """End the control plane and start it again, with its data and at its address."""
        self.client.rides_out_restarts = True
        port = int(self.plane.address.rpartition(":")[2])
        await self.plane.stop()
        self.settings = replace(self.settings, grpc_port=port)
        self.plane = ControlPlaneServer(self.settings, transport=self._transport)
        await self.plane.start(http=False)

    async def agent(self, node_id: str, **fields) -> ForeignAgent:
        credentials = {name: fields.pop(name) for name in ("client", "server") if name in fields}
        made = ForeignAgent(node_id, self.plane.address, **credentials)
        for name, value in fields.items():
            setattr(made, name, value)
        await made.start()
        self.agents.append(made)
        await until(lambda: made.heartbeats, f"a heartbeat of {node_id}")
        return made

    async def node_status(self, node_id: str) -> str:
        return (await self.client.call("GetNode", node_id=node_id)).node.status

    async def stop(self) -> None:
        for each in self.agents:
            await each.stop()
        await self.client.close()
        await self.plane.stop()


@asynccontextmanager
async def staged(folder, transport=None, *, insecure=True, access=None, client=None):
    stage = Stage(folder, transport or GrpcTransport(), insecure=insecure, access=access or {})
    await stage.start(client)
    try:
        yield stage
    finally:
        await stage.stop()


@pytest.fixture
async def stage(tmp_path):
    async with staged(tmp_path) as stage:
        yield stage
