"""The fake model server, and the client that calls it."""

from __future__ import annotations

import asyncio

import pytest

from shoal.core.errors import (
    DeadlineError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    ShoalError,
    UnavailableError,
)
from shoal.core.tasks import task_scope
from shoal.discovery.replicas.records import ModelState
from shoal.serving.models.client import ModelServerClient, string_tensor
from shoal.serving.models.configs import model_config, server_config
from shoal.serving.models.lifecycle import VersionStatus
from shoal.testing.model_server import FakeModelServer
from shoal.wire.local import LocalNetwork
from shoal.wire.pb.tensorflow import serving_pb2 as pb
from tests.unit.serving.conftest import until

AVAILABLE, LOADING, END = ModelState.AVAILABLE, ModelState.LOADING, ModelState.END


@pytest.fixture
async def serve():
    network = LocalNetwork()
    started: list[tuple[FakeModelServer, ModelServerClient]] = []

    async def start(*models: pb.ModelConfig) -> tuple[FakeModelServer, ModelServerClient]:
        server = FakeModelServer(server_config(models))
        address = await server.start(network.transport("server"), "server:0")
        client = ModelServerClient(network.transport("client").connect(address))
        started.append((server, client))
        return server, client

    yield start
    for server, client in started:
        await client.close()
        await server.stop()


def states(versions) -> list[tuple[int, ModelState]]:
    return [(each.version, each.state) for each in versions]


async def test_a_model_is_loaded_step_by_step(serve):
    server, client = await serve(model_config("m", "/none", versions=2))
    assert states(await client.versions("m")) == [(1, AVAILABLE), (2, AVAILABLE)]
    assert server.models.transitions[:3] == [("m", 1, ModelState.START), ("m", 1, LOADING), ("m", 1, AVAILABLE)]


@pytest.mark.parametrize(
    ("version", "found"), [(2, [(2, AVAILABLE)]), ("stable", [(1, AVAILABLE)])], ids=["number", "label"]
)
async def test_one_version(serve, version, found):
    _, client = await serve(model_config("m", "/none", versions=2, labels={"stable": 1}))
    assert states(await client.versions("m", version)) == found


@pytest.mark.parametrize(("name", "version"), [("x", None), ("m", 9), ("m", "old")])
async def test_what_is_not_there(serve, name, version):
    _, client = await serve(model_config("m", "/none"))
    with pytest.raises(NotFoundError):
        await client.versions(name, version)
    status = await client.status(name, version)
    assert (status.version, status.state, status.error_code) == (-1, ModelState.UNKNOWN, 5)


async def test_versions_are_those_of_the_directory(serve, tmp_path):
    for name in ("9", "10", "temp"):
        (tmp_path / name).mkdir()
    server, client = await serve(model_config("m", str(tmp_path)))
    assert states(await client.versions("m")) == [(10, AVAILABLE)]
    (tmp_path / "11").mkdir()
    server.models.poll()
    assert states(await client.versions("m")) == [(11, AVAILABLE)]
    assert server.models.transitions[-2:] == [("m", 10, ModelState.UNLOADING), ("m", 10, END)]


async def test_the_old_version_serves_until_the_new_one_is_loaded(serve, tmp_path):
    (tmp_path / "1").mkdir()
    server, client = await serve(model_config("m", str(tmp_path)))
    server.models.hold("m")
    (tmp_path / "2").mkdir()
    server.models.poll()
    assert states(await client.versions("m")) == [(1, AVAILABLE), (2, LOADING)]
    assert (await client.status("m")).version == 1
    server.models.release("m")
    server.models.poll()
    assert states(await client.versions("m")) == [(2, AVAILABLE)]


async def test_a_reload_replaces_the_models(serve):
    server, client = await serve(model_config("a", "/none"), model_config("b", "/none"))
    await client.reload(server_config([model_config("b", "/none"), model_config("c", "/none")]))
    assert server.models.names() == ("b", "c")
    found = await client.statuses(["a", "b", "c"])
    assert [status.is_available for status in found.values()] == [False, True, True]


async def test_a_broken_model_fails_the_reload_and_harms_no_other(serve):
    server, client = await serve()
    server.models.break_model("bad", "no such file")
    with pytest.raises(PreconditionError, match="bad due to error: no such file"):
        await client.reload(server_config([model_config("bad", "/none"), model_config("good", "/none")]))
    found = await client.statuses(["bad", "good"])
    assert found == {"bad": VersionStatus(1, END, 2, "no such file"), "good": VersionStatus(1, AVAILABLE)}


async def test_a_reload_waits_for_what_is_loaded(serve):
    server, client = await serve()
    server.models.hold("m")
    reloading = asyncio.ensure_future(client.reload(server_config([model_config("m", "/none")])))
    while not server.models.names():
        await asyncio.sleep(0)
    assert (await client.status("m")).state is LOADING
    assert not reloading.done()
    server.models.release("m")
    await reloading


