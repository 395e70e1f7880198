"""`shoal topic …`: lists and describes topics, shows records, and writes JSON lines to one.

For Kafka and for a local log alike: everything here uses `shoal.topics.base`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from shoal.cli import output
from shoal.cli.connection import session
from shoal.cli.connection.options import Json, ShownDuration, Timeout
from shoal.cli.output.tables import Column
from shoal.core.durations import format_duration
from shoal.core.errors import InvalidError, NotFoundError, problem

if TYPE_CHECKING:
    from shoal.topics.base import Retention, TopicDescription, TopicPartition, Topics

app = typer.Typer(
    name="topic", help="Topics of Kafka or of a local log: what is in them, and more into them.", no_args_is_help=True
)

MAX_RECORDS = 10_000
_PEEK_TIMEOUT = ShownDuration(seconds=10)

_LIST_COLUMNS = (Column("TOPIC"), Column("PARTITIONS", right=True), Column("RECORDS", right=True), Column("KEPT"))
_PARTITION_COLUMNS = (
    Column("PARTITION", right=True),
    Column("FIRST", right=True),
    Column("NEXT", right=True),
    Column("RECORDS", right=True),
)
_GROUP_COLUMNS = (Column("GROUP"), Column("COMMITTED", right=True), Column("LAG", right=True))
_RECORD_COLUMNS = (
    Column("PARTITION", right=True),
    Column("OFFSET", right=True),
    Column("TIME", rank=1),
    Column("KEY", least=8),
    Column("VALUE", least=16),
)

BrokerOption = Annotated[
    str,
    typer.Option(
        "--broker",
        envvar="SHOAL_BROKER",
        metavar="HOST:PORT[,…]|PATH",
        help="Kafka, or the folder of a local log; that of an app is .shoal/APP/topics",
    ),
]
ClientConfig = Annotated[
    str | None,
    typer.Option(
        "--client-config",
        metavar="PATH",
        help="Settings of Kafka's client, such as its security: lines of NAME=VALUE",
    ),
]
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name")]


@app.command("list")
def list_topics(*, broker: BrokerOption, client_config: ClientConfig = None, as_json: Json = False) -> None:
    """List the topics.

    RECORDS counts offsets: in Kafka the end of a transaction takes one, too.
    """
    with _opened(broker, client_config) as topics:
        found = [_document(topics, topics.describe(name)) for name in topics.names()]
    if as_json:
        output.json_document({"topics": found})
        return
    rows = [[each["name"], str(len(each["partitions"])), str(each["records"]), _kept(each)] for each in found]
    output.table(_LIST_COLUMNS, rows, empty="no topic")


@app.command("describe")
def describe(
    topic: TopicName,
    *,
    broker: BrokerOption,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", metavar="GROUP", help="Show the offsets of this consumer group; repeatable"),
    ] = None,
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Describe a topic: its partitions, their offsets, and how far groups are behind.

    LAG is how many offsets a group still has to read. A partition without a committed offset has none.
    """
    with _opened(broker, client_config) as topics:
        found = _document(topics, topics.describe(topic))
        found["groups"] = [_group_document(topics, name, found) for name in group or ()]
    if as_json:
        output.json_document(found)
        return
    output.facts(
        [
            ("Topic", topic),
            ("Partitions", str(len(found["partitions"]))),
            ("Records", str(found["records"])),
            ("Kept", _kept(found)),
        ]
    )
    output.data("")
    fields = ("partition", "first_offset", "next_offset", "records")
    output.table(_PARTITION_COLUMNS, [[str(each[name]) for name in fields] for each in found["partitions"]])
    if found["groups"]:
        output.data("")
        output.table((*_GROUP_COLUMNS[:1], _PARTITION_COLUMNS[0], *_GROUP_COLUMNS[1:]), _group_rows(found["groups"]))


