"""When the work of a lost node may move: policies, the rate, the brake."""

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.control.workloads.decisions.failover import (
    Brake,
    Bucket,
    FailoverSettings,
    FleetHealth,
    LostNode,
    is_braked,
    judge_evictions,
    seconds_until_move,
)
from shoal.core.ids import NodeId
from shoal.model.nodes import LEASE_MARGIN
from shoal.model.workloads import Failover, ProcessSpec, WorkloadSpec, WorkloadType

DEFAULTS = FailoverSettings()


def spec(policy="replace", after=0.0, *, at_most_one=False):
    return WorkloadSpec(
        type=WorkloadType.PROCESS,
        process=ProcessSpec(command=("true",)),
        at_most_one=at_most_one,
        failover=Failover(policy, timedelta(seconds=after)),
    )


def lost(count, *, since=0.0, work=True, prefix="n"):
    return [LostNode(NodeId(f"{prefix}{index}"), since, work) for index in range(count)]


def judge(health, bucket=None, *, now=100.0, settings=DEFAULTS):
    return judge_evictions(health, bucket or Bucket(), now=now, settings=settings)


class TestWorkloads:
    @pytest.mark.parametrize(
        ("asked", "silence", "left"),
        [
            (spec(), 30.0, 0.0),
            (spec(after=10), 30.0, 10.0),
            (spec(after=10), 40.0, 0.0),
            (spec("keep"), 1e9, None),
            (spec("stop", 60), 30.0, 36.0),
            (spec("stop", 60), 66.0, 0.0),
            (spec("stop", 1), 30.0, 3.0),  # never before a lease, by which the agent counts too
            (spec(at_most_one=True), 30.0, 3.0),
            (spec(at_most_one=True, after=60), 33.0, 57.0),
        ],
    )
    def test_when(self, asked, silence, left):
        found = seconds_until_move(asked, silence=silence, lease=30.0)
        assert found == (None if left is None else pytest.approx(left))

    @given(
        st.floats(0.1, 3600),
        st.floats(1.0, 300),
        st.floats(0.95, 1.05),
        st.floats(0.0, 60.0),
        st.booleans(),
    )
    def test_never_while_an_agent_that_is_cut_off_may_still_run_it(self, after, lease, rate, transit, once):
        """The agent counts from sending, by a clock that runs a little differently; we count from receipt."""
        asked = spec(at_most_one=True) if once else spec("stop", after)
        allowed = lease if once else max(lease, after)
        agent_stops_at = allowed * (1 - LEASE_MARGIN) / rate
        we_move_at = transit + seconds_until_move(asked, silence=0.0, lease=lease)
        assert agent_stops_at < we_move_at + 0.001


