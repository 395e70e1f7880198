"""What surrounds a stream program while it is defined: the app's broker, group and topics, and the sinks made so far.

`shoal.dataflow.api.apps.app` opens a `Definition` around a user's dataflow function. Sources look here for what the
user did not say, and every sink is noted, so that a branch which the function does not return is not forgotten.
`shoal.cli` loads a user's module inside a `Launch`: what was typed then wins over what the program says, and
`app.run()` waits.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from shoal.core.errors import problem
from shoal.dataflow.connectors.topics.brokers import address_of, has_settings, is_kafka, name_settings
from shoal.dataflow.errors import Location, PlanError
from shoal.dataflow.language.elements import Schema
from shoal.dataflow.language.logical import EventTime, Sink

if TYPE_CHECKING:
    from shoal.topics.kafka import KafkaSettings

#: A broker as users say it: an address, the directory of a local log, or Kafka with all that belongs to it.
Broker: TypeAlias = "str | Path | KafkaSettings"

_KAFKA_PORT = 9092
_HOST = re.compile(r"[A-Za-z0-9_.\-]+(:[0-9]{1,5})?")
_WITH_USER = re.compile(r"[^/.].*@[A-Za-z0-9_.\-]+:[0-9]{1,5}")
_NO_NAME = re.compile(r"[^A-Za-z0-9_.\-]+")


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """What an app knows of a topic."""

    name: str
    broker: str
    group: str = ""
    schema: Schema | None = None
    time: EventTime = EventTime()
    codec: str = ""
    key: str = ""
    partitions: int = 1


@dataclass(slots=True)
class Definition:
    """A stream program that is being defined."""

    broker: str
    group: str
    topics: Mapping[str, TopicSpec]
    sinks: list[Sink] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Settings of apps that the launcher of a program overrides. None leaves a setting as the program has it."""

    broker: str | None = None
    data_dir: str | None = None
    exactly_once: bool | None = None
    checkpoint_interval: timedelta | None = None
    #: The checkpoint to go on from, or the name of a savepoint; 0 is the beginning, None the newest.
    from_checkpoint: int | str | None = None
    #: Start although output that sinks have committed comes again.
    accept_duplicates: bool = False
    #: It is to be a job, which runs in another directory: paths are made absolute.
    is_remote: bool = False


_launch: ContextVar[Launch | None] = ContextVar("shoal_launch", default=None)


def launch() -> Launch | None:
    """The launcher's settings, while a program is loaded to be run; None when it runs by itself."""
    return _launch.get()


def control_of_environment() -> str:
    """The control plane that `SHOAL_CONTROL` names; empty without one.

    An agent tells every workload where the control plane is. A program that runs as a workload runs its flows itself.
    """
    return "" if os.environ.get("SHOAL_WORKLOAD_ID") else os.environ.get("SHOAL_CONTROL", "")


@contextlib.contextmanager
def launching(said: Launch) -> Iterator[None]:
    """Programs that are loaded inside are run by the launcher: their apps take its settings and do not start."""
    token = _launch.set(said)
    try:
        yield
    finally:
        _launch.reset(token)


def name_broker(broker: Broker, *, group: str, own: str = "", at: Location | None = None) -> str:
    """The name of a user's broker in a plan. Settings of Kafka stay in this process, under the name of a group.

    `own` is the broker of the app: who says only its address means it with its settings. Raises `PlanError`.
    """
    if isinstance(broker, str | Path):
        text = clean_broker(broker, at=at)
        return own if own and text == address_of(own) else text
    from shoal.topics.kafka import KafkaSettings

    if not isinstance(broker, KafkaSettings):
        rule = 'must be text such as "localhost:9092", or KafkaSettings'
        raise PlanError([problem("broker", type(broker).__name__, rule)], at=at)
    return name_settings(broker, _NO_NAME.sub("-", group) or "kafka")


def launched_broker(said: str | None, broker: Broker | None, *, group: str) -> str | None:
    """The broker of an app: the launcher's wins. Another address of Kafka is used with the app's settings.

    None when none is set.
    """
    if said and broker is not None and not isinstance(broker, str | Path):
        address = clean_broker(said)
        return name_settings(replace(broker, brokers=address), group) if is_kafka(address) else address
    chosen = said or broker
    return name_broker(chosen, group=group) if chosen else None


def clean_broker(broker: str | Path, *, at: Location | None = None) -> str:
    """A broker as users write it: `host:port`, `kafka://host`, or the directory of a local log. Raises `PlanError`."""
    text = str(broker).strip()
    if has_settings(text):  # what `app.broker` gave
        return text
    scheme, mark, rest = text.partition("://")
    if "@" in rest if mark and scheme != "file" else _WITH_USER.fullmatch(text):
        hint = 'say them apart: broker=KafkaSettings("host:9092", client={"sasl.username": …, "sasl.password": …})'
        said = f"…@{text.rpartition('@')[2]}"
        raise PlanError([problem("broker", said, "must not have a user or a password in it")], at=at, hint=hint)
    if scheme == "kafka" and mark:
        hosts = [each.strip() for each in re.split("[;,]", rest.rstrip("/"))]
        if all(_HOST.fullmatch(each) for each in hosts):
            return ",".join(each if ":" in each else f"{each}:{_KAFKA_PORT}" for each in hosts)
    elif mark:
        if scheme == "file":
            return text
    elif "/" in text or text.startswith(".") or isinstance(broker, Path):
        return text
    elif all(":" in each and _HOST.fullmatch(each.strip()) for each in text.split(",")):
        return ",".join(each.strip() for each in text.split(","))
    rule = "must be host:port or kafka://host:port of Kafka, or the directory of a local log, such as ./topics"
    raise PlanError([problem("broker", text, rule)], at=at)


_current: ContextVar[Definition | None] = ContextVar("shoal_definition", default=None)


def current() -> Definition | None:
    """The program that is being defined here, if there is one."""
    return _current.get()


@contextlib.contextmanager
def defining(definition: Definition) -> Iterator[Definition]:
    """What happens inside belongs to this definition."""
    token = _current.set(definition)
    try:
        yield definition
    finally:
        _current.reset(token)


def note_sink(sink: Sink) -> None:
    """A sink was made."""
    definition = _current.get()
    if definition is not None:
        definition.sinks.append(sink)


def note_change(old: Sink, new: Sink) -> None:
    """A sink was replaced by one that differs in a setting."""
    definition = _current.get()
    if definition is not None:
        definition.sinks[:] = [new if each is old else each for each in definition.sinks]


def refuse_running(what: str, at: Location | None) -> None:
    """A dataflow function only says what is to be done."""
    if _current.get() is not None:
        raise PlanError(
            [problem(what, None, "would run the stream while the dataflow is being defined")],
            at=at,
            hint='end the stream with a sink, such as .to_kafka("results") or .to_callback(function)',
        )
