"""Checks the names of topics and codecs: a bad one is refused where it is written, not when the job starts.

Called by `shoal.dataflow.plan.inference` for sources and sinks of topics, and by `shoal.dataflow.api.apps.app` for
topics that are declared.
"""

from __future__ import annotations

from shoal.core.errors import InvalidError, Problem, problem
from shoal.core.ids import IDENTIFIER_RULE, is_identifier
from shoal.dataflow.connectors.abilities import TopicConnector
from shoal.dataflow.connectors.topics.brokers import is_kafka
from shoal.dataflow.errors import Location, PlanError
from shoal.topics.naming import KAFKA_RULE, is_kafka_name


def check_connector(connector: object, *, at: Location | None) -> None:
    """Refuse a connector of a topic that cannot be, or whose codec cannot be made. Others are not looked at."""
    if not isinstance(connector, TopicConnector):
        return
    from shoal.topics.codecs import codec

    problems = _topic_problems(connector.topic, connector.broker)
    try:
        codec(connector.codec, **dict(connector.options))
    except InvalidError as error:
        problems += error.problems
    except TypeError as error:  # an option that it does not have, or lacks
        problems.append(problem(f"options of codec {connector.codec}", dict(connector.options), str(error)))
    _refuse(problems, at)


def check_topic(name: object, broker: str, codec_name: str, *, at: Location | None) -> None:
    """Refuse a topic that cannot be, and a codec that nobody knows. Its options are not known yet."""
    from shoal.topics.codecs import codec

    problems = _topic_problems(name, broker)
    try:
        codec(codec_name)
    except InvalidError as error:
        problems += error.problems
    except TypeError:  # it is known, and wants options
        pass
    _refuse(problems, at)


def _topic_problems(name: object, broker: str) -> list[Problem]:
    if is_kafka(broker):
        return [] if is_kafka_name(name) else [problem("topic", name, KAFKA_RULE)]
    return [] if isinstance(name, str) and is_identifier(name) else [problem("topic", name, IDENTIFIER_RULE)]


def _refuse(problems: list[Problem], at: Location | None) -> None:
    if problems:
        raise PlanError(problems, at=at)
