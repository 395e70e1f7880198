"""What every transport of `shoal.exchange` promises.

A test module makes a subclass per transport and overrides the fixture `endpoints`, which makes endpoints that reach
each other:

    class TestLocal(ExchangeSuite):
        __test__ = True

        @pytest.fixture
        def endpoints(self) -> Iterator[MakeEndpoint]:
            board = Switchboard()
            with closing_all() as made:
                yield lambda gate: made(board.endpoint(gate))
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pyarrow as pa
import pytest

from shoal.core.errors import (
    DeniedError,
    NotFoundError,
    PreconditionError,
    ShoalError,
    UnauthenticatedError,
)
from shoal.exchange.base import Control, End, Endpoint, Sender
from shoal.exchange.errors import Cancelled, PeerFailedError, PeerLostError, StaleEpochError
from shoal.exchange.inbox import Inbox, Received
from shoal.exchange.tokens import Gate, JobKey

MakeEndpoint: TypeAlias = Callable[[Gate], Endpoint]

KEY = JobKey(b"k" * 32)
GATE = Gate("orders", 7, KEY)
#: How long anything may take that ends by itself. Never waited for in full.
LONG = 30.0
MARK, NEWEST = 1, 2


@contextlib.contextmanager
def closing_all() -> Iterator[Callable[[Endpoint], Endpoint]]:
    """Close every endpoint that was made, at the end."""
    made: list[Endpoint] = []

    def keep(endpoint: Endpoint) -> Endpoint:
        made.append(endpoint)
        return endpoint

    try:
        yield keep
    finally:
        for endpoint in made:
            endpoint.close()


def rows(count: int, start: int = 0) -> Any:
    """A batch of some rows."""
    return pa.record_batch({"n": pa.array(range(start, start + count), pa.int64())})


def read(inbox: Inbox) -> Any:
    """The next item, which has to come."""
    received = inbox.get(LONG)
    assert received is not None, "nothing came"
    return received.item


class _Thread:
    """A call in another thread, and what it raised."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.raised: BaseException | None = None
        self._call = call
        self.done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.raised = error
        self.done.set()

    def join(self) -> BaseException | None:
        """What it raised, once it is over."""
        assert self.done.wait(LONG), "it still runs"
        return self.raised


