"""Which checkpoint a start goes on from: a pure decision, over every combination of what it may know."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from shoal.dataflow.checkpoint.restore import Choice, Refusal, SinkFacts, StartFacts, StartRequest, choose
from shoal.dataflow.connectors.markers import ALL_TASKS, Marker

OWN, OTHER = 7, 8


def facts(
    newest: int = 5,
    through: int | None = 5,
    markers: dict[int, Marker | None] | None = None,
    damaged: dict[int, str] | None = None,
    *,
    prepared: tuple[int, ...] = (),
    is_repeatable: bool = False,
) -> StartFacts:
    found = {ALL_TASKS: Marker(OWN, 5)} if markers is None else markers
    sink = SinkFacts("out", "topic out", found, frozenset(prepared), is_repeatable)
    return StartFacts("job", "/data/job", OWN, through, newest, damaged or {}, [sink])


def accepted(known: StartFacts, number: int | None = None) -> Choice | Refusal:
    return choose(known, StartRequest(number, accept_duplicates=True))


def test_a_job_goes_on_from_its_newest_checkpoint():
    assert choose(facts(), StartRequest()) == Choice(5, {"out": {ALL_TASKS: 5}})


def test_a_new_job_starts_at_the_beginning():
    known = facts(newest=0, through=0, markers={0: None, 1: None})
    assert choose(known, StartRequest()) == Choice(0, {"out": {0: 0, 1: 0}})


def test_a_damaged_checkpoint_that_nobody_committed_is_passed_over():
    known = facts(newest=5, damaged={6: "torn"})
    assert choose(known, StartRequest()) == Choice(5, {"out": {ALL_TASKS: 5}})


@pytest.mark.parametrize(
    ("through", "marker"), [(6, Marker(OWN, 6)), (5, Marker(OWN, 6)), (6, Marker(OWN, 4)), (6, None)]
)
def test_a_damaged_checkpoint_that_was_committed_is_not(through, marker):
    known = facts(newest=5, through=through, markers={0: marker, 1: Marker(OWN, 5)}, damaged={6: "torn"})
    refused = choose(known, StartRequest())
    assert isinstance(refused, Refusal)
    assert "topic out has committed checkpoint 6" in refused.text
    assert "6: torn" in refused.text
    assert "--from-checkpoint 5 --accept-duplicates" in refused.hint
    assert accepted(known).checkpoint == 5


def test_an_absent_marker_is_not_zero():
    known = facts(newest=5, through=5, markers={0: None}, prepared=(0,))
    assert choose(known, StartRequest()) == Choice(5, {"out": {0: 5}})


def test_output_beyond_the_record_whose_marker_is_gone_is_in_doubt():
    known = facts(newest=6, through=5, markers={0: None, 1: Marker(OWN, 6)}, prepared=(0, 1))
    refused = choose(known, StartRequest())
    assert isinstance(refused, Refusal)
    assert "cannot tell whether topic out has the output of checkpoint 6" in refused.text
    assert accepted(known) == Choice(6, {"out": {0: 5, 1: 6}})


@pytest.mark.parametrize("key", [0, ALL_TASKS])
def test_there_is_no_doubt_without_output_or_where_it_can_be_committed_again(key):
    assert choose(facts(newest=6, through=5, markers={key: None}), StartRequest()) == Choice(6, {"out": {key: 5}})
    known = facts(newest=6, through=5, markers={key: None}, prepared=(0,), is_repeatable=True)
    assert choose(known, StartRequest()) == Choice(6, {"out": {key: 5}})
    assert isinstance(choose(facts(newest=6, through=5, markers={key: None}, prepared=(0,)), StartRequest()), Refusal)


def test_a_marker_of_another_life_of_the_job_is_a_warning():
    known = facts(newest=0, through=0, markers={0: Marker(OTHER, 41)})
    refused = choose(known, StartRequest())
    assert isinstance(refused, Refusal)
    assert "another incarnation of job 'job': topic out through checkpoint 41" in refused.text
    assert "/data/job" in refused.text
    assert accepted(known) == Choice(0, {"out": {0: 0}}, is_rollback=True)
    known = facts(newest=0, through=0, markers={0: Marker(OTHER, 0)})
    assert choose(known, StartRequest()) == Choice(0, {"out": {0: 0}})


def test_a_person_may_go_back():
    known = facts(newest=3)
    assert isinstance(choose(known, StartRequest(3)), Refusal)
    assert accepted(known, 3) == Choice(3, {"out": {ALL_TASKS: 5}}, is_rollback=True)
    assert accepted(facts()) == Choice(5, {"out": {ALL_TASKS: 5}})
    assert isinstance(choose(facts(), StartRequest(0)), Refusal)
    assert accepted(facts(), 0).checkpoint == 0


@pytest.mark.parametrize("base", [0, 3])
def test_a_rollback_stays_accepted_until_there_is_a_checkpoint_after_it(base):
    rolled_back = replace(facts(newest=base), base=base, highest=5)
    assert choose(rolled_back, StartRequest()).checkpoint == base
    foreign = replace(rolled_back, sinks=[SinkFacts("out", "topic out", {0: Marker(OTHER, 5)})])
    assert choose(foreign, StartRequest()).checkpoint == base
    committed = replace(rolled_back, through=6)
    assert isinstance(choose(committed, StartRequest()), Refusal)
    assert choose(replace(committed, newest=6), StartRequest()) == Choice(6, {"out": {ALL_TASKS: 6}})
    assert isinstance(choose(replace(foreign, newest=6), StartRequest()), Refusal)


def test_what_cannot_be_read_is_named():
    refused = choose(facts(newest=0, damaged={6: "torn", 5: "gone"}), StartRequest())
    assert isinstance(refused, Refusal)
    assert "none of the checkpoints of job 'job' can be read, the newest, 6: torn" in refused.text
    asked = accepted(facts(newest=0, damaged={6: "torn"}), 6)
    assert isinstance(asked, Refusal)
    assert "cannot go on from checkpoint 6 in /data/job: torn" in asked.text
    missing = accepted(facts(newest=0), 9)
    assert isinstance(missing, Refusal)
    assert "there is none with this number" in missing.text


def test_a_job_from_before_records_goes_by_its_markers():
    known = facts(newest=5, through=None, markers={0: Marker(OWN, 4)}, prepared=(0,))
    assert choose(known, StartRequest()) == Choice(5, {"out": {0: 4}})
    assert isinstance(choose(facts(newest=5, through=None, markers={0: None}, prepared=(0,)), StartRequest()), Refusal)


def test_nothing_is_ever_committed_twice_unless_somebody_accepts_it():
    """Over all small facts: where the truth is that a sink has committed `truth`, no choice sends that again."""
    numbers = range(4)
    kinds = ["own", "absent", "other"]
    for newest, through, truth, kind, has_output in itertools.product(numbers, numbers, numbers, kinds, (True, False)):
        if through > truth or truth > newest + 1:
            continue  # the record is written after the commit; a checkpoint is complete before it
        marker = {"own": Marker(OWN, truth), "absent": None, "other": Marker(OTHER, truth)}[kind]
        known = facts(newest, through, {0: marker}, prepared=(0,) if has_output else ())
        choice = choose(known, StartRequest())
        if isinstance(choice, Refusal) or kind == "other":
            assert isinstance(choice, Refusal) or not truth
            continue
        again = [number for number in range(1, choice.checkpoint + 1) if choice.committed["out"][0] < number <= truth]
        sent_again = again if has_output else []
        lost_marker_before_any_record = kind == "absent" and truth > newest
        assert not sent_again, known
        assert choice.checkpoint >= truth or lost_marker_before_any_record, known
