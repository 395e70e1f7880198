"""`shoal token create`: what it refuses, and the command that it prints for the machine that is to join."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import looptime
import pytest

from shoal.cli import main
from shoal.cli.connection.session import Surroundings
from shoal.core.errors import NotLeaderError
from shoal.testing.clock import LoopClock
from shoal.wire.local import LocalNetwork
from shoal.wire.methods import AgentControl, Credentials, methods_of
from shoal.wire.pb.shoal.v1 import enrollment_pb2 as enrollment
from shoal.wire.transport import Service
from tests.unit.cli.scripted import START

ONE, TWO = "10.0.0.1:8085", "10.0.0.2:8085"


class Plane:
    """One of several control planes."""

    def __init__(self, join_port, leader) -> None:
        self.join_port = join_port
        #: Where the leader is; empty: here.
        self.leader = leader
        self.asked = []

    async def get_cluster_summary(self, _request, _call):
        return AgentControl.GET_CLUSTER_SUMMARY.response()

    async def create_join_token(self, request, _call):
        if self.leader:
            raise NotLeaderError(self.leader)
        self.asked.append(timedelta(milliseconds=request.ttl_ms) if request.HasField("ttl_ms") else None)
        return enrollment.CreateJoinTokenResponse(token="shoal1.x", join_port=self.join_port)

    async def list_join_tokens(self, _request, _call):
        return enrollment.ListJoinTokensResponse(join_port=self.join_port)


def run(planes, capsys, *arguments, control=f"{ONE},{TWO}"):
    network = LocalNetwork()

    def run_all(work):
        async def session():
            for address, plane in planes.items():
                methods = [*methods_of(Credentials), AgentControl.GET_CLUSTER_SUMMARY]
                await network.transport(address).serve(address, [Service(methods, plane)])
            return await work

        with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
            return runner.run(session())

    around = Surroundings(
        make_transport=lambda _access: network.transport("cli"), make_clock=lambda: LoopClock(START), run=run_all
    )
    code = main.run(["token", "create", "--control", control, "--insecure", *arguments], around=around)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def command(err):
    [line] = [line for line in err.splitlines() if "shoal agent" in line]
    return line.split()


def test_the_command_names_where_every_control_plane_lets_nodes_join(capsys):
    planes = {ONE: Plane(9001, TWO), TWO: Plane(9002, "")}
    code, _, err = run(planes, capsys)
    assert code == 0, err
    words = command(err)
    assert words[words.index("--control") + 1] == f"{ONE},{TWO}"
    assert words[words.index("--join-address") + 1] == "10.0.0.2:9002,10.0.0.1:9001"


def test_one_that_does_not_answer_may_lead_by_then_and_is_named_too(capsys):
    code, _, err = run({TWO: Plane(9002, "")}, capsys)
    assert code == 0, err
    words = command(err)
    assert words[words.index("--join-address") + 1] == "10.0.0.2:9002,10.0.0.1:9002"


def test_one_that_lets_nobody_join_is_left_out(capsys):
    _, out, _ = run({ONE: Plane(0, TWO), TWO: Plane(8086, "")}, capsys, "--json")
    made = json.loads(out)
    assert made["join_address"] == "10.0.0.2:8086"
    assert made["join_addresses"] == ["10.0.0.2:8086"]


def test_ports_that_an_agent_finds_by_itself_are_not_named(capsys):
    _, _, err = run({ONE: Plane(8086, TWO), TWO: Plane(8086, "")}, capsys)
    assert "--join-address" not in command(err)


def test_a_leader_that_was_not_in_the_list_is_named(capsys):
    _, _, err = run({ONE: Plane(8086, TWO), TWO: Plane(8086, "")}, capsys, control=ONE)
    words = command(err)
    assert words[words.index("--join-address") + 1] == "10.0.0.2:8086,10.0.0.1:8086"


@pytest.mark.parametrize("text", ["0s", "999ms", "0.4ms", "8d", "169h"])
def test_a_length_of_time_that_no_token_can_have_is_refused_with_the_range(capsys, text):
    plane = Plane(8086, "")
    code, out, err = run({ONE: plane}, capsys, "--ttl", text, control=ONE)
    assert (code, out, plane.asked) == (2, "", [])
    assert "--ttl" in err
    assert f"must be between 1s and 7d (got '{text}')" in err


def test_a_negative_one_is_refused_too(capsys):
    plane = Plane(8086, "")
    code, _, err = run({ONE: plane}, capsys, "--ttl", "-1s", control=ONE)
    assert (code, plane.asked) == (2, [])
    assert "must be a duration such as" in err
    assert "'-1s'" in err


@pytest.mark.parametrize(("text", "expected"), [("1s", timedelta(seconds=1)), ("7d", timedelta(days=7))])
def test_the_ends_of_the_range_are_within_it(capsys, text, expected):
    plane = Plane(8086, "")
    code, _, err = run({ONE: plane}, capsys, "--ttl", text, control=ONE)
    assert code == 0, err
    assert plane.asked == [expected]