@app.command("peek")
def peek(
    topic: TopicName,
    *,
    broker: BrokerOption,
    records: Annotated[
        int, typer.Option("--records", "-n", min=1, max=MAX_RECORDS, metavar="N", help="How many to show")
    ] = 10,
    from_start: Annotated[
        bool, typer.Option("--from-start", metavar="", help="The oldest ones instead of the newest")
    ] = False,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, metavar="P", help="Of this partition only [all]")
    ] = None,
    offset: Annotated[
        int | None, typer.Option("--offset", min=0, metavar="N", help="From this offset of --partition on")
    ] = None,
    timeout: Timeout = _PEEK_TIMEOUT,
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Show some records of a topic: the newest ones, in the order of their times.

    Nothing is committed and no group is joined, so nobody else notices. With --json each record is one line.
    """
    from shoal.cli.programs.topic_records import Look

    if offset is not None and partition is None:
        raise InvalidError([problem("--offset", offset, "needs --partition, which it is an offset of")])
    with _opened(broker, client_config) as topics:
        chosen = _chosen(topics.describe(topic), partition)
        look = Look(records, oldest=from_start or offset is not None, clock=session.clock())
        found = look.read(topics, chosen, offset, timeout.total_seconds())
    if as_json:
        for each in found:
            output.json_line(each.document(topic))
        return
    output.table(_RECORD_COLUMNS, [each.row() for each in found], empty=f"topic {topic} has no record there")


@app.command("feed")
def feed(
    topic: TopicName,
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="JSON lines; - is stdin")] = "-",
    *,
    broker: BrokerOption,
    key: Annotated[
        str, typer.Option("--key", metavar="FIELD", help="The field whose value is the record's key [no key]")
    ] = "",
    partitions: Annotated[
        int | None,
        typer.Option("--create", min=1, max=1024, metavar="N", help="Make the topic, with N partitions, if it is new"),
    ] = None,
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Write JSON lines to a topic: each line is one record.

    A file is checked as a whole first: if a line is bad nothing is written. Lines from stdin are written as they come,
    those before a bad one included.
    """
    from shoal.topics.base import ensure_topic

    with _source(file, key) as stream, _opened(broker, client_config, may_create=partitions is not None) as topics:
        if partitions is not None:
            ensure_topic(topics, topic, partitions=partitions)
        else:
            _require(topics, topic)
        count = _write(topics, topic, stream, key, _name(file))
    if as_json:
        output.json_document({"topic": topic, "records": count})
        return
    output.words(f"{count} record{'' if count == 1 else 's'} written to topic {topic}")


# ---------------------------------------------------------------------------------------------------------
# Connecting


@contextlib.contextmanager
def _opened(broker: str, client_config: str | None, *, may_create: bool = False) -> Iterator[Topics]:
    from shoal.dataflow.api.context import clean_broker
    from shoal.dataflow.connectors.topics.brokers import is_kafka, name_settings, topics_of

    try:
        place = clean_broker(broker)
    except InvalidError as error:
        raise InvalidError([problem("--broker", each.value, each.rule) for each in error.problems]) from None
    if is_kafka(place):
        from shoal.topics.kafka import KafkaSettings

        client = _read_client_config(client_config)
        place = name_settings(KafkaSettings(place.removeprefix("kafka://"), client=client), "cli")
    elif client_config is not None:
        raise InvalidError([problem("--client-config", client_config, "is for Kafka; --broker is a local log")])
    elif not may_create:
        folder = Path(place.removeprefix("file://"))
        if not (folder / "format.json").is_file():
            raise NotFoundError("local log", str(folder), hint="that of an app is .shoal/APP/topics, below its folder")
    with topics_of(place) as topics:
        yield topics


def _read_client_config(path: str | None) -> dict[str, str]:
    """Settings of the client library. No error shows a value: it may be secret."""
    if path is None:
        return {}
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError([problem("--client-config", path, f"cannot be read: {error}")]) from error
    settings: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        name, mark, value = line.strip().partition("=")
        if not name or name.startswith("#"):
            continue
        if not mark:
            raise InvalidError([problem(f"{path}, line {number}", None, "must be NAME=VALUE")])
        settings[name.strip()] = value.strip()
    return settings


