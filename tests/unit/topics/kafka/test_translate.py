"""What the client library says, in our words."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from shoal.core.errors import (
    DeniedError,
    ExhaustedError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    ShoalError,
    UnavailableError,
    UnsupportedError,
)
from shoal.topics.kafka.translate import (
    check_topic,
    code_of,
    generation_of,
    to_error,
    topic_problems,
    translated,
)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, NotFoundError),
        (KafkaError._UNKNOWN_PARTITION, NotFoundError),
        (KafkaError.TOPIC_ALREADY_EXISTS, PreconditionError),
        (KafkaError.MSG_SIZE_TOO_LARGE, InvalidError),
        (KafkaError.TOPIC_EXCEPTION, InvalidError),
        (KafkaError.INVALID_REPLICATION_FACTOR, InvalidError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, DeniedError),
        (KafkaError.SASL_AUTHENTICATION_FAILED, DeniedError),
        (KafkaError._QUEUE_FULL, ExhaustedError),
        (KafkaError._TRANSPORT, UnavailableError),
        (KafkaError._MSG_TIMED_OUT, UnavailableError),
    ],
)
def test_an_error_of_the_library_is_one_of_ours(code: int, kind: type[ShoalError]) -> None:
    with pytest.raises(kind) as raised, translated("append", topic="clicks"):
        raise KafkaException(KafkaError(code))
    assert type(raised.value) is kind
    assert isinstance(raised.value.__cause__, KafkaException)
    assert str(to_error(KafkaError(code), doing="append", topic="clicks")) == str(raised.value)


def test_what_has_no_code_is_unavailable() -> None:
    with pytest.raises(UnavailableError, match="read: odd"), translated("read"):
        raise KafkaException("odd")
    assert code_of(KafkaException("odd")) is None
    assert code_of(KafkaException(KafkaError(KafkaError._TRANSPORT))) == KafkaError._TRANSPORT


def test_a_closed_client_is_a_precondition() -> None:
    with pytest.raises(PreconditionError), translated("read"):
        raise RuntimeError("Consumer closed")


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249])
def test_names_of_topics(name: str) -> None:
    check_topic(name, what="create")


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "é", "a\n", "x" * 250])
def test_bad_names_of_topics(name: str) -> None:
    with pytest.raises(InvalidError):
        check_topic(name, what="create")
    assert len(topic_problems([name, "fine", name])) == 2


def test_the_generation_of_a_group() -> None:
    assert generation_of(b"CGMDv2:" + (7).to_bytes(4, "little") + b"group\0member\0\x01") == 7
    assert generation_of(b"CGMDv2:\xff\xff\xff\xffgroup\0\0\x01") == -1
    with pytest.raises(UnsupportedError):
        generation_of(b"CGMDv9:\xff\xff\xff\xffgroup\0\0\x01")
