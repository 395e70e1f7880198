"""Many more strange requests to every RPC, and strange inputs to every parser, than a quick run has time for.

The numbers of examples are what the time of `make test-long` allows: an example of an RPC is a server with up to 16
calls, one of a life up to 100. With 200 of each, and 1000 for a parser, this file alone took half an hour of two cores.
The examples are new in each run.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from shoal.testing.fuzz import check_parser
from tests.fuzz.parsers import PARSERS
from tests.fuzz.rpcs import KINDS, METHODS, fuzz_life, fuzz_method

pytestmark = pytest.mark.timeout(3600)

SERVERS = settings(
    max_examples=40,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.data_too_large, HealthCheck.too_slow, HealthCheck.large_base_example],
)
NAMES = [f"{kind}.{method.name}" for kind, method in METHODS]


@pytest.mark.parametrize(("kind", "method"), METHODS, ids=NAMES)
@SERVERS
@given(data=st.data())
def test_an_rpc_survives_anything(kind, method, data):
    fuzz_method(kind, method, data, most=16)


@pytest.mark.parametrize("kind", KINDS)
@SERVERS
@given(data=st.data())
def test_a_server_survives_everything_at_once(kind, data):
    fuzz_life(kind, data, most=100)


@pytest.mark.parametrize("name", sorted(PARSERS))
@settings(max_examples=300)
@given(data=st.data())
def test_a_parser_raises_nothing_but_its_own_errors(name, data):
    check_parser(PARSERS[name], data.draw(PARSERS[name].inputs, label=name))
