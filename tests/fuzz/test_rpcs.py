"""Whatever arrives at any RPC is answered, or refused with an error that says why; and nothing breaks."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from shoal.control.service import ControlService
from shoal.testing.fuzz import send
from shoal.wire.methods import AgentControl, AgentService, methods_of
from tests.fuzz.requests import AGENT, CONTROL
from tests.fuzz.rpcs import METHODS, fuzz_life, fuzz_method, good_request
from tests.fuzz.worlds import agent_world, control_world, in_virtual_time

# Making a failing example smaller would start thousands of servers: the message names the call that broke the rule.
QUICK = settings(
    max_examples=3,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.data_too_large, HealthCheck.too_slow, HealthCheck.large_base_example],
)
UNSERVED = {method.name for method in methods_of(AgentControl) if not hasattr(ControlService, method.attribute)}
NAMES = [f"{kind}.{method.name}" for kind, method in METHODS]


def test_every_rpc_has_a_request_to_start_from():
    assert set(CONTROL) == {method.name for method in methods_of(AgentControl)}
    assert set(AGENT) == {method.name for method in methods_of(AgentService)}


@pytest.mark.parametrize(("kind", "world"), [("control", control_world), ("agent", agent_world)])
def test_the_requests_to_start_from_are_right(kind, world):
    """Else nothing would be fuzzed but the first check."""

    async def work(folder: Path) -> None:
        for of, method in METHODS:
            # There is no orphan to adopt in a world that has just begun.
            if of != kind or method.name in UNSERVED or method.name == "AdoptWorkload":
                continue
            async with world(folder / method.name) as here:
                good = good_request(here, kind, method)
                outcome = await send(here.channel, method, [good.SerializeToString()], metadata=here.metadata)
                assert outcome.error is None, f"{method.name}: {outcome.error}"
                assert not outcome.invalid, f"{method.name}: {outcome.replies}"

    in_virtual_time(work)


@pytest.mark.parametrize(("kind", "method"), METHODS, ids=NAMES)
@QUICK
@given(data=st.data())
def test_an_rpc_survives_anything(kind, method, data):
    fuzz_method(kind, method, data, most=16)


@pytest.mark.parametrize("kind", ["control", "agent"])
@QUICK
@given(data=st.data())
def test_a_server_survives_everything_at_once(kind, data):
    fuzz_life(kind, data, most=60)
