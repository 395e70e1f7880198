from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from shoal.control.nodes.leases import (
    HeartbeatVerdict,
    Lease,
    LeaseSettings,
    LeaseVerdict,
    first_deadline_after_restart,
    judge,
    judge_heartbeat,
    make_session,
    next_state,
    renew,
)
from shoal.core.errors import InvalidError
from shoal.core.shape import build, check
from shoal.model.nodes import NodeState

DEFAULTS = LeaseSettings()
SEVERITY = {NodeState.READY: 0, NodeState.SUSPECT: 1, NodeState.NOT_READY: 2}

moments = st.floats(0, 1e7)
spans = st.floats(0, 1e5)
lengths = st.floats(0.01, 86_400)
all_settings = st.builds(
    lambda interval, times: LeaseSettings(timedelta(seconds=interval), timedelta(seconds=interval * times)),
    st.floats(0.01, 600),
    st.floats(2, 20),
)


def after(silence: float, **options: object) -> LeaseVerdict:
    return judge(last_receipt=100.0, lease=30.0, now=100.0 + silence, settings=DEFAULTS, **options)


def verdict(state: NodeState, *, heard: bool = True) -> LeaseVerdict:
    return LeaseVerdict(state, None, False, 0.0, 30.0, heard)


# ---------------------------------------------------------------------------------------------------------
# Settings


def test_the_defaults() -> None:
    check(DEFAULTS)
    assert (DEFAULTS.interval_seconds, DEFAULTS.lease_seconds) == (10.0, 30.0)
    assert DEFAULTS.suspect_after(30.0) == 15.0
    assert DEFAULTS.margin(30.0) == 3.0


def test_a_short_lease_suspects_no_node_for_one_late_heartbeat() -> None:
    tight = LeaseSettings(timedelta(seconds=10), timedelta(seconds=20))
    check(tight)
    assert tight.suspect_after(20.0) == 15.0


@pytest.mark.parametrize(
    ("interval", "lease", "fields"),
    [
        (10, 19.9, ["leases.lease"]),
        (0, 30, ["leases.heartbeat_interval"]),
        (-1, 30, ["leases.heartbeat_interval"]),
        (0, 0, ["leases.heartbeat_interval", "leases.lease"]),
        (10, 90_000, ["leases.lease"]),
        (100_000, 90_000, ["leases.heartbeat_interval", "leases.lease", "leases.lease"]),
    ],
)
def test_settings_that_cannot_work_name_the_fields(interval: float, lease: float, fields: list[str]) -> None:
    with pytest.raises(InvalidError) as raised:
        check(LeaseSettings(timedelta(seconds=interval), timedelta(seconds=lease)), at="leases")
    assert [each.field for each in raised.value.problems] == fields


def test_settings_are_read_as_durations() -> None:
    assert build(LeaseSettings, {"heartbeat_interval": "500ms", "lease": "2s"}).lease_seconds == 2.0
    with pytest.raises(
        InvalidError, match=r"lease: must be at least twice heartbeat_interval, which is 10s \(got '15s'\)"
    ):
        build(LeaseSettings, {"lease": "15s"})


# ---------------------------------------------------------------------------------------------------------
# Silence


@pytest.mark.parametrize(
    ("silence", "state", "next_change_in", "may_give_away", "reason"),
    [
        (0.0, NodeState.READY, 15.0, False, "no heartbeat for 0ms"),
        (14.5, NodeState.READY, 0.5, False, "no heartbeat for 14.5s"),
        (15.0, NodeState.SUSPECT, 15.0, False, "no heartbeat for 15s"),
        (29.5, NodeState.SUSPECT, 0.5, False, "no heartbeat for 29.5s"),
        (30.0, NodeState.NOT_READY, 3.0, False, "no heartbeat for 30s; its lease of 30s ran out"),
        (33.0, NodeState.NOT_READY, None, True, "no heartbeat for 33s; its lease of 30s ran out"),
    ],
)
def test_what_silence_means_at_the_defaults(
    silence: float, state: NodeState, next_change_in: float | None, may_give_away: bool, reason: str
) -> None:
    found = after(silence)
    assert found == LeaseVerdict(state, next_change_in, may_give_away, silence, 30.0)
    assert found.reason == reason


def test_after_a_start_the_reason_says_since_when_nothing_was_heard() -> None:
    assert after(15.0, heard=False).reason == "no heartbeat since the control plane started 15s ago"


def test_a_receipt_in_the_future_is_no_silence() -> None:
    assert after(-5.0) == after(0.0)


