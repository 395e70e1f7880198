"""The peer Quix Streams: JSON from a topic, a filter, JSON to another topic. Runs until it is killed.

quix_jobs.py BROKER INPUT OUTPUT GROUP [exactly-once]
"""

# Its packages are installed in an environment of its own, so that here nothing is known of their types.
# mypy: ignore-errors

from __future__ import annotations

import logging
import sys

from quixstreams import Application

LIMIT = 1000


def main(arguments: list[str]) -> None:
    """Run it."""
    broker, source, target, group, *rest = arguments
    logging.disable(logging.INFO)
    app = Application(
        broker_address=broker,
        consumer_group=group,
        auto_offset_reset="earliest",
        auto_create_topics=False,
        processing_guarantee="exactly-once" if rest == ["exactly-once"] else "at-least-once",
        commit_interval=1.0,
        loglevel="ERROR",
    )
    rows = app.dataframe(app.topic(source, value_deserializer="json", key_deserializer="bytes"))
    rows = rows[rows["amount"] > LIMIT]
    rows.to_topic(app.topic(target, value_serializer="json", key_serializer="bytes"))
    app.run()


if __name__ == "__main__":
    main(sys.argv[1:])
