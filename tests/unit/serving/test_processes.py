"""Commands, start order, restarts."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools

import pytest

from shoal.core.clock import SystemClock
from shoal.core.entropy import SeededEntropy
from shoal.core.errors import DeadlineError, InvalidError, UnavailableError
from shoal.serving.config.deployment import Role, deploy
from shoal.serving.config.environment import read_environment
from shoal.serving.config.settings import ModelServerSettings, ServingSettings, read_settings
from shoal.serving.processes.commands import (
    Program,
    checked_command,
    find_program,
    look_at_program,
    model_server_command,
    proxy_command,
)
from shoal.serving.processes.graph import OnExit, ProcessNode, Restart, StopAll, after_exit, start_order
from shoal.serving.processes.runner import ProcessRunner, child_environment, describe_exit
from shoal.testing.model_server.__main__ import FLAGS
from shoal.testing.runtimes import FakeMachine, FakeRuntime, FakeScript
from tests.unit.serving.conftest import until

MIXED = ServingSettings(bzid="g", base_name="m", base_path="/d", deploy_type="mixed", dense_alone=True)
STOCK = Program(("/bin/tfs",))
ARCHON = Program(("/bin/tfs",), has_archon=True, calls_by_grpc=False)


def made(settings: ServingSettings, **env: str):
    counter = itertools.count(9000)
    return deploy(settings, read_environment(env), take_ports=lambda n: tuple(next(counter) for _ in range(n)))


def flags(settings: ServingSettings, role: Role, program: Program = STOCK, **env: str) -> dict[str, str]:
    deployment = made(settings, **env)
    server = deployment.servers_of(role)[0]
    command = model_server_command(deployment, server, program, config_file="/c", platform_file=env.get("FILE", ""))
    assert command[0] == "/bin/tfs"
    return dict(word.removeprefix("--").split("=", 1) for word in command[1:])


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        (
            Role.PS,
            {"model_config_file": "/c", "port": "9000", "rest_api_port": "9001", "file_system_poll_wait_seconds": "0"},
        ),
        (Role.DENSE, {"model_config_file": "/c", "port": "9003", "rest_api_port": "9004"}),
        (Role.ENTRY, {"model_config_file": "/c", "port": "9006", "rest_api_port": "9007"}),
    ],
)
def test_a_stock_model_server_gets_flags_that_it_knows(role, expected):
    assert flags(MIXED, role) == expected


def test_a_setting_that_differs_is_a_flag():
    settings = dataclasses.replace(
        MIXED, enable_batching=True, num_load_threads=4, flush_filesystem_caches=False, file_system_poll_wait_seconds=9
    )
    changed = {"num_load_threads": "4", "flush_filesystem_caches": "false"}
    entry = flags(settings, Role.ENTRY)
    assert entry.items() >= (changed | {"file_system_poll_wait_seconds": "9"}).items()
    assert "enable_batching" not in entry
    dense = flags(settings, Role.DENSE, FILE="/p")
    assert dense["enable_batching"] == "true"
    assert dense["platform_config_file"] == "/p"
    assert flags(settings, Role.PS)["file_system_poll_wait_seconds"] == "0"


def other_than_default(field: dataclasses.Field[object]) -> object:
    return {bool: not field.default, int: 77, float: 0.5}.get(type(field.default), "x")


@pytest.mark.parametrize("role", [Role.PS, Role.DENSE, Role.ENTRY])
def test_a_stock_model_server_knows_the_flag_of_every_setting(role):
    changes = {field.name: other_than_default(field) for field in dataclasses.fields(ModelServerSettings)}
    found = flags(dataclasses.replace(MIXED, **changes), role, FILE="/p").keys()
    assert found <= FLAGS
    batching = {"enable_batching", "batching_parameters_file"}
    assert changes.keys() - found == {"allow_growth", "version"} | (set() if role is Role.DENSE else batching)


def test_batching_without_dense_services_is_for_every_part():
    settings = dataclasses.replace(MIXED, dense_alone=False, enable_batching=True, batching_parameters_file="/b")
    for role in (Role.PS, Role.ENTRY):
        assert flags(settings, role).items() >= {"enable_batching": "true", "batching_parameters_file": "/b"}.items()


def test_a_unified_server_looks_at_its_file_by_itself_too():
    settings = ServingSettings(bzid="g", deploy_type="unified", agent_version=3)
    assert flags(settings, Role.UNIFIED)["model_config_file_poll_wait_seconds"] == "60"
    archon = flags(settings, Role.UNIFIED, ARCHON, TCE_PSM="p.s.m")
    assert archon["conf_file"] == "conf/service.conf"
    assert archon["archon_entry_to_ps_rpc_timeout"] == "200"


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ("", "1000000"),
        ("load_retry_interval_micros 2 * 1000 * 1000", "2000000"),
        ("load_retry_interval_micros 60 * 1000 * 1000", None),  # as a model server does without the flag
    ],
)
def test_a_unified_server_tries_bad_models_again_soon_unless_the_file_says_otherwise(tmp_path, line, flag):
    conf = tmp_path / "agent.conf"
    conf.write_text(f"bzid g\ndeploy_type unified\nagent_version 3\n{line}\n")
    found = flags(read_settings(str(conf)), Role.UNIFIED)
    assert found.get("load_retry_interval_micros") == flag
    assert found["num_load_threads"] == "4"


def test_a_server_with_archon_gets_its_flags():
    entry = flags(MIXED, Role.ENTRY, ARCHON, TCE_PSM="p.s.m", TCE_CLUSTER="Blue")
    assert entry["archon_rpc_psm"] == "p.s.m"
    assert entry["archon_rpc_cluster"] == "blue"
    assert entry["archon_entry_to_ps_rpc_retry"] == "2"
    assert "archon_entry_to_ps_long_conn_enable" not in entry
    ps = flags(dataclasses.replace(MIXED, fetch_ps_long_conn_enable=False), Role.PS, ARCHON, TCE_PSM="p.s.m")
    assert ps["archon_rpc_psm"] == "p.s.m_ps"
    assert ps["log_conf"] == "conf/log4j_ps.properties"
    assert not [name for name in ps if name.startswith("archon_entry")]


@pytest.mark.parametrize(
    ("content", "has_archon", "by_grpc"),
    [
        (b"", False, True),
        (b"stock", False, True),
        (b"..archon_rpc_psm..", True, False),
        (b"archon_rpc_psm PredictionServiceGrpc", True, True),
    ],
)
def test_a_program_is_known_by_what_it_contains(tmp_path, content, has_archon, by_grpc):
    (tmp_path / "tfs").write_bytes(content)
    found = look_at_program((str(tmp_path / "tfs"),))
    assert (found.has_archon, found.calls_by_grpc) == (has_archon, by_grpc)


def test_the_environment_names_the_model_server_before_the_file(tmp_path):
    for name in ("one", "two two"):
        (tmp_path / name).touch(mode=0o755)
    settings = dataclasses.replace(MIXED, tfs_binary=f"'{tmp_path}/two two' -x")
    assert find_program(made(settings)) == (f"{tmp_path}/two two", "-x")
    assert find_program(made(settings, MONOLITH_TFS_BINARY=f"{tmp_path}/one")) == (f"{tmp_path}/one",)


@pytest.mark.parametrize("text", ["/no/such/program", "'unclosed", ""])
def test_a_program_that_is_not_there(text):
    with pytest.raises(InvalidError) as caught:
        checked_command("tfs_binary", text)
    assert caught.value.problems[0].field == "tfs_binary"


def test_the_proxy(tmp_path):
    (tmp_path / "proxy").touch(mode=0o755)
    deployment = made(dataclasses.replace(MIXED, proxy_binary=f"{tmp_path}/proxy", proxy_port=77))
    expected = (f"{tmp_path}/proxy", "--port=77", "--grpc_target=localhost:9006")
    assert proxy_command(deployment, conf_dir=tmp_path) == expected
    (tmp_path / "proxy.conf").touch()
    assert proxy_command(deployment, conf_dir=tmp_path) == (*expected, f"--conf_file={tmp_path}/proxy.conf")


def node(name: str, *needs: str, port: int = 1) -> ProcessNode:
    return ProcessNode(name, ("x",), port=port, needs=frozenset(needs))


@pytest.mark.parametrize(
    ("nodes", "order"),
    [
        ([node("entry", "ps", "dense"), node("ps"), node("dense")], ["ps", "dense", "entry"]),
        ([node("proxy", "entry"), node("entry")], ["entry", "proxy"]),
        ([node("entry", "elsewhere")], ["entry"]),
    ],
)
def test_the_start_order(nodes, order):
    assert [each.name for each in start_order(nodes)] == order


def test_a_circle_is_refused():
    with pytest.raises(InvalidError):
        start_order([node("a", "b"), node("b", "a")])


@pytest.mark.parametrize(
    ("policy", "ran", "failures", "expected"),
    [
        (OnExit.RESTART, 1, 0, Restart(0.5, 1)),
        (OnExit.RESTART, 1, 1, Restart(1.0, 2)),
        (OnExit.RESTART, 1, 50, Restart(30.0, 51)),
        (OnExit.RESTART, 100, 50, Restart(0.5, 1)),
        (OnExit.STOP_ALL, 100, 0, StopAll("ps ended: exit code 3")),
    ],
)
def test_what_follows_an_exit(policy, ran, failures, expected):
    assert after_exit(policy, "ps", ran=ran, failures=failures, how="exit code 3") == expected


def test_the_secret_of_the_tree_stays_with_the_agent():
    env = child_environment({"ZK_AUTH": "me:x", "PATH": "/bin", "PORT2": "1"}, agent_port=7)
    assert env == {"PATH": "/bin", "PORT2": "7"}


class Runners:
    def __init__(self) -> None:
        self.machine = FakeMachine(SystemClock())
        self.open: set[int] = {1}
        self.foreign: set[int] = set()
        #: The ports that were asked about before a start.
        self.asked: list[int] = []

    def make(self, on_exit: OnExit = OnExit.RESTART, *, seed: int = 0) -> ProcessRunner:
        async def listens(port: int) -> bool:
            return port in self.open

        async def is_taken(port: int) -> bool:
            self.asked.append(port)
            return port in self.foreign

        return ProcessRunner(
            FakeRuntime(self.machine),
            clock=SystemClock(),
            entropy=SeededEntropy(seed),
            on_exit=on_exit,
            listens=listens,
            is_taken=is_taken,
        )


@pytest.fixture
def runners():
    return Runners()


@pytest.mark.looptime
async def test_a_process_that_ends_is_started_again(runners):
    runner = runners.make()
    seen = []
    runner.changed = seen.append
    await runner.open()
    await runner.start(node("ps"), timeout=5)
    (first,) = runners.machine.alive("ps")
    runners.machine.kill(first.run_id)
    await until(lambda: runner.restarts == {"ps": 1} and runner.is_running("ps"))
    assert seen == ["ps", "ps", "ps"]
    await runner.stop_all()
    assert runners.machine.alive("ps") == []
    assert not runner.is_running("ps")


@pytest.mark.looptime
async def test_stop_all_ends_the_agent(runners):
    runner = runners.make(OnExit.STOP_ALL)
    await runner.open()
    await runner.start(node("ps"), timeout=5)
    await runner.start(node("entry"), timeout=5)
    runners.machine.kill(runners.machine.alive("ps")[0].run_id, code=3, signal=0)
    with pytest.raises(UnavailableError, match="ps ended: exit code 3"):
        await runner.failed()
    await runner.stop_all()
    assert runners.machine.alive("entry") == []


@pytest.mark.looptime
async def test_a_process_that_never_listens(runners):
    runner = runners.make()
    await runner.open()
    with pytest.raises(DeadlineError, match="ps does not listen on port 2 after 5 s"):
        await runner.start(node("ps", port=2), timeout=5)
    await runner.stop_all()


@pytest.mark.looptime
async def test_a_process_that_ends_at_once_ends_the_wait(runners):
    runner = runners.make(OnExit.STOP_ALL)
    await runner.open()
    starting = asyncio.ensure_future(runner.start(node("ps", port=2), timeout=500))
    await until(lambda: runners.machine.alive("ps"))
    runners.machine.kill(runners.machine.alive("ps")[0].run_id)
    with pytest.raises(UnavailableError):
        await starting
    await runner.stop_all()


@pytest.mark.looptime
async def test_a_port_of_another_program_is_not_taken_for_ours(runners, monkeypatch):
    monkeypatch.setattr("shoal.serving.processes.runner.FREE_SECONDS", 0.2)
    runner = runners.make()
    await runner.open()
    runners.foreign.add(1)
    with pytest.raises(UnavailableError, match="another program listens on its port 1"):
        await runner.start(node("ps"), timeout=500)
    assert runners.machine.alive("ps") == []
    assert not runner.is_running("ps")
    # One that goes in time is waited for.
    runners.asked.clear()
    starting = asyncio.ensure_future(runner.start(node("ps"), timeout=500))
    await until(lambda: runners.asked)
    runners.foreign.clear()
    await starting
    assert len(runners.machine.alive("ps")) == 1
    await runner.stop_all()


@pytest.mark.looptime
async def test_a_restart_waits_for_the_port(runners, caplog, monkeypatch):
    monkeypatch.setattr("shoal.serving.processes.runner.FREE_SECONDS", 0.2)
    runner = runners.make()
    await runner.open()
    await runner.start(node("ps"), timeout=5)
    runners.foreign.add(1)
    runners.machine.kill(runners.machine.alive("ps")[0].run_id)
    await until(lambda: "another program listens on its port 1; it is tried again in 1 s" in caplog.text)
    await until(lambda: "another program listens on its port 1; it is tried again in 2 s" in caplog.text)
    assert runners.machine.alive("ps") == []
    runners.foreign.clear()
    await until(lambda: runner.is_running("ps"))
    assert runner.restarts == {"ps": 1}
    runner.raise_if_failed()
    await runner.stop_all()


@pytest.mark.looptime
async def test_a_process_that_will_be_started_again_is_not_started_twice(runners):
    runner = runners.make()
    await runner.open()
    await runner.start(node("ps"), timeout=5)
    runners.machine.kill(runners.machine.alive("ps")[0].run_id)
    await until(lambda: not runner.is_running("ps"))
    await runner.start(node("ps"), timeout=5)  # as after an adoption
    await until(lambda: runner.is_running("ps"))
    await asyncio.sleep(60)
    assert runners.machine.most_at_once("ps") == 1
    assert runners.machine.count("started", "ps") == 2
    await runner.stop_all()


@pytest.mark.looptime
async def test_nothing_is_started_again_while_everything_ends(runners):
    runners.machine.scripts["entry"] = FakeScript(stop_takes=30)
    runner = runners.make()
    await runner.open()
    for name in ("ps", "entry"):
        await runner.start(node(name), timeout=5)
    runners.machine.kill(runners.machine.alive("ps")[0].run_id)
    await until(lambda: not runner.is_running("ps"))
    await runner.stop_all()
    assert runners.machine.alive("ps") == []
    assert runners.machine.alive("entry") == []


@pytest.mark.looptime
async def test_a_start_that_was_cut_short_leaves_no_process(runners, monkeypatch):
    """The runtime has begun, and nobody was told."""
    hanging = asyncio.Event()
    begin = FakeRuntime.start

    async def start(self, request):
        await begin(self, request)
        hanging.set()
        await asyncio.Event().wait()

    runner = runners.make()
    await runner.open()
    await runner.start(node("ps"), timeout=5)
    monkeypatch.setattr(FakeRuntime, "start", start)
    runners.machine.kill(runners.machine.alive("ps")[0].run_id)
    await hanging.wait()
    await runner.stop_all()
    assert runners.machine.alive("ps") == []


@pytest.mark.looptime
async def test_those_that_need_others_end_first_also_after_a_restart(runners):
    runner = runners.make()
    await runner.open()
    for name in ("ps", "entry"):
        await runner.start(node(name), timeout=5)
    runners.machine.kill(runners.machine.alive("ps")[0].run_id)
    await until(lambda: runner.restarts == {"ps": 1} and runner.is_running("ps"))
    await runner.stop_all()
    ended = [each.workload_id for each in runners.machine.history if each.what == "ended"]
    assert ended == ["ps", "entry", "ps"]


@pytest.mark.looptime
async def test_a_process_that_cannot_be_started_again_is_tried_again_and_ends_no_other(runners, caplog):
    runner = runners.make()
    await runner.open()
    for name in ("ps", "entry"):
        await runner.start(node(name), timeout=5)
    runners.machine.scripts["ps"] = FakeScript(start_error="the disk is full", start_errors=2)
    runners.machine.kill(runners.machine.alive("ps")[0].run_id)
    await until(lambda: runner.restarts == {"ps": 1})
    assert "ps cannot be started: the disk is full; it is tried again in 2 s" in caplog.text
    runner.raise_if_failed()
    assert runner.is_running("ps")
    assert runners.machine.count("ended", "entry") == 0
    await runner.stop_all()


@pytest.mark.looptime
async def test_a_start_without_an_answer_is_not_repeated_beside_it(runners, monkeypatch):
    begin = FakeRuntime.start

    async def start(self, request):
        await begin(self, request)
        monkeypatch.setattr(FakeRuntime, "start", begin)
        raise DeadlineError("the keeper did not answer")

    runner = runners.make()
    await runner.open()
    await runner.start(node("ps"), timeout=5)
    monkeypatch.setattr(FakeRuntime, "start", start)
    runners.machine.kill(runners.machine.alive("ps")[0].run_id)
    await until(lambda: runner.restarts == {"ps": 1})
    assert runners.machine.most_at_once("ps") == 1
    assert runners.machine.count("started", "ps") == 3
    await runner.stop_all()


@pytest.mark.looptime
async def test_a_mistake_in_the_program_that_keeps_a_process_away_is_told(runners):
    runner = runners.make()
    await runner.open()
    await runner.start(node("ps"), timeout=5)

    async def fail(_node):
        raise ZeroDivisionError

    runner.prepare = fail
    runners.machine.kill(runners.machine.alive("ps")[0].run_id)
    with pytest.raises(ZeroDivisionError):
        await runner.failed()
    await runner.stop_all()


@pytest.mark.looptime
async def test_what_an_earlier_agent_left_is_stopped(runners):
    first = runners.make()
    await first.open()
    await first.start(node("ps"), timeout=5)
    (left,) = runners.machine.alive("ps")
    await first._scope.close()  # it was killed
    second = runners.make(seed=1)
    await second.open()
    assert runners.machine.alive("ps") == []
    await second.start(node("ps"), timeout=5)
    assert [each.run_id for each in runners.machine.alive("ps")] != [left.run_id]
    await second.stop_all()


def test_an_exit_nobody_saw():
    assert describe_exit(None) == "nobody knows how"