class ExchangeSuite:
    """Conformance of a transport."""

    __test__ = False

    @pytest.fixture
    def endpoints(self) -> Iterator[MakeEndpoint]:
        """Makes endpoints that reach each other."""
        raise NotImplementedError

    def open(self, endpoints: MakeEndpoint, *, capacity: int = 1 << 20) -> tuple[Sender, Inbox]:
        """A channel, both ends."""
        inbox = Inbox(1, capacity=capacity)
        receiver, sender = endpoints(GATE), endpoints(GATE)
        receiver.serve(["c"], inbox)
        return sender.connect(receiver.address, "c"), inbox

    # -- order ------------------------------------------------------------------------------------------------

    def test_batches_and_control_frames_keep_their_order(self, endpoints: MakeEndpoint) -> None:
        sender, inbox = self.open(endpoints)
        sent: list[Any] = []
        for number in range(50):
            sent += [rows(number % 7, number), Control(MARK, number, b"body" * (number % 3))]
        for item in sent:
            (sender.control if isinstance(item, Control) else sender.send)(item)
        sender.end()
        for item in sent:
            got = read(inbox)
            assert got.equals(item) if isinstance(item, pa.RecordBatch) else got == item
        assert read(inbox) == End()

    def test_every_type_of_column_arrives(self, endpoints: MakeEndpoint) -> None:
        sender, inbox = self.open(endpoints)
        words = pa.array(["a", None, "ccc"])
        batches = [
            pa.record_batch({"s": words, "d": words.dictionary_encode()}),
            pa.record_batch({"d": pa.array(["x", "a", "y"]).dictionary_encode()}),
            pa.record_batch({"l": pa.array([[1], None, [2, 3]]), "t": pa.array([{"a": 1}, None, {"a": 2}])}),
            pa.record_batch({"b": pa.array([True, None, False]), "n": pa.nulls(3), "x": pa.array([b"", b"1", None])}),
            pa.record_batch([], names=[]),
            rows(0),
            rows(1000).slice(100, 50),
            pa.record_batch({"s": pa.array([str(n) for n in range(1000)])}).slice(990, 10),
            rows(3).replace_schema_metadata({"k": "v"}),
        ]
        for batch in batches:
            sender.send(batch)
        for batch in batches:
            got = read(inbox)
            got.validate(full=True)
            assert got.equals(batch, check_metadata=True)

    def test_channels_of_two_senders_meet_in_one_inbox(self, endpoints: MakeEndpoint) -> None:
        inbox = Inbox(3, capacity=1 << 20)
        receiver, one, two = endpoints(GATE), endpoints(GATE), endpoints(GATE)
        receiver.serve(["a", "b", "c"], inbox)
        senders = [one.connect(receiver.address, name) for name in ("a", "b")] + [two.connect(receiver.address, "c")]
        for index, sender in enumerate(senders):
            sender.send(rows(1, index))
            sender.end()
        found: dict[int, list[Any]] = {0: [], 1: [], 2: []}
        for _ in range(6):
            received = inbox.get(LONG)
            assert isinstance(received, Received)
            found[received.channel].append(received.item)
        for index, items in found.items():
            assert [items[0].column(0).to_pylist(), items[1]] == [[index], End()]

    def test_reading_is_fair(self, endpoints: MakeEndpoint) -> None:
        inbox = Inbox(2, capacity=1 << 20)
        receiver, sender = endpoints(GATE), endpoints(GATE)
        receiver.serve(["a", "b"], inbox)
        busy, quiet = (sender.connect(receiver.address, name) for name in ("a", "b"))
        for _ in range(20):
            busy.send(rows(1))
        quiet.send(rows(1))
        quiet.end()
        self.wait_until(lambda: len(inbox._queues[1].items) == 2)  # noqa: SLF001
        channels = [received.channel for _ in range(4) if (received := inbox.get(LONG)) is not None]
        assert channels.count(1) == 2

    # -- credit -----------------------------------------------------------------------------------------------

    def test_a_slow_receiver_stops_its_sender(self, endpoints: MakeEndpoint) -> None:
        batch = rows(1000)
        sender, inbox = self.open(endpoints, capacity=20_000)
        sent: list[int] = []

        def send() -> None:
            for number in range(50):
                sender.send(batch)
                sent.append(number)
            sender.end()

        thread = _Thread(send)
        self.wait_until(lambda: len(sent) == 2)
        assert not thread.done.wait(0.2)
        assert len(sent) == 2
        assert inbox.waiting_bytes <= 20_000
        got, most = 0, 0
        while not isinstance(read(inbox), End):
            got += 1
            most = max(most, inbox.waiting_bytes)
        assert (got, thread.join()) == (50, None)
        assert most <= 20_000

    def test_control_frames_need_no_credit_and_pass_nothing(self, endpoints: MakeEndpoint) -> None:
        batch = rows(1000)
        sender, inbox = self.open(endpoints, capacity=1)
        sender.send(batch)
        sender.control(Control(MARK, 1))
        sender.end()
        assert read(inbox).equals(batch)
        assert [read(inbox), read(inbox)] == [Control(MARK, 1), End()]

    def test_a_batch_larger_than_the_credit_goes_through_alone(self, endpoints: MakeEndpoint) -> None:
        sender, inbox = self.open(endpoints, capacity=1000)
        batches = [rows(10_000, start) for start in range(3)]
        thread = _Thread(lambda: list(map(sender.send, batches)))
        for batch in batches:
            assert read(inbox).equals(batch)
        assert thread.join() is None

    def test_a_frame_supersedes_those_right_before_it_only(self, endpoints: MakeEndpoint) -> None:
        sender, inbox = self.open(endpoints)
        newest = 1 << NEWEST
        sender.control(Control(NEWEST, 1, supersedes=newest))
        sender.control(Control(MARK, 2))
        for value in range(20_000):
            sender.control(Control(NEWEST, value, supersedes=newest))
        sender.end()
        self.wait_until(lambda: inbox._queues[0].ended)  # noqa: SLF001
        got = [read(inbox) for _ in range(4)]
        assert [each.value for each in got[:3]] == [1, 2, 19_999]
        assert got[3] == End()

    # -- failing ----------------------------------------------------------------------------------------------

    def test_a_senders_error_comes_behind_what_it_sent(self, endpoints: MakeEndpoint) -> None:
        sender, inbox = self.open(endpoints)
        sender.send(rows(2))
        sender.fail(ValueError("no such thing"))
        assert read(inbox).num_rows == 2
        with pytest.raises(PeerFailedError, match="ValueError: no such thing"):
            inbox.get(LONG)

    def test_a_typed_error_stays_what_it_is(self, endpoints: MakeEndpoint) -> None:
        sender, inbox = self.open(endpoints)
        sender.fail(PreconditionError("not now", hint="later", why="rain"))
        with pytest.raises(PreconditionError, match="not now") as raised:
            inbox.get(LONG)
        assert (raised.value.hint, raised.value.facts) == ("later", {"why": "rain"})

    def test_a_sender_that_is_closed_early_is_lost(self, endpoints: MakeEndpoint) -> None:
        sender, inbox = self.open(endpoints)
        sender.send(rows(2))
        sender.close()
        assert read(inbox).num_rows == 2
        with pytest.raises(PeerLostError):
            inbox.get(LONG)
        with pytest.raises(Cancelled):
            sender.send(rows(1))

    def test_a_sender_that_has_ended_is_not_lost(self, endpoints: MakeEndpoint) -> None:
        sender, inbox = self.open(endpoints)
        sender.end()
        sender.close()
        assert read(inbox) == End()
        assert inbox.get(0.05) is None

    def test_a_receiver_that_is_closed_is_lost_to_its_sender(self, endpoints: MakeEndpoint) -> None:
        sender, inbox = self.open(endpoints, capacity=1)
        sender.send(rows(10))
        thread = _Thread(lambda: sender.send(rows(10)))
        inbox.cancel()
        assert isinstance(thread.join(), PeerLostError)
        with pytest.raises(Cancelled):
            inbox.get(LONG)

    def test_one_receiver_closed_leaves_the_others(self, endpoints: MakeEndpoint) -> None:
        gone, stays = Inbox(1, capacity=1), Inbox(1, capacity=1 << 20)
        receiver, sender = endpoints(GATE), endpoints(GATE)
        receiver.serve(["gone"], gone)
        receiver.serve(["stays"], stays)
        lost, good = (sender.connect(receiver.address, name) for name in ("gone", "stays"))
        gone.cancel()
        self.wait_until(lambda: _raises(lambda: lost.send(rows(1)), PeerLostError))
        good.send(rows(3))
        assert read(stays).num_rows == 3

    def test_a_sender_that_waits_can_be_closed(self, endpoints: MakeEndpoint) -> None:
        sender, _inbox = self.open(endpoints, capacity=1)
        sender.send(rows(10))
        thread = _Thread(lambda: sender.send(rows(10)))
        sender.close()
        assert isinstance(thread.join(), Cancelled)

    def test_closing_an_endpoint_ends_its_channels(self, endpoints: MakeEndpoint) -> None:
        inbox = Inbox(1, capacity=1)
        receiver, sending = endpoints(GATE), endpoints(GATE)
        receiver.serve(["c"], inbox)
        sender = sending.connect(receiver.address, "c")
        sender.send(rows(10))
        thread = _Thread(lambda: sender.send(rows(10)))
        sending.close()
        assert isinstance(thread.join(), Cancelled | PeerLostError)
        assert read(inbox).num_rows == 10
        with pytest.raises(PeerLostError):
            inbox.get(LONG)
        with pytest.raises(ShoalError):
            sending.connect(receiver.address, "c")

    def test_a_reader_can_be_woken(self, endpoints: MakeEndpoint) -> None:
        _sender, inbox = self.open(endpoints)
        inbox.wake()
        assert inbox.get(LONG) is None
        thread = _Thread(lambda: inbox.get(None))
        inbox.wake()
        assert thread.join() is None

    # -- who may connect --------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("gate", "error"),
        [
            (Gate("orders", 6, KEY), StaleEpochError),
            (Gate("orders", 8, KEY), StaleEpochError),
            (Gate("others", 7, KEY), DeniedError),
            (Gate("orders", 7, JobKey(b"x" * 32)), UnauthenticatedError),
        ],
        ids=["older epoch", "newer epoch", "other job", "other key"],
    )
    def test_strangers_are_refused(self, endpoints: MakeEndpoint, gate: Gate, error: type[ShoalError]) -> None:
        receiver, stranger = endpoints(GATE), endpoints(gate)
        inbox = Inbox(1, capacity=100)
        receiver.serve(["c"], inbox)
        with pytest.raises(error):
            stranger.connect(receiver.address, "c")
        endpoints(GATE).connect(receiver.address, "c").end()
        assert read(inbox) == End()

    def test_unknown_channels_and_second_senders_are_refused(self, endpoints: MakeEndpoint) -> None:
        receiver, sender = endpoints(GATE), endpoints(GATE)
        inbox = Inbox(2, capacity=100)
        receiver.serve(["", "c"], inbox)
        for name in ("d", ""):
            with pytest.raises(NotFoundError):
                sender.connect(receiver.address, name)
        first = sender.connect(receiver.address, "c")
        for other in (sender, endpoints(GATE)):
            with pytest.raises(PreconditionError, match="has a sender already"):
                other.connect(receiver.address, "c")
        first.end()
        assert read(inbox) == End()

    def test_nobody_there(self, endpoints: MakeEndpoint) -> None:
        receiver, sender = endpoints(GATE), endpoints(GATE)
        receiver.close()
        with pytest.raises(PeerLostError):
            sender.connect(receiver.address, "c")

    @staticmethod
    def wait_until(condition: Callable[[], bool]) -> None:
        """Wait for a state."""
        pause = threading.Event()
        for _ in range(int(LONG / 0.01)):
            if condition():
                return
            pause.wait(0.01)
        pytest.fail("it did not come to that")


def _raises(call: Callable[[], object], error: type[BaseException]) -> bool:
    try:
        call()
    except error:
        return True
    return False