def _require(topics: Topics, topic: str) -> TopicDescription:
    try:
        return topics.describe(topic)
    except NotFoundError as error:
        raise NotFoundError("topic", topic, hint="--create N makes it, with N partitions") from error


# ---------------------------------------------------------------------------------------------------------
# What a topic is


def _document(topics: Topics, description: TopicDescription) -> dict[str, Any]:
    places = description.topic_partitions()
    first, following = topics.first_offsets(places), topics.next_offsets(places)
    partitions = [
        {
            "partition": each.partition,
            "first_offset": first[each],
            "next_offset": following[each],
            "records": following[each] - first[each],
        }
        for each in places
    ]
    return {
        "name": description.name,
        "records": sum(each["records"] for each in partitions),
        "retention": _retention(description.retention),
        "partitions": partitions,
    }


def _retention(retention: Retention) -> dict[str, Any]:
    return {"age": None if retention.age is None else format_duration(retention.age), "bytes": retention.size}


def _kept(document: dict[str, Any]) -> str:
    age, size = document["retention"]["age"], document["retention"]["bytes"]
    bounds = [age or "", "" if size is None else f"{output.size(size)} a partition"]
    return ", ".join(each for each in bounds if each) or "for ever"


def _group_document(topics: Topics, group: str, described: dict[str, Any]) -> dict[str, Any]:
    committed = {
        each.partition: offset for each, offset in topics.committed(group).items() if each.topic == described["name"]
    }
    partitions = [
        {
            "partition": each["partition"],
            "committed": committed.get(each["partition"]),
            "lag": max(0, each["next_offset"] - max(committed[each["partition"]], each["first_offset"]))
            if each["partition"] in committed
            else None,
        }
        for each in described["partitions"]
    ]
    lags = [each["lag"] for each in partitions if each["lag"] is not None]
    return {"group": group, "lag": sum(lags) if lags else None, "partitions": partitions}


def _group_rows(groups: Sequence[dict[str, Any]]) -> list[list[str]]:
    fields = ("partition", "committed", "lag")
    return [
        [group["group"], *("" if each[name] is None else str(each[name]) for name in fields)]
        for group in groups
        for each in group["partitions"]
    ]


# ---------------------------------------------------------------------------------------------------------
# Records


def _chosen(description: TopicDescription, partition: int | None) -> Sequence[TopicPartition]:
    places = description.topic_partitions()
    if partition is None:
        return places
    if partition >= len(places):
        raise InvalidError([problem("--partition", partition, f"must be below {len(places)}, as many as there are")])
    return [places[partition]]


def _name(file: str) -> str:
    return "stdin" if file == "-" else file


@contextlib.contextmanager
def _source(file: str, key: str) -> Iterator[BinaryIO]:
    """Where the lines come from; those of a file are checked before anything is written."""
    from shoal.cli.programs.topic_lines import read_lines

    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        stream = Path(file).open("rb")  # noqa: SIM115  closed below
    except OSError as error:
        raise InvalidError([problem("FILE", file, f"cannot be read: {error.strerror}")]) from error
    with stream:
        if stream.seekable():
            for _lines in read_lines(stream, key=key, name=file):
                pass
            stream.seek(0)
        yield stream


def _write(topics: Topics, topic: str, stream: BinaryIO, key: str, name: str) -> int:
    from shoal.cli.programs.topic_lines import read_lines
    from shoal.topics.base import records

    count = 0
    with topics.writer() as writer:
        try:
            for lines in read_lines(stream, key=key, name=name):
                writer.append(topic, records(lines.values, keys=lines.keys))
                writer.flush()
                count += len(lines.values)
        except InvalidError as error:
            hint = f"{count} records before it were written" if count else "nothing was written"
            raise InvalidError(error.problems, what="feed", hint=hint) from None
    return count
