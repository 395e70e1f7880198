from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from shoal.core import faults
from shoal.core.errors import InternalError, InvalidError

POINT = "store.commit.before"


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    faults.disarm_all()


def test_a_point_that_nobody_armed_does_nothing() -> None:
    faults.reach(POINT)
    faults.arm("store.commit.after", lambda _name: pytest.fail("another point"))
    faults.reach(POINT)


def test_an_armed_point_runs_its_action_each_time_until_disarmed() -> None:
    seen: list[str] = []
    faults.arm(POINT, seen.append)
    faults.reach(POINT)
    faults.reach(POINT)
    faults.disarm_all()
    faults.reach(POINT)
    assert seen == [POINT, POINT]


def test_a_point_that_does_not_exist_cannot_be_armed() -> None:
    with pytest.raises(InvalidError):
        faults.arm("store.commit.beside", print)


def test_the_environment_arms_the_nth_time() -> None:
    faults.arm_from_environment(f"{POINT}=raise@2, agent.start.after=raise")
    faults.reach(POINT)
    with pytest.raises(InternalError) as raised:
        faults.reach(POINT)
    assert raised.value.facts == {"point": POINT}
    faults.reach(POINT)
    with pytest.raises(InternalError):
        faults.reach("agent.start.after")


def test_every_mistake_in_the_environment_is_reported_and_nothing_armed() -> None:
    with pytest.raises(InvalidError) as raised:
        faults.arm_from_environment(f"{POINT}=raise,nowhere=kill,{POINT}=explode,{POINT}=kill@0,{POINT}=kill@x,{POINT}")
    assert len(raised.value.problems) == 5
    assert all(each.field == "SHOAL_FAULTS" for each in raised.value.problems)
    faults.reach(POINT)


@pytest.mark.parametrize(("action", "code"), [("kill", -signal.SIGKILL), ("exit", 70)])
def test_a_process_ends_itself(action: str, code: int) -> None:
    program = f"from shoal.core import faults; faults.arm_from_environment(); faults.reach({POINT!r}); print('alive')"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "SHOAL_FAULTS": f"{POINT}={action}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == code
    assert ended.stdout == ""