@given(receipt=moments, lease=lengths, silence=spans, settings=all_settings)
@example(receipt=0.1 + 0.2, lease=0.3, silence=0.3, settings=DEFAULTS)
def test_nobody_is_ready_after_the_end_of_the_lease(
    receipt: float, lease: float, silence: float, settings: LeaseSettings
) -> None:
    now = receipt + silence
    found = judge(last_receipt=receipt, lease=lease, now=now, settings=settings)
    if now - receipt >= lease:
        assert found.state is NodeState.NOT_READY
    else:
        assert found.state is not NodeState.NOT_READY
        assert not found.may_give_away_at_most_one
    if found.may_give_away_at_most_one:
        assert now - receipt >= lease + settings.margin(lease)


@given(receipt=moments, lease=lengths, first=spans, second=spans, settings=all_settings)
def test_silence_only_makes_it_worse(
    receipt: float, lease: float, first: float, second: float, settings: LeaseSettings
) -> None:
    early, late = (
        judge(last_receipt=receipt, lease=lease, now=receipt + silence, settings=settings)
        for silence in sorted((first, second))
    )
    assert SEVERITY[early.state] <= SEVERITY[late.state]
    assert early.may_give_away_at_most_one <= late.may_give_away_at_most_one


@given(receipt=moments, lease=lengths, silence=spans, settings=all_settings)
def test_a_timer_set_by_the_verdict_never_skips_a_change_and_always_ends(
    receipt: float, lease: float, silence: float, settings: LeaseSettings
) -> None:
    now, seen = receipt + silence, []
    for _ in range(8):
        found = judge(last_receipt=receipt, lease=lease, now=now, settings=settings)
        seen.append(SEVERITY[found.state] + found.may_give_away_at_most_one)
        if found.next_change_in is None:
            break
        assert found.next_change_in >= 0.001
        between = judge(last_receipt=receipt, lease=lease, now=now + found.next_change_in * 0.9, settings=settings)
        if found.next_change_in > 0.002:
            assert between.state is found.state
        now += found.next_change_in
    assert seen[-1] == 3
    assert seen == sorted(seen)


@given(
    lease=lengths,
    settings=all_settings,
    sent=moments,
    travel=st.floats(0, 100),
    drift=st.floats(0.91, 1.09),
)
def test_the_agent_has_stopped_before_its_work_is_given_away(
    lease: float, settings: LeaseSettings, sent: float, travel: float, drift: float
) -> None:
    """The agent counts from the sending, by a clock that runs a little fast or slow."""
    margin = settings.margin(lease)
    agent_stops = sent + (lease - margin) * drift
    receipt = sent + travel
    found = judge(last_receipt=receipt, lease=lease, now=agent_stops, settings=settings)
    assert not found.may_give_away_at_most_one


# ---------------------------------------------------------------------------------------------------------
# Restart and renewal


@given(started=moments, promised=lengths, settings=all_settings, silence=spans)
def test_a_restart_declares_no_loss_before_a_full_lease(
    started: float, promised: float, settings: LeaseSettings, silence: float
) -> None:
    lease = first_deadline_after_restart(started=started, promised=promised, settings=settings)
    assert lease.ends_at >= started + max(promised, settings.lease_seconds)
    found = judge(
        last_receipt=lease.last_receipt,
        lease=lease.seconds,
        now=started + silence,
        settings=settings,
        heard=lease.heard,
    )
    if (started + silence) - started < max(promised, settings.lease_seconds):
        assert found.state is not NodeState.NOT_READY
    assert next_state(NodeState.NOT_READY, found) is NodeState.NOT_READY


@given(receipt=moments, seconds=lengths, silence=spans, settings=all_settings)
def test_a_heartbeat_renews_the_lease_and_never_shortens_an_earlier_one(
    receipt: float, seconds: float, silence: float, settings: LeaseSettings
) -> None:
    before = Lease(last_receipt=receipt, seconds=seconds, heard=False)
    renewed = renew(before, receipt=receipt + silence, settings=settings)
    assert renewed.heard
    assert renewed.last_receipt == receipt + silence
    assert renewed.seconds >= settings.lease_seconds
    assert renewed.ends_at >= before.ends_at - 1e-6
    assert renew(None, receipt=receipt, settings=settings) == Lease(receipt, settings.lease_seconds)


def test_a_shorter_setting_takes_hold_once_the_longer_promise_is_over() -> None:
    lease = first_deadline_after_restart(started=0.0, promised=60.0, settings=DEFAULTS)
    lease = renew(lease, receipt=10.0, settings=DEFAULTS)
    assert lease == Lease(10.0, 50.0)
    lease = renew(lease, receipt=20.0, settings=DEFAULTS)
    assert lease == Lease(20.0, 40.0)
    assert renew(lease, receipt=30.0, settings=DEFAULTS) == Lease(30.0, 30.0)


# ---------------------------------------------------------------------------------------------------------
# States


