"""Which commands are taken."""

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import timedelta

import pytest

from shoal.agent.facts import RunOutcome, Stage, WorkloadState
from shoal.agent.workloads.admission import ApplyCommand, DeleteCommand, claim_of, judge_apply, judge_delete, rules_of
from shoal.agent.workloads.state import begin_life
from shoal.core.errors import InvalidError, PreconditionError, StaleGenerationError
from shoal.core.ids import WorkloadId
from shoal.model.resources import Resources
from shoal.model.workloads import (
    CommandProbe,
    DesiredState,
    HttpProbe,
    NamedPort,
    Readiness,
    RestartPolicy,
    WorkloadType,
)
from tests.unit.agent.making import START, agent_spec, at, intent, process, rules


def command(**fields) -> ApplyCommand:
    base = intent()
    values = {
        "workload_id": base.workload_id,
        "type": WorkloadType.PROCESS,
        "revision_id": base.revision_id,
        "desired": DesiredState.RUNNING,
        "spec_bytes": base.spec_bytes,
        "spec_sha256": base.spec_sha256,
        "spec": agent_spec(),
        **fields,
    }
    return ApplyCommand(**values)


def here(**fields) -> WorkloadState:
    return begin_life(intent(**fields), rules(), at()).state


def judge(given: ApplyCommand, state=None, highest=0):
    return judge_apply(given, state, highest=highest, now=START)


def test_a_new_workload_begins_a_life_at_its_generation():
    decision = judge(command(generation=5))
    assert (decision.intent.generation, decision.intent.born, decision.skipped) == (5, 5, False)
    assert judge(command(), highest=8).intent.born == 9


@pytest.mark.parametrize("generation", [1, 7, 8])
def test_after_a_removal_only_a_newer_generation_is_taken(generation):
    with pytest.raises(StaleGenerationError):
        judge(command(generation=generation), highest=8)
    with pytest.raises(StaleGenerationError, match="removed at generation 8") as caught:
        judge(command(generation=8), here(generation=8, deleting=True), highest=8)
    assert pickle.loads(pickle.dumps(caught.value)).message == caught.value.message
    assert judge(command(generation=9), here(generation=8, deleting=True), highest=8).intent.born == 9


def test_an_older_generation_is_refused():
    with pytest.raises(StaleGenerationError) as caught:
        judge(command(generation=3), here(generation=4), highest=4)
    assert caught.value.facts == {"workload_id": "w", "offered": "3", "highest": "4"}


def test_the_same_command_again_changes_nothing():
    decision = judge(command(generation=4), here(generation=4), highest=4)
    assert (decision.skipped, decision.stored) == (True, False)


@pytest.mark.parametrize(
    "fields", [{"revision_id": "r2"}, {"spec_sha256": b"x"}, {"desired": DesiredState.STOPPED}, {"attempt": 1}]
)
def test_another_content_needs_another_generation(fields):
    with pytest.raises(PreconditionError, match="with another content"):
        judge(command(generation=4, **fields), here(generation=4), highest=4)
    decision = judge(command(generation=5, **fields), here(generation=4), highest=4)
    assert (decision.intent.generation, decision.intent.born, decision.stored) == (5, 1, True)
    assert decision.skipped is ("attempt" in fields)


def test_the_same_content_with_a_higher_generation_is_noted_and_skipped():
    decision = judge(command(generation=9), here(generation=4), highest=4)
    assert (decision.skipped, decision.stored, decision.intent.generation) == (True, True, 9)


def ended(outcome: RunOutcome, stage: Stage = Stage.RESTING) -> WorkloadState:
    state = here()
    return replace(state, stage=stage, progress=replace(state.progress, outcome=outcome, ended=True))


def test_the_same_content_is_a_request_to_try_again_what_has_failed():
    assert not judge(command(generation=2), ended(RunOutcome.FAILED), highest=1).skipped
    stopped = replace(ended(RunOutcome.FAILED), intent=intent(desired=DesiredState.STOPPED))
    assert judge(command(generation=2, desired=DesiredState.STOPPED), stopped, highest=1).skipped