@pytest.mark.looptime
async def test_reloads_are_taken_one_by_one_also_when_nobody_waits_for_them(serve):
    server, client = await serve()
    server.models.hold("m")
    with pytest.raises(DeadlineError):
        await client.reload(server_config([model_config("m", "/none")]), timeout=0.05)
    reloading = asyncio.ensure_future(client.reload(server_config([model_config("n", "/none")])))
    await until(lambda: len(server.calls) == 2)
    await client.status("m")
    assert (server.models.names(), reloading.done()) == (("m",), False)
    server.models.release("m")
    await reloading
    assert server.models.names() == ("n",)


async def test_a_reload_waits_for_a_first_version(serve, tmp_path):
    server, client = await serve()
    reloading = asyncio.ensure_future(client.reload(server_config([model_config("m", str(tmp_path))])))
    await until(server.models.names)
    server.models.poll()
    assert not reloading.done()
    (tmp_path / "1").mkdir()
    server.models.poll()
    await reloading


async def test_a_server_does_not_start_with_a_broken_model():
    server = FakeModelServer()
    server.models.break_model("bad", "no such file")
    server.models.apply(server_config([model_config("bad", "/none"), model_config("good", "/none")]))
    with pytest.raises(PreconditionError, match="bad due to error: no such file"):
        await server.start(LocalNetwork().transport("server"), "server:0")


async def test_a_reload_without_a_list_is_refused(serve):
    _, client = await serve()
    with pytest.raises(InvalidError):
        await client.reload(pb.ModelServerConfig())


async def test_a_failing_server_is_a_state(serve):
    server, client = await serve(model_config("m", "/none"))
    server.fail_calls(UnavailableError("out of service"))
    assert await client.status("m") == VersionStatus(-1, ModelState.UNKNOWN, 14, "out of service")
    server.fail_calls(None)
    assert (await client.status("m")).is_available


@pytest.mark.looptime
async def test_a_server_that_hangs_costs_one_deadline_for_all(serve):
    server, client = await serve(model_config("m", "/none"))
    server.pause()
    loop = asyncio.get_running_loop()
    before = loop.time()
    found = await client.statuses(["m", "n", "o"], timeout=5)
    assert {status.error_code for status in found.values()} == {4}
    assert loop.time() - before == pytest.approx(5, abs=0.1)
    with pytest.raises(DeadlineError):
        await client.versions("m", timeout=1)
    server.resume()


@pytest.mark.looptime
async def test_a_model_that_hangs_delays_no_other(serve):
    server, client = await serve(model_config("m", "/none"), model_config("n", "/none"))
    server.hanging.add("m")
    loop = asyncio.get_running_loop()
    async with task_scope("test") as scope:
        rounds, before = client.rounds(scope), loop.time()
        for _ in range(3):
            found = await rounds.next(["m", "n"], within=0.5)
            assert {name: status.is_available for name, status in found.items()} == {"n": True}
        assert loop.time() - before == pytest.approx(1.5, abs=0.1)
        assert server.calls.count("GetModelStatus") == 4
        await asyncio.sleep(5)
        found = await rounds.next(["m", "n"], within=0.5)
        assert found["m"].error_code == 4
        # One that is no longer asked for is no longer waited for, and is asked anew later.
        await rounds.next(["m"], within=0.5)
        assert await rounds.next([], within=0.5) == {}
        server.hanging.clear()
        assert (await rounds.next(["m"], within=0.5))["m"].is_available


async def test_predictions_are_a_function_of_the_input(serve):
    _, client = await serve(model_config("m", "/none", versions=3))
    rows = string_tensor([b"a", b"b", b"a"])
    first = await client.predict("m", {"instances": rows})
    assert first == await client.predict("m", {"instances": rows})
    scores = list(first.outputs["scores"].float_val)
    assert scores[0] == scores[2] != scores[1]
    assert first.model_spec.version.value == 3


@pytest.mark.parametrize(
    ("name", "inputs", "error"),
    [("x", {"i": string_tensor([b"a"])}, NotFoundError), ("m", {}, InvalidError), ("", {}, InvalidError)],
)
async def test_a_bad_prediction(serve, name, inputs, error):
    _, client = await serve(model_config("m", "/none"))
    with pytest.raises(error):
        await client.predict(name, inputs)


async def test_metadata(serve):
    _, client = await serve(model_config("m", "/none", versions=2))
    answer = await client.metadata("m", ["signature_def", "base_path", "num_versions", "signature_name"])
    signatures = pb.SignatureDefMap()
    assert answer.metadata["signature_def"].Unpack(signatures)
    assert list(signatures.signature_def) == ["serving_default"]
    assert answer.metadata["base_path"].value == b"'/none'"
    assert answer.metadata["num_versions"].value == b"2"
    for fields in ([], ["colour"]):
        with pytest.raises(ShoalError):
            await client.metadata("m", fields)
