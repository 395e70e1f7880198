"""The containers of a project, and what they say of its run. Pure; called by `shoal.runtimes.compose.runtime`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.ids import RunId
from shoal.runtimes.container.records import RunEnd, groups_of

SERVICE_LABEL = "com.docker.compose.service"
PROJECT_LABEL = "com.docker.compose.project"
NUMBER_LABEL = "com.docker.compose.container-number"

MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Member:
    """One container of a project, as it was seen last."""

    container_id: str
    service: str
    number: int
    pid: int
    started_at_ms: int
    #: Whether it has a terminal: then its output is one stream.
    tty: bool = False

    @property
    def run_id(self) -> RunId:
        """The name under which it is measured."""
        return RunId(self.container_id)

    @property
    def cgroups(self) -> tuple[str, ...]:
        """The directories of its groups, while it runs."""
        return groups_of(self.pid)

    @property
    def prefix(self) -> bytes:
        """What its lines begin with in the log of a project of several containers."""
        name = self.service if self.number <= 1 else f"{self.service}-{self.number}"
        return f"{name} | ".encode()


@dataclass(frozen=True, slots=True)
class MemberState:
    """How a container is: running, ended, or not there."""

    member: Member
    is_running: bool
    #: None while it runs.
    end: RunEnd | None = None

    @property
    def has_failed(self) -> bool:
        """Whether it ended, and not with success."""
        return self.end is not None and bool(self.end.code or self.end.signal or self.end.unknown)

    @property
    def word(self) -> str:
        """The state in a word, as the status shows it."""
        if self.end is None:
            return "running"
        if self.end.unknown:
            return MISSING
        if self.end.out_of_memory:
            return "out of memory"
        return f"killed by signal {self.end.signal}" if self.end.signal else f"exited ({self.end.code})"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the containers of a run say of it."""

    services: Mapping[str, str]
    #: A container has failed: the others are stopped, and the run ends as this one did.
    has_failed: bool
    #: How the run ended; None while a container runs.
    end: RunEnd | None


def judge(states: Sequence[MemberState], services: Iterable[str]) -> Verdict:
    """The state of a run: it has failed once one container has, and it has ended once all have."""
    words: dict[str, str] = dict.fromkeys(services, MISSING)
    # Of several containers the worst is shown.
    for state in sorted(states, key=lambda each: (each.has_failed, each.is_running)):
        words[state.member.service] = state.word
    failed = sorted(
        (state.end for state in states if state.has_failed and state.end is not None),
        key=lambda end: (end.unknown, end.ended_at_ms),
    )
    is_missing = any(word == MISSING for word in words.values())
    if not states or any(state.is_running for state in states):
        end = None if states else RunEnd(unknown=True)
    elif failed:
        end = failed[0]
    elif is_missing:
        end = RunEnd(unknown=True, ended_at_ms=max(state.end.ended_at_ms for state in states if state.end))
    else:
        end = max((state.end for state in states if state.end), key=lambda each: each.ended_at_ms)
    return Verdict(words, has_failed=bool(failed) or is_missing, end=end)


def stop_waves(services: Mapping[str, Mapping[str, Any]]) -> tuple[tuple[str, ...], ...]:
    """The services in the order in which they are stopped: a wave needs nothing of the waves before it."""
    needs = {name: _needed(service) & services.keys() for name, service in services.items()}
    waves: list[tuple[str, ...]] = []
    left = dict(needs)
    while left:
        wanted = set().union(*left.values())
        wave = tuple(name for name in left if name not in wanted) or tuple(left)  # a cycle is one wave
        waves.append(wave)
        left = {name: each for name, each in left.items() if name not in wave}
    return tuple(waves)


def _needed(service: Mapping[str, Any]) -> set[str]:
    needed = set(service.get("depends_on") or ())
    for each in service.get("links") or ():
        needed.add(str(each).partition(":")[0])
    return needed