@pytest.mark.parametrize("state", [ended(RunOutcome.COMPLETED), ended(RunOutcome.NONE, Stage.WAITING)])
def test_what_is_over_is_run_again_by_an_attempt_only(state):
    assert judge(command(generation=2), state, highest=1).skipped
    assert not judge(command(generation=2, attempt=1), state, highest=1).skipped


def test_attempts_never_fall():
    assert judge(command(generation=2), here(attempt=5), highest=1).intent.attempt == 5


def test_the_kind_of_a_workload_cannot_change():
    with pytest.raises(InvalidError, match="must stay process"):
        judge(command(generation=2, type=WorkloadType.VM), here(), highest=1)


@pytest.mark.parametrize(("generation", "expected"), [(0, 3), (3, 3), (7, 7)])
def test_a_delete_of_no_older_generation_is_accepted(generation, expected):
    decision = judge_delete(DeleteCommand(WorkloadId("w"), generation), here(generation=3), now=START)
    assert (decision.intent.deleting, decision.intent.generation, decision.skipped) == (True, expected, False)


def test_deleting():
    w = WorkloadId("w")
    assert judge_delete(DeleteCommand(w), None, now=START).intent is None
    assert not judge_delete(DeleteCommand(w), None, now=START).stored
    assert judge_delete(DeleteCommand(w, 4), None, now=START).stored
    with pytest.raises(StaleGenerationError):
        judge_delete(DeleteCommand(w, 2), here(generation=3), now=START)
    again = judge_delete(DeleteCommand(w, 3), here(generation=3, deleting=True), now=START)
    assert (again.skipped, again.stored) == (True, False)
    higher = judge_delete(DeleteCommand(w, 5), here(generation=3, deleting=True), now=START)
    assert (higher.skipped, higher.stored, higher.intent.generation) == (True, True, 5)


def test_data_is_kept_until_a_delete_says_otherwise():
    leaves, deletes = DeleteCommand(WorkloadId("w"), 3, keep_data=True), DeleteCommand(WorkloadId("w"), 3)
    first = judge_delete(leaves, here(generation=3), now=START)
    assert first.intent.keeps_data
    again = judge_delete(leaves, here(generation=3, deleting=True, keeps_data=True), now=START)
    assert (again.intent.keeps_data, again.stored) == (True, False)
    deleted = judge_delete(deletes, here(generation=3, deleting=True, keeps_data=True), now=START)
    assert (deleted.intent.keeps_data, deleted.stored) == (False, True)
    late = judge_delete(leaves, here(generation=3, deleting=True), now=START)
    assert (late.intent.keeps_data, late.stored) == (False, False)


def test_what_a_spec_means():
    spec = agent_spec(
        process(
            restart=RestartPolicy(policy="no"),
            readiness=Readiness(tcp_port="http", deadline=timedelta(seconds=7)),
            ports=(NamedPort("http"), NamedPort("admin", 9000)),
        ),
        request=Resources(memory_mb=5),
        at_most_one=True,
    )
    found = rules_of(spec)
    assert (found.restart.policy, found.ready_within, found.probe, found.at_most_one) == ("no", 7.0, "port http", True)
    assert claim_of(spec).ports == {(9000, "tcp")}
    assert claim_of(spec).request == Resources(memory_mb=5)
    assert rules_of(agent_spec()).ready_within is None


@pytest.mark.parametrize(
    ("readiness", "words"),
    [
        (Readiness(tcp_port="80"), "port 80"),
        (Readiness(http=HttpProbe("http", "/up")), "GET /up on port http"),
        (Readiness(command=CommandProbe(("check", "it"))), "command 'check'"),
    ],
)
def test_what_readiness_waits_for_in_words(readiness, words):
    assert rules_of(agent_spec(process(readiness=readiness))).probe == words