class TestNodes:
    @pytest.mark.parametrize("fleet", [1, 2, 3, 10, 1000])
    def test_a_single_loss_is_never_slowed_down(self, fleet):
        verdict = judge(FleetHealth(fleet - 1, 0, lost(1)))
        assert verdict.declare_lost == ("n0",)

    def test_several_go_one_after_another(self):
        health = FleetHealth(18, 0, lost(4))
        first = judge(health)
        assert first.declare_lost == ("n0", "n1", "n2")  # a tenth of 22, rounded up
        assert first.next_in == pytest.approx(10.0)
        rest = FleetHealth(18, 0, lost(4)[3:], lost_lately=3)
        assert judge(rest, first.bucket, now=105.0).declare_lost == ()
        assert judge(rest, first.bucket, now=110.0).declare_lost == ("n3",)

    def test_the_longest_lost_goes_first_and_one_without_work_costs_nothing(self):
        held = [LostNode(NodeId("b"), 2.0, True), LostNode(NodeId("a"), 3.0, True), LostNode(NodeId("z"), 4.0, False)]
        assert judge(FleetHealth(10, 0, held)).declare_lost == ("b", "a", "z")
        assert judge(FleetHealth(6, 0, held)).declare_lost == ("b", "z")

    @pytest.mark.parametrize(
        ("alive", "suspect", "held", "lately", "braked"),
        [
            (0, 0, 1, 0, False),  # the only node
            (0, 0, 2, 0, False),  # both
            (0, 0, 3, 0, True),
            (2, 0, 3, 0, True),  # 60 %
            (3, 0, 3, 0, False),  # 50 %
            (2, 2, 1, 0, True),  # the others are about to be lost too
            (4, 2, 1, 0, False),
            (2, 0, 1, 2, True),  # two of them went a moment ago
            (45, 0, 55, 0, False),  # not more than 55 %
            (44, 0, 56, 0, True),
        ],
    )
    def test_when_most_vanish_nothing_moves(self, alive, suspect, held, lately, braked):
        health = FleetHealth(alive, suspect, lost(held), lately)
        assert is_braked(health, DEFAULTS) == braked
        verdict = judge(health)
        assert verdict.braked == braked
        assert bool(verdict.declare_lost) != braked

    def test_who_is_still_missing_when_others_come_back_gets_one_more_lease(self):
        pulled = judge_evictions(FleetHealth(1, 0, lost(3)), Bucket(), now=100.0, settings=DEFAULTS, lease=30.0)
        assert pulled.brake == Brake(100.0, 1)

        def later(health, now):
            return judge_evictions(health, pulled.bucket, now=now, settings=DEFAULTS, brake=pulled.brake, lease=30.0)

        one_back = FleetHealth(2, 0, lost(2))
        waiting = later(one_back, 110.0)
        assert (waiting.declare_lost, waiting.braked, waiting.next_in) == ((), True, pytest.approx(20.0))
        assert waiting.brake == pulled.brake  # however often it is asked, the grace ends when it was to end
        assert later(one_back, 130.0).declare_lost == ("n0",)
        assert not later(FleetHealth(4, 0, ()), 101.0).braked
        # Nobody came back: an operator said of one that it is dead, and is not kept waiting for the others.
        assert later(FleetHealth(1, 0, lost(2)), 101.0).declare_lost == ("n0",)

    def test_the_brake_can_be_turned_off(self):
        off = FailoverSettings(brake_share=1.0)
        assert judge(FleetHealth(0, 0, lost(5)), settings=off).declare_lost == ("n0",)


@given(
    st.integers(1, 60),
    st.lists(st.tuples(st.floats(0, 600), st.integers(0, 59), st.booleans()), max_size=120),
)
def test_no_history_of_losses_goes_faster_than_the_rate_or_past_the_brake(fleet, moves):
    """Nodes are lost and come back at random moments; whatever happens, the bounds hold."""
    state = dict.fromkeys(range(fleet), "alive")
    since = {}
    bucket, declared_lost_at = Bucket(), []
    for moment, index, down in sorted(moves):
        node = index % fleet
        if down and state[node] == "alive":
            state[node], since[node] = "held", moment
        elif not down:
            state[node] = "alive"
        held = [LostNode(NodeId(str(each)), since[each], True) for each in state if state[each] == "held"]
        lately = sum(1 for each in state if state[each] == "gone" and moment - since[each] < 30.0)
        health = FleetHealth(sum(1 for each in state.values() if each == "alive"), 0, held, lately)
        verdict = judge_evictions(health, bucket, now=moment, settings=DEFAULTS)
        bucket = verdict.bucket
        if verdict.declare_lost:
            assert health.vanished < 3 or health.vanished <= 0.55 * health.total
        for each in verdict.declare_lost:
            assert state[int(each)] == "held"
            state[int(each)] = "gone"
            declared_lost_at.append(moment)
        burst = math.ceil(0.1 * fleet)
        for start in declared_lost_at:
            window = [each for each in declared_lost_at if start <= each <= moment]
            assert len(window) <= max(1, burst) + 0.1 * (moment - start) + 1e-6
