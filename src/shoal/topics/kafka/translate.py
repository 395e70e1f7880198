"""Translates errors of the client library into those of Shoal. Pure. Used by all of `shoal.topics.kafka`."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from shoal.core.errors import (
    DeniedError,
    ExhaustedError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    Problem,
    ShoalError,
    UnavailableError,
    UnsupportedError,
    problem,
)
from shoal.topics.kafka.secrecy import Redaction
from shoal.topics.naming import KAFKA_RULE, is_kafka_name

FENCED = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001 the library's own name for an error code
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.TRANSACTION_COORDINATOR_FENCED,
    }
)
#: Records that the client threw away; the reason is another error.
PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})  # noqa: SLF001
REBALANCED = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError._ASSIGNMENT_LOST,  # noqa: SLF001
    }
)
UNKNOWN_TOPIC = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    }
)
#: What mends itself, and what the client goes on through: brokers come and go, and partitions move between them.
PASSING = frozenset(
    {
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._RESOLVE,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001
        KafkaError._WAIT_COORD,  # noqa: SLF001
        KafkaError._WAIT_CACHE,  # noqa: SLF001
        KafkaError._MAX_POLL_EXCEEDED,  # noqa: SLF001
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.LISTENER_NOT_FOUND,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    }
)
_REFUSED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,  # noqa: SLF001
    }
)

_Client = TypeVar("_Client")

#: How the library writes down what it knows of a group, and where the generation is in it.
_GROUP_MARK = b"CGMDv2:"
_GROUP_GENERATION = struct.Struct("=i")


def check_topic(name: str, *, what: str) -> None:
    """Raise `InvalidError` for what cannot be the name of a topic, before a broker is asked."""
    problems = topic_problems([name])
    if problems:
        raise InvalidError(problems, what=what)


def topic_problems(names: Iterable[str]) -> list[Problem]:
    """What is wrong with the names of topics."""
    return [problem("topic", name, KAFKA_RULE) for name in names if not is_kafka_name(name)]


def generation_of(metadata: bytes) -> int:
    """The generation in what a consumer knows of its group; below 0 for one that is not in it."""
    if not metadata.startswith(_GROUP_MARK):
        raise UnsupportedError("this version of confluent-kafka does not say the generation of a group")
    return int(_GROUP_GENERATION.unpack_from(metadata, len(_GROUP_MARK))[0])


def error_of(error: BaseException) -> KafkaError | None:
    """What the library says went wrong, as it says it."""
    first = error.args[0] if error.args else None
    return first if isinstance(first, KafkaError) else None


def code_of(error: BaseException) -> int | None:
    """The library's number for what went wrong."""
    first = error_of(error)
    return None if first is None else int(first.code())


def to_error(error: KafkaError, *, doing: str, topic: str = "") -> ShoalError:
    """The error that callers of every backend know."""
    code, message = error.code(), f"{doing}: {error.str()}"
    if code in UNKNOWN_TOPIC:
        return NotFoundError("topic", topic or error.str(), hint="create it first")
    if code == KafkaError.TOPIC_ALREADY_EXISTS:
        return PreconditionError(f"topic {topic!r} is there already")
    if code in {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}:
        hint = "raise message.max.bytes of the brokers, and in the client settings of this cluster"
        return InvalidError([problem("value", None, f"of {topic} is larger than allowed")], what=doing, hint=hint)
    if code == KafkaError.TOPIC_EXCEPTION:
        return InvalidError([problem("topic", topic, "is no name that the brokers take")], what=doing)
    if code in {KafkaError.INVALID_PARTITIONS, KafkaError.INVALID_REPLICATION_FACTOR, KafkaError.INVALID_CONFIG}:
        return InvalidError([problem("topic", topic, error.str())], what=doing)
    if code in _REFUSED:
        return DeniedError(message)
    if code == KafkaError._QUEUE_FULL:  # noqa: SLF001
        return ExhaustedError(f"{doing}: the queue to the brokers is full")
    return UnavailableError(message)


@contextlib.contextmanager
def translated(doing: str, *, topic: str = "") -> Iterator[None]:
    """Raise this package's errors in place of the library's."""
    try:
        yield
    except KafkaException as error:
        first = error_of(error)
        if first is not None:
            raise to_error(first, doing=doing, topic=topic) from error
        raise UnavailableError(f"{doing}: {error}") from error
    except RuntimeError as error:  # what the library raises once a client is closed
        raise PreconditionError(f"{doing}: {error}") from error


def connect(make: Callable[[], _Client], redaction: Redaction) -> _Client:
    """What `make` makes; `InvalidError` for settings that the library does not take."""
    try:
        return make()
    except (KafkaException, TypeError, ValueError) as error:
        first = error_of(error)
        message = redaction.clean(str(error) if first is None else first.str())
    # Outside of the handler: the library's own words may tell a secret, and are not to be seen behind this error.
    raise InvalidError([problem("client", None, message)], what="Kafka")
