"""When a run is asked to end, when it is killed, and when it is over."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.runtimes.keeper.lives.lifecycle import (
    KILL_AGAIN,
    LONGEST_WARNING,
    LOOK_AGAIN,
    PATIENCE,
    Act,
    Deadline,
    Ending,
    Life,
    LifeStep,
    deadline_at,
    kill_time,
    next_step,
)

RUNNING = Life(main_alive=True)
GONE = Life(main_alive=False)
STOPPED = Ending(by="stop", kill_at=110.0)


@pytest.mark.parametrize(
    ("life", "step"),
    [
        (RUNNING, LifeStep(Act.WAIT)),
        (replace(RUNNING, deadline=Deadline(at=130, warning=2)), LifeStep(Act.WAIT, 128)),
        (replace(RUNNING, deadline=Deadline(at=102, warning=2)), LifeStep(Act.ASK)),
        (replace(RUNNING, deadline=Deadline(at=90, warning=2)), LifeStep(Act.ASK)),
        (replace(RUNNING, ending=STOPPED), LifeStep(Act.WAIT, 110)),
        (replace(RUNNING, ending=Ending(by="stop", kill_at=100)), LifeStep(Act.KILL, 100 + KILL_AGAIN)),
        # A long grace period does not outlast the deadline.
        (replace(RUNNING, ending=STOPPED, deadline=Deadline(at=105, warning=2)), LifeStep(Act.WAIT, 105)),
        (replace(RUNNING, ending=STOPPED, deadline=Deadline(at=100, warning=2)), LifeStep(Act.KILL, 100 + KILL_AGAIN)),
        (GONE, LifeStep(Act.FINISH)),
        (replace(GONE, ending=STOPPED), LifeStep(Act.FINISH)),
        # Ended by itself: what is left is killed at once.
        (replace(GONE, leftovers=2, asked_leftovers=2), LifeStep(Act.KILL, 100 + KILL_AGAIN)),
        # Asked to end: those who were asked have the rest of the grace period, the others were not asked.
        (replace(GONE, leftovers=2, asked_leftovers=1, ending=STOPPED), LifeStep(Act.WAIT, 100 + LOOK_AGAIN)),
        (replace(GONE, leftovers=1, asked_leftovers=0, ending=STOPPED), LifeStep(Act.KILL, 100 + KILL_AGAIN)),
        (replace(GONE, leftovers=1, killing_since=100 - PATIENCE / 2), LifeStep(Act.KILL, 100 + KILL_AGAIN)),
        (replace(GONE, leftovers=1, killing_since=100 - PATIENCE), LifeStep(Act.FINISH)),
    ],
)
def test_each_situation_has_its_step(life: Life, step: LifeStep) -> None:
    assert next_step(life, 100.0) == step


times = st.floats(min_value=0, max_value=1000, allow_nan=False)
lives = st.builds(
    Life,
    main_alive=st.booleans(),
    deadline=st.none() | st.builds(Deadline, at=times, warning=st.floats(min_value=0, max_value=2)),
    ending=st.none() | st.builds(Ending, by=st.sampled_from(["stop", "deadline"]), kill_at=times),
    leftovers=st.integers(0, 3),
    asked_leftovers=st.integers(0, 3),
    killing_since=st.none() | times,
)


@given(lives, times)
def test_no_run_outlives_its_deadline(life: Life, now: float) -> None:
    if life.deadline is None or now < life.deadline.at or not life.main_alive:
        return
    step = next_step(life, now)
    # Asked first if nobody has asked, which happens in the same breath; then killed.
    assert step.act in (Act.ASK, Act.KILL)
    if step.act is Act.ASK:
        asked = replace(life, ending=Ending(by="deadline", kill_at=life.deadline.at))
        assert next_step(asked, now).act is Act.KILL


@given(lives, times)
def test_nobody_is_forgotten(life: Life, now: float) -> None:
    step = next_step(life, now)
    if step.act is Act.FINISH:
        assert not life.main_alive
        patient = life.killing_since is not None and now >= life.killing_since + PATIENCE
        assert life.leftovers == 0 or patient
    elif step.act is Act.WAIT and step.again_at is None:
        assert life.main_alive
        assert life.deadline is None
        assert life.ending is None
    elif step.again_at is not None:
        assert step.again_at > now


@given(lives, times)
def test_nobody_is_killed_who_has_time_left(life: Life, now: float) -> None:
    if life.main_alive and next_step(life, now).act is Act.KILL:
        due = kill_time(life)
        assert due is not None
        assert now >= due


@given(seconds=st.floats(0.01, 1000), grace=st.floats(0, 1000), now=times)
def test_a_deadline_leaves_most_of_its_time(seconds: float, grace: float, now: float) -> None:
    deadline = deadline_at(now + seconds, grace=grace, now=now)
    assert deadline.at == now + seconds
    assert 0 <= deadline.warning <= min(grace, LONGEST_WARNING)
    assert deadline.warning <= (deadline.at - now) / 4
