"""How a task host looks for its coordinator: where it was, then where the control plane says; it complains first."""

from types import SimpleNamespace

import pytest

from shoal.core.errors import UnavailableError
from shoal.dataflow.execution.remote.board import Answer
from shoal.dataflow.execution.remote.task_host import Known, Search
from shoal.dataflow.fleet.reports import CoordinatorReport, Phase, decode_host, encode


class Clock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


class Board:
    """A control plane that knows a coordinator, or none, or does not answer."""

    def __init__(self, report=None, *, is_away=False):
        self.report_of_coordinator = report
        self.is_away = is_away
        self.heard = []

    def report(self, content, _read=()):
        self.heard.append(decode_host(content))
        if self.is_away:
            raise UnavailableError("away")
        known = self.report_of_coordinator
        return Answer("Running", "submit", 1, False, 1, {} if known is None else {"j-coordinator": encode(known)})


OLD = Known("old:1", 4, "n0")
NEW = CoordinatorReport(Phase.STARTING, term=5, address="new:2", node="n1")


@pytest.fixture
def clock():
    return Clock()


def search(tmp_path, board, clock):
    return Search(SimpleNamespace(job_id="j"), board, "j-coordinator", 2, tmp_path, clock=clock)


def begin(tmp_path, board, clock, *, quiet=0.0):
    """The next image of a process that has heard its coordinator, and then did not for a while."""
    first = search(tmp_path, board, clock)
    first.heard(OLD)
    clock.now += quiet
    first.remember(first.known)
    return search(tmp_path, board, clock)


def test_between_two_epochs_it_goes_where_the_coordinator_was(tmp_path, clock):
    board = Board(NEW)
    found = begin(tmp_path, board, clock).candidates()
    assert next(found).address == "old:1"
    assert board.heard == []
    assert next(found).address == "new:2"


def test_a_coordinator_that_stands_still_is_told_before_anybody_connects_to_it(tmp_path, clock):
    board = Board(NEW)
    found = next(begin(tmp_path, board, clock, quiet=3.2).candidates())
    assert [(each.number, each.term, each.node) for each in board.heard] == [(2, 4, "n0")]
    assert board.heard[0].misses == pytest.approx(3.2)
    assert (found.address, found.term) == ("new:2", 5)


@pytest.mark.parametrize("board", [Board(), Board(is_away=True)], ids=["nothing known", "away"])
def test_without_a_word_of_the_control_plane_it_goes_where_the_coordinator_was(tmp_path, clock, board):
    assert next(begin(tmp_path, board, clock, quiet=10).candidates()).address == "old:1"


def test_a_short_silence_is_no_complaint(tmp_path, clock):
    board = Board(NEW)
    next(begin(tmp_path, board, clock, quiet=2.0).candidates())
    assert [each.misses for each in board.heard] == [0.0]


def test_a_host_that_its_agent_started_again_begins_to_count(tmp_path, clock, monkeypatch):
    board = Board(NEW)
    began = begin(tmp_path, board, clock, quiet=3600)
    assert began.misses == pytest.approx(3600)
    monkeypatch.setattr("os.getpid", lambda: 1)
    assert search(tmp_path, board, clock).misses == 0.0
