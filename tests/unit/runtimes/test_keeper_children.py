"""What the keeper starts its children with."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator

import pytest

from shoal.runtimes.keeper.lives.children import ChildDefaults, Launch, fork_gated


@pytest.fixture
def room_for_one_pipe() -> Iterator[None]:
    """A process that may open two descriptors more."""
    ends = os.pipe()  # the lowest that are free
    for end in ends:
        os.close(end)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(ends) + 1, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_without_descriptors_nothing_is_started_and_none_is_kept(room_for_one_pipe: None) -> None:
    launch = Launch(argv=("/bin/true",), env={}, working_dir="/", stdout=1, stderr=2)
    for _ in range(2):
        with pytest.raises(OSError) as refused:  # noqa: PT011 - by its number
            fork_gated(launch, ChildDefaults(open_files=(64, 64), oom_score="0"))
        assert refused.value.errno == errno.EMFILE
    for end in os.pipe():  # there is room for one still
        os.close(end)
