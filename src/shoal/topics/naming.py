"""Which names topics may have in Kafka. Pure; needs no Kafka client.

Called by `shoal.topics.kafka`, and by `shoal.dataflow.connectors.topics.names` before a broker is asked.
"""

from __future__ import annotations

import re

KAFKA_RULE = "must be 1 to 249 letters, digits, dots, dashes or underscores, and neither . nor .."
_KAFKA_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


def is_kafka_name(name: object) -> bool:
    """Whether Kafka takes a name for a topic."""
    return isinstance(name, str) and _KAFKA_NAME.fullmatch(name) is not None and name not in {".", ".."}
