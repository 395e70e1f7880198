"""Calls through a stream: both ends joined by nothing but the messages they send."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given, settings

from shoal.core.errors import (
    DeadlineError,
    ExhaustedError,
    InternalError,
    InvalidError,
    NotFoundError,
    StaleGenerationError,
    UnavailableError,
    UnsupportedError,
    problem,
)
from shoal.testing.messages import messages
from shoal.wire.calls import CREDIT, MAX_CALLS, CallServer, Outbox, StreamCalls, messages_in, status_from_proto
from shoal.wire.methods import AgentExec, AgentService, methods_of
from shoal.wire.pb.persys.agent.v1 import agent_pb2 as agent
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.pb.shoal.v1 import exec_pb2 as execution
from shoal.wire.status import Code
from shoal.wire.transport import Cardinality, Method, Service

pytestmark = pytest.mark.looptime

ACTIONS, APPLY, STATUS, LOGS = (
    AgentService.LIST_ACTIONS,
    AgentService.APPLY_WORKLOAD,
    AgentService.GET_WORKLOAD_STATUS,
    AgentService.READ_LOGS,
)


EXEC = AgentExec.EXEC


class Scripted:
    """Handlers that do what the request says."""

    def __init__(self) -> None:
        self.calls = []
        self.ended = []
        self.sent = 0

    async def apply_workload(self, request, call):
        self.calls.append(call)
        return agent.ApplyWorkloadResponse(applied=True, message=request.id)

    async def get_workload_status(self, request, call):
        if request.id == "broken":
            raise ValueError("a bug")
        if request.id == "old":
            raise StaleGenerationError("w", offered=1, highest=2)
        if request.id == "":
            raise InvalidError([problem("id", "", "is required")])
        raise NotFoundError("workload", request.id)

    async def list_actions(self, request, call):
        try:
            await asyncio.sleep(request.limit)
        finally:
            self.ended.append(request.workload_id)
        return agent.ListActionsResponse(actions=[agent.AgentAction(error="x" * request.limit)])

    async def list_workloads(self, request, call):
        return agent.ListWorkloadsResponse(workloads=[agent.WorkloadStatus(message="x" * (16 * 1024 * 1024 - 20))])

    async def read_logs(self, request, call):
        self.calls.append(call)
        try:
            for number in range(request.tail_lines or 1_000_000):
                self.sent = number + 1
                yield agent.LogChunk(data=str(number).encode())
            if request.workload_id == "breaks":
                raise UnavailableError("the disk is gone")
        finally:
            self.ended.append(request.workload_id)


class Echoing:
    """A handler that streams both ways: what it is given, until it is told to stop."""

    def __init__(self) -> None:
        self.taken = 0
        self.ended = 0
        self.reads = asyncio.Event()
        self.reads.set()

    async def exec(self, requests, call):
        try:
            async for request in requests:
                self.taken += 1
                if request.input == b"break":
                    raise UnavailableError("it broke")
                yield execution.ExecResponse(stdout=request.input)
                await self.reads.wait()
            yield execution.ExecResponse(ended=execution.ExecEnded(exit_code=7))
        finally:
            self.ended += 1


class Ends:
    """The control plane's end, the agent's end, and the pipes between them."""

    def __init__(self, *, batches: bool = False) -> None:
        self.handlers = Scripted()
        self.down, self.up = Outbox(), Outbox()
        self.down.batches = self.up.batches = batches
        #: How many messages came in one, at most.
        self.most = 0
        self.caller = StreamCalls(self.down, address="node 'n1'")
        self.echo = Echoing()
        services = [Service(methods_of(AgentService), self.handlers), Service(methods_of(AgentExec), self.echo)]
        self.server = CallServer(services, self.up, peer="control")
        self.pipes = [asyncio.ensure_future(self._down()), asyncio.ensure_future(self._up())]

    async def _down(self) -> None:
        async for message in self.down.messages():
            for each in self._parts(message):
                await self.server.take(each)

    async def _up(self) -> None:
        async for message in self.up.messages():
            for each in self._parts(message):
                self.caller.take(each)

    def _parts(self, message):
        parts = messages_in(pb.ControlMessage.FromString(message.SerializeToString()))
        self.most = max(self.most, len(parts))
        return parts

    async def close(self) -> None:
        for pipe in self.pipes:
            pipe.cancel()
        await self.server.close()


@pytest.fixture(params=[False, True], ids=["one by one", "in batches"])
async def ends(request):
    made = Ends(batches=request.param)
    yield made
    await made.close()
    assert not made.caller._under_way
    assert not made.server._served


async def inputs(*pieces):
    for piece in pieces:
        yield execution.ExecRequest(input=piece)


async def settle(seconds=0.0):
    await asyncio.sleep(seconds)
    for _ in range(20):
        await asyncio.sleep(0)


async def apply(ends, name="w", **options):
    return await ends.caller.call(APPLY, agent.ApplyWorkloadRequest(id=name), **options)


class TestUnary:
    async def test_a_call_is_answered_with_its_headers_and_its_time(self, ends):
        answer = await apply(ends, "web", metadata={"X-Shoal-Term": "7"}, timeout=3)
        assert (answer.applied, answer.message) == (True, "web")
        (call,) = ends.handlers.calls
        assert (call.method, call.peer, dict(call.metadata), call.time_left) == (
            APPLY.path,
            "control",
            {"x-shoal-term": "7"},
            3,
        )

    async def test_errors_come_back_as_they_were_raised(self, ends):
        async def status(name):
            await ends.caller.call(STATUS, agent.GetWorkloadStatusRequest(id=name))

        with pytest.raises(NotFoundError, match="'web' not found"):
            await status("web")
        with pytest.raises(StaleGenerationError) as stale:
            await status("old")
        assert stale.value.facts["highest"] == "2"
        with pytest.raises(InvalidError) as invalid:
            await status("")
        assert [each.field for each in invalid.value.problems] == ["id"]
        with pytest.raises(InternalError):
            await status("broken")

    async def test_a_method_that_is_not_there(self, ends):
        unknown = Method(AgentService.NAME, "Restart", agent.HealthCheckRequest, agent.HealthCheckResponse)
        with pytest.raises(UnsupportedError):
            await ends.caller.call(unknown, agent.HealthCheckRequest())
        with pytest.raises(UnsupportedError):
            await ends.caller.call(AgentService.HEALTH_CHECK, agent.HealthCheckRequest())
        both = Method(AgentService.NAME, "Both", agent.LogChunk, agent.LogChunk, Cardinality.BOTH_STREAM)
        with pytest.raises(UnsupportedError):
            await anext(ends.caller.converse(both, inputs()))

    async def test_many_at_once_are_answered_each_in_its_time(self, ends):
        async def ask(seconds):
            answer = await ends.caller.call(ACTIONS, agent.ListActionsRequest(limit=seconds), timeout=60)
            return len(answer.actions[0].error)

        assert await asyncio.gather(*(ask(seconds) for seconds in (9, 1, 5, 3))) == [9, 1, 5, 3]

    async def test_one_that_takes_too_long_is_ended_on_both_sides(self, ends):
        with pytest.raises(DeadlineError, match="ListActions at node 'n1' took longer than 2 s"):
            await ends.caller.call(ACTIONS, agent.ListActionsRequest(limit=100, workload_id="slow"), timeout=2)
        await settle()
        assert ends.handlers.ended == ["slow"]
        assert await apply(ends)

    async def test_a_caller_that_goes_away_ends_it(self, ends):
        task = asyncio.ensure_future(
            ends.caller.call(ACTIONS, agent.ListActionsRequest(limit=100, workload_id="left"), timeout=60)
        )
        await settle(1)
        task.cancel()
        await settle()
        assert ends.handlers.ended == ["left"]

    async def test_a_stream_that_breaks_ends_all_of_them_and_takes_no_more(self, ends):
        tasks = [
            asyncio.ensure_future(ends.caller.call(ACTIONS, agent.ListActionsRequest(limit=100), timeout=60))
            for _ in range(3)
        ]
        await settle(1)
        ends.caller.break_off("its stream broke")
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, UnavailableError)
            assert "node 'n1' cannot be reached: its stream broke" in result.message
        with pytest.raises(UnavailableError):
            await apply(ends)
        await ends.caller.close()
        await ends.server.close()

    async def test_an_answer_that_does_not_fit_is_an_error_of_that_call_alone(self, ends):
        with pytest.raises(ExhaustedError):
            await ends.caller.call(AgentService.LIST_WORKLOADS, agent.ListWorkloadsRequest())
        with pytest.raises(ExhaustedError):
            await apply(ends, "x" * (16 * 1024 * 1024 - 20))
        assert await apply(ends)

    async def test_there_is_a_bound(self, ends):
        tasks = [
            asyncio.ensure_future(ends.caller.call(ACTIONS, agent.ListActionsRequest(limit=5), timeout=60))
            for _ in range(MAX_CALLS)
        ]
        await settle(1)
        with pytest.raises(ExhaustedError, match="under way already"):
            await apply(ends)
        # Another caller, who does not count, is told by the one that serves.
        beyond = pb.ControlMessage(message_id=10_000, call=pb.CallRequest(method="ApplyWorkload"))
        await ends.server.take(beyond)
        await asyncio.gather(*tasks)
        assert await apply(ends)


class TestStreamed:
    async def test_it_is_read_to_its_end_or_to_its_error(self, ends):
        request = agent.ReadLogsRequest(workload_id="w", tail_lines=100)
        data = [chunk.data async for chunk in ends.caller.stream(LOGS, request)]
        assert data == [str(number).encode() for number in range(100)]
        request.workload_id = "breaks"
        chunks = ends.caller.stream(LOGS, request)
        for _ in range(100):
            await anext(chunks)
        with pytest.raises(UnavailableError, match="the disk is gone"):
            await anext(chunks)

    async def test_a_slow_reader_slows_the_writer_and_holds_up_no_order(self, ends):
        chunks = ends.caller.stream(LOGS, agent.ReadLogsRequest(workload_id="w"))
        assert (await anext(chunks)).data == b"0"
        await settle(60)
        assert ends.handlers.sent <= CREDIT + 2
        assert await apply(ends, timeout=1)
        for number in range(1, 500):
            assert (await anext(chunks)).data == str(number).encode()
        await chunks.aclose()
        await settle()
        assert ends.handlers.ended == ["w"]

    async def test_many_followers_get_their_turns(self, ends):
        async def follow():
            request = agent.ReadLogsRequest(workload_id="w", tail_lines=200)
            return [chunk.data async for chunk in ends.caller.stream(LOGS, request)]

        for data in await asyncio.gather(*(follow() for _ in range(20))):
            assert data == [str(number).encode() for number in range(200)]

    async def test_a_limit_of_time_holds_for_all_of_it(self, ends):
        async def quiet(request, call):
            yield agent.LogChunk(data=b"one")
            await asyncio.sleep(1000)

        ends.handlers.read_logs = quiet
        ends.server = CallServer([Service(methods_of(AgentService), ends.handlers)], ends.up, peer="control")
        chunks = ends.caller.stream(LOGS, agent.ReadLogsRequest(workload_id="w"), timeout=5)
        assert (await anext(chunks)).data == b"one"
        with pytest.raises(DeadlineError):
            await anext(chunks)
        await settle()

    async def test_a_writer_that_ignores_the_credit_is_cut_off(self, ends):
        chunks = ends.caller.stream(LOGS, agent.ReadLogsRequest(workload_id="w"))
        await anext(chunks)
        (call_id,) = ends.caller._under_way
        for _ in range(CREDIT + 1):
            more = pb.CallReply(response=b"", more=True)
            ends.caller.take(pb.ControlMessage(in_reply_to=call_id, call_reply=more))
        with pytest.raises(ExhaustedError):
            async for _chunk in chunks:
                pass
        await settle()
        assert ends.handlers.ended == ["w"]


class TestWrongMessages:
    async def test_replies_that_have_not_the_shape_of_the_method(self, ends):
        ends.pipes[1].cancel()
        for reply, error in (
            (pb.CallReply(more=True), InternalError),
            (pb.CallReply(response=b"\xff\xff"), InternalError),
            (pb.CallReply(status=pb.CallStatus(code=99, message="what")), InternalError),
        ):
            task = asyncio.ensure_future(apply(ends))
            await settle()
            (call_id,) = ends.caller._under_way
            ends.caller.take(pb.ControlMessage(in_reply_to=call_id, call_reply=reply))
            with pytest.raises(error):
                await task
        task = asyncio.ensure_future(apply(ends))
        await settle()
        (call_id,) = ends.caller._under_way
        ends.caller.take(pb.ControlMessage(in_reply_to=call_id, error=pb.CallStatus()))
        with pytest.raises(InternalError):
            await task

    async def test_both_ways_to_the_end(self, ends):
        async def pieces():
            for number in range(3 * CREDIT):
                yield execution.ExecRequest(input=str(number).encode())

        answers = [each async for each in ends.caller.converse(EXEC, pieces())]
        assert [each.stdout for each in answers[:-1]] == [str(number).encode() for number in range(3 * CREDIT)]
        assert answers[-1].ended.exit_code == 7

    async def test_both_ways_an_error_ends_the_call(self, ends):
        with pytest.raises(UnavailableError, match="it broke"):
            async for _ in ends.caller.converse(EXEC, inputs(b"one", b"break")):
                pass
        assert ends.echo.ended == 1

    async def test_both_ways_a_handler_that_does_not_read_slows_the_caller(self, ends):
        ends.echo.reads.clear()
        given = 0

        async def pieces():
            nonlocal given
            while True:
                given += 1
                yield execution.ExecRequest(input=b"x")

        stream = ends.caller.converse(EXEC, pieces())
        await anext(stream)
        await settle(1)
        assert ends.echo.taken == 1
        assert given <= 2 * CREDIT
        assert (await apply(ends)).applied
        await stream.aclose()
        await settle()
        assert ends.echo.ended == 1

    async def test_both_ways_requests_that_fail_end_the_call(self, ends):
        async def pieces():
            yield execution.ExecRequest(input=b"one")
            raise UnavailableError("the client is gone")

        with pytest.raises(UnavailableError, match="the client is gone"):
            async for _ in ends.caller.converse(EXEC, pieces()):
                pass
        await settle()
        assert ends.echo.ended == 1

    async def test_both_ways_requests_that_ignore_the_credit_end_the_call(self, ends):
        ends.echo.reads.clear()
        stream = ends.caller.converse(EXEC, inputs(b"one"))
        await anext(stream)
        for _ in range(2 * CREDIT):
            piece = pb.CallRequest(piece=True)
            await ends.server.take(pb.ControlMessage(in_reply_to=1, call=piece))
        await settle()
        assert ends.echo.ended == 1
        await stream.aclose()

    async def test_calls_without_a_name_or_with_one_in_use_are_refused(self, ends):
        call = pb.CallRequest(method="ListActions")
        call.request = agent.ListActionsRequest(limit=10).SerializeToString()
        ends.pipes[1].cancel()
        await ends.server.take(pb.ControlMessage(call=call))
        await ends.server.take(pb.ControlMessage(message_id=1, call=call))
        await ends.server.take(pb.ControlMessage(message_id=1, call=call))
        ends.up.batches = False
        for _ in range(2):
            refused = await ends.up.next()
            assert status_from_proto(refused.error).code is Code.INVALID_ARGUMENT
        await ends.server.take(pb.ControlMessage(in_reply_to=1, call=pb.CallRequest(cancel=True)))
        await settle()

    async def test_one_that_is_ended_before_it_began_leaves_nothing_behind(self, ends):
        await ends.server.take(pb.ControlMessage(message_id=1, call=pb.CallRequest(method="ListActions")))
        await ends.server.take(pb.ControlMessage(in_reply_to=1, call=pb.CallRequest(cancel=True)))
        await settle()
        assert not ends.server._served


@pytest.mark.looptime(enabled=False)
@given(message=messages(pb.ControlMessage))
@settings(max_examples=60, deadline=None)
def test_no_message_breaks_either_end(message):
    async def body():
        made = Ends()
        try:
            call = asyncio.ensure_future(apply(made, timeout=5))
            await settle()
            made.caller.take(message)
            async with asyncio.timeout(5):
                await made.server.take(message)
            await settle()
            with contextlib.suppress(Exception):
                await call
            assert (await apply(made)).applied
        finally:
            await made.close()

    asyncio.run(body())


class TestOutbox:
    async def test_small_messages_overtake_pieces(self):
        outbox = Outbox()
        for number in range(3):
            await outbox.put(pb.ControlMessage(message_id=number + 1), piece=True)
        await outbox.put(pb.ControlMessage(message_id=100))
        outbox.close()
        assert [message.message_id async for message in outbox.messages()] == [100, 1, 2, 3]

    async def test_small_messages_that_wait_go_in_one(self):
        outbox = Outbox()
        outbox.batches = True
        for number in range(5):
            await outbox.put(pb.ControlMessage(message_id=number + 1))
        for number in range(2):
            await outbox.put(pb.ControlMessage(message_id=100 + number), piece=True)
        outbox.close()
        sent = [message async for message in outbox.messages()]
        assert [[each.message_id for each in messages_in(message)] for message in sent] == [
            [1, 2, 3, 4, 5],
            [100],
            [101],
        ]

    async def test_a_message_that_is_alone_is_sent_as_it_is(self):
        outbox = Outbox()
        outbox.batches = True
        await outbox.put(pb.ControlMessage(message_id=7))
        assert await outbox.next() == pb.ControlMessage(message_id=7)

    async def test_large_messages_are_not_put_together(self):
        outbox = Outbox()
        outbox.batches = True
        large = pb.CallRequest(request=bytes(200 * 1024))
        for number, call in enumerate([None, large, None, large], 1):
            await outbox.put(pb.ControlMessage(message_id=number, call=call))
        outbox.close()
        sent = [message async for message in outbox.messages()]
        assert [[each.message_id for each in messages_in(message)] for message in sent] == [[1, 2, 3], [4]]

    async def test_a_sender_that_waits_for_room_learns_that_the_stream_closed(self):
        outbox = Outbox()

        async def fill(piece):
            while True:
                await outbox.put(pb.ControlMessage(), piece=piece)

        tasks = [asyncio.ensure_future(fill(piece)) for piece in (False, True, True)]
        await settle(10)
        outbox.close()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, UnavailableError)
        assert len([message async for message in outbox.messages()]) <= 80
