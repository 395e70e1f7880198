"""Whatever arrives at any RPC is answered, or refused with an error that says why; and nothing breaks."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from shoal.core.errors import UnsupportedError
from shoal.testing.fuzz import send
from shoal.wire import methods
from shoal.wire.methods import methods_of
from tests.fuzz.rpcs import KINDS, METHODS, SERVICES, fuzz_life, fuzz_method, good_request, open_world, requests_of
from tests.fuzz.worlds import in_virtual_time

# Making a failing example smaller would start thousands of servers: the message names the call that broke the rule.
QUICK = settings(
    max_examples=2,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.data_too_large, HealthCheck.too_slow, HealthCheck.large_base_example],
)
NAMES = [f"{kind}.{method.name}" for kind, method in METHODS]


def test_every_service_has_a_world_and_every_rpc_a_request_to_start_from():
    services = {value for value in vars(methods).values() if isinstance(value, type) and methods_of(value)}
    assert services == set(SERVICES)
    for kind in KINDS:
        assert set(requests_of(kind)) == {method.name for of, method in METHODS if of == kind}


@pytest.mark.parametrize("kind", KINDS)
def test_the_requests_to_start_from_are_right(kind):
    """Else nothing would be fuzzed but the first check."""

    async def work(folder: Path) -> None:
        for of, method in METHODS:
            if of != kind:
                continue
            async with open_world(kind, folder / method.name) as here:
                good = good_request(here, kind, method)
                channel = here.channel_for(method)
                outcome = await send(channel, method, [good.SerializeToString()], metadata=here.metadata)
                if isinstance(outcome.error, UnsupportedError) and "is not served here" in outcome.error.message:
                    continue
                assert outcome.error is None, f"{method.name}: {outcome.error}"
                assert not outcome.invalid, f"{method.name}: {outcome.replies}"

    in_virtual_time(work)


@pytest.mark.parametrize(("kind", "method"), METHODS, ids=NAMES)
@QUICK
@given(data=st.data())
def test_an_rpc_survives_anything(kind, method, data):
    fuzz_method(kind, method, data, most=14)


@pytest.mark.parametrize("kind", KINDS)
@QUICK
@given(data=st.data())
def test_a_server_survives_everything_at_once(kind, data):
    fuzz_life(kind, data, most=40)


@pytest.mark.parametrize("kind", ["control", "agent"])
def test_what_came_and_went_leaves_nothing_behind(kind):
    """Ids are never the same twice in a long life: whatever is kept by id has to go with its owner."""

    async def work(folder: Path) -> None:
        async with open_world(kind, folder) as world:
            await world.come_and_go("first", count=5)
            kept = world.census()
            await world.come_and_go("second", count=25)
            left = world.census() - kept
            assert not left, left

    in_virtual_time(work)