@pytest.mark.parametrize("current", list(NodeState))
@pytest.mark.parametrize("judged", list(SEVERITY))
@pytest.mark.parametrize("heard", [True, False])
def test_every_state_and_verdict_has_a_next_state(current: NodeState, judged: NodeState, heard: bool) -> None:
    after_it = next_state(current, verdict(judged, heard=heard))
    if judged is NodeState.NOT_READY:
        assert after_it is NodeState.NOT_READY
    elif current in (NodeState.DRAINING, NodeState.DRAINED):
        assert after_it is current
    elif judged is NodeState.READY:
        assert after_it is (NodeState.READY if heard else current)
    else:
        assert after_it is (NodeState.NOT_READY if current is NodeState.NOT_READY else NodeState.SUSPECT)


@given(
    st.sampled_from([NodeState.DRAINING, NodeState.DRAINED]),
    st.lists(st.builds(verdict, st.sampled_from(list(SEVERITY)), heard=st.booleans())),
)
def test_no_sequence_of_verdicts_undoes_a_drain(desired: NodeState, verdicts: list[LeaseVerdict]) -> None:
    state = desired
    for each in verdicts:
        state = next_state(state, each, desired=desired)
        assert state in (desired, NodeState.NOT_READY)
    assert next_state(state, verdict(NodeState.READY), desired=desired) is desired


def test_a_node_that_was_suspect_before_a_restart_stays_so_until_its_heartbeat() -> None:
    assert next_state(NodeState.SUSPECT, verdict(NodeState.READY, heard=False)) is NodeState.SUSPECT
    assert next_state(NodeState.SUSPECT, verdict(NodeState.READY)) is NodeState.READY


# ---------------------------------------------------------------------------------------------------------
# Heartbeats


@pytest.mark.parametrize(
    ("on_record", "given_session", "highest", "sequence", "expected"),
    [
        ("s1", "s1", 0, 1, HeartbeatVerdict.ACCEPT),
        ("s1", "s1", 4, 5, HeartbeatVerdict.ACCEPT),
        ("s1", "s1", 4, 9, HeartbeatVerdict.ACCEPT),
        ("s1", "s1", 5, 5, HeartbeatVerdict.REPEAT),
        ("s1", "s1", 5, 4, HeartbeatVerdict.REPEAT),
        ("s1", "s1", 5, 0, HeartbeatVerdict.REPEAT),
        ("s1", "s1", 0, 0, HeartbeatVerdict.ACCEPT),
        ("2-b", "1-a", 0, 7, HeartbeatVerdict.SUPERSEDED),
        ("2-a", "1-a", 0, 7, HeartbeatVerdict.UNKNOWN_SESSION),
        ("1-a", "2-b", 0, 7, HeartbeatVerdict.UNKNOWN_SESSION),
        ("", "s1", 0, 7, HeartbeatVerdict.UNKNOWN_SESSION),
        ("s1", "", 0, 1, HeartbeatVerdict.UNKNOWN_SESSION),
        (None, "s1", 0, 1, HeartbeatVerdict.UNKNOWN_SESSION),
        (None, "", 0, 0, HeartbeatVerdict.UNKNOWN_SESSION),
        ("", "", 0, 0, HeartbeatVerdict.ACCEPT),
        ("", "", 9, 3, HeartbeatVerdict.ACCEPT),
    ],
)
def test_heartbeats_are_judged_by_session_and_sequence(
    on_record: str | None, given_session: str, highest: int, sequence: int, expected: HeartbeatVerdict
) -> None:
    assert judge_heartbeat(on_record, given_session, highest, sequence) is expected


@given(
    st.lists(
        st.tuples(st.integers(0, 10**13), st.text("abc019", min_size=1)), min_size=2, unique_by=lambda each: each[1]
    )
)
def test_of_the_sessions_of_a_node_only_the_last_is_accepted(registrations: list[tuple[int, str]]) -> None:
    """Also when the clock is set back between two registrations."""
    sessions = [""]
    for registered_ms, token in registrations:
        sessions.append(make_session(registered_ms, token, after=sessions[-1]))
    for older in sessions[1:-1]:
        assert judge_heartbeat(sessions[-1], older, 0, 1) is HeartbeatVerdict.SUPERSEDED
        assert judge_heartbeat(older, sessions[-1], 0, 1) is HeartbeatVerdict.UNKNOWN_SESSION
    assert judge_heartbeat(sessions[-1], sessions[-1], 0, 1) is HeartbeatVerdict.ACCEPT


@given(st.text(min_size=1), st.lists(st.integers(0, 20)))
def test_no_number_is_accepted_twice_in_one_session(session: str, numbers: list[int]) -> None:
    assume(0 not in numbers)
    accepted: list[int] = []
    for number in numbers:
        if judge_heartbeat(session, session, accepted[-1] if accepted else 0, number) is HeartbeatVerdict.ACCEPT:
            accepted.append(number)
    assert accepted == sorted(set(accepted))
