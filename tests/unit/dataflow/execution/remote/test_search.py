"""How a task host looks for its coordinator: where it was, then where the control plane says; it complains first."""

from types import SimpleNamespace

import pytest

from shoal.core.errors import UnavailableError
from shoal.dataflow.execution.hosts.control_messages import JoinEpoch
from shoal.dataflow.execution.remote.board import Answer
from shoal.dataflow.execution.remote.delegated import TermKey
from shoal.dataflow.execution.remote.task_host import Known, Search
from shoal.dataflow.fleet.reports import CoordinatorReport, Phase, decode_host, encode
from shoal.exchange.tokens import JobKey


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
        self.key = TermKey()

    def report(self, content, _read=(), *, key_of=""):
        assert key_of == "j-coordinator"
        self.heard.append(decode_host(content))
        if self.is_away:
            raise UnavailableError("away")
        known = self.report_of_coordinator
        reports = {} if known is None else {"j-coordinator": encode(known)}
        return Answer("Running", "submit", 1, False, 1, reports, self.key)


OLD = Known("old:1", 4, "n0")
NEW = CoordinatorReport(Phase.STARTING, term=5, address="new:2", node="n1")


@pytest.fixture
def clock():
    return Clock()


def search(tmp_path, board, clock):
    return Search(SimpleNamespace(job_id="j"), board, "j-coordinator", 2, tmp_path, clock=clock)


def begin(tmp_path, board, clock, *, quiet=0.0, takes=0.0):
    """The next image of a process that has heard its coordinator, and then did not for a while. It takes so long."""
    first = search(tmp_path, board, clock)
    first.heard(OLD)
    clock.now += quiet
    first.remember(first.known)
    clock.now += takes
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


def test_an_image_that_takes_long_to_begin_tries_its_coordinator_before_it_complains(tmp_path, clock):
    """Machines that are busy would else move a coordinator that lives, whenever its task hosts begin again."""
    board = Board(NEW)
    found = begin(tmp_path, board, clock, quiet=1.0, takes=4.0).candidates()
    assert next(found).address == "old:1"
    assert board.heard == []
    assert next(found).address == "new:2"
    assert [each.misses for each in board.heard] == [pytest.approx(5.0)]


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


def joins(secret, *, term=4, epoch=7):
    return JoinEpoch(term, epoch, b"", JobKey(secret).proof("j", epoch), False)


FOUR, FIVE = TermKey(4, b"4" * 32), TermKey(5, b"5" * 32)


def test_the_key_of_a_term_is_that_of_the_control_plane_and_is_kept(tmp_path, clock):
    board = Board(NEW)
    board.key = FOUR
    assert search(tmp_path, board, clock).key_for("j", joins(FOUR.secret)) == JobKey(FOUR.secret)
    assert (tmp_path / "job.key").stat().st_mode & 0o777 == 0o600
    away = Board(is_away=True)
    assert search(tmp_path, away, clock).key_for("j", joins(FOUR.secret)) == JobKey(FOUR.secret)
    assert away.heard == []  # nobody was asked


def test_a_coordinator_of_an_older_term_or_with_another_key_gives_no_work(tmp_path, clock):
    board = Board(NEW)
    board.key = FIVE
    host = search(tmp_path, board, clock)
    assert host.key_for("j", joins(FOUR.secret)) is None
    assert host.key_for("j", joins(FOUR.secret, term=5)) is None
    assert host.key_for("j", joins(FIVE.secret, term=5)) == JobKey(FIVE.secret)


def test_a_key_that_has_changed_is_asked_for(tmp_path, clock):
    board = Board(NEW)
    board.key = TermKey(4, b"old" * 11)
    host = search(tmp_path, board, clock)
    host.ask()
    board.key = FOUR
    assert host.key_for("j", joins(FOUR.secret)) == JobKey(FOUR.secret)


def test_a_key_that_the_coordinator_hands_over_is_taken_unless_its_term_is_over(tmp_path, clock):
    secret = b"own" * 8
    joined = JoinEpoch(4, 7, secret, JobKey(secret).proof("j", 7), False)
    board = Board(is_away=True)
    assert search(tmp_path, board, clock).key_for("j", joined) == JobKey(secret)
    assert b"own" not in repr(joined).encode()
    assert "4444" not in repr(FOUR)
    newer = Board(NEW)
    newer.key = FIVE
    host = search(tmp_path, newer, clock)
    host.ask()
    assert host.key_for("j", joined) is None
