"""Methods that streams do not have, and what to write instead.

`Named` gives a class errors that help: a mistyped name with the one that was meant, a name of another library with the
way it is done here, a name of Sabot that has no replacement with those words. The streams, groups and windows of
`shoal.dataflow.api` derive from it; `shoal.dataflow.api.apps.app` asks `no_method` itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from shoal.core.errors import problem
from shoal.dataflow.errors import NoMethodError, near
from shoal.dataflow.language.functions import find_location

_SORT = '.collect().sort_by("at") for what has an end, Stream.merge(a, b, by="at") for streams that are sorted'
_LIMIT = ".take(n) for the first batches, .collect().slice(0, n) for the first rows"
_PRINT = ".foreach(print) for batches, print(stream.to_pylist()) for rows, .to_callback(print) in a dataflow"
_FILTER = '.filter(col("name") == "ada"), with fn for text: fn.contains, fn.starts_with, fn.ends_with, fn.matches'
_ONE = '.aggregate(total=("amount", "sum")), with the names of the results'
_TIMES = '.event_time("at", disorder="5s")'
_ROLLING = '.window(sliding(size_seconds=60, slide_seconds=5)).aggregate(total=("amount", "sum"))'
_DISTINCT = '.distinct("id")'
_WITH = '.with_columns(total=col("price") * col("quantity"))'

#: What to write instead of a method that other libraries have.
WAYS: Mapping[str, str] = {
    **dict.fromkeys(("sort", "sort_by", "sort_values", "order_by", "orderBy", "orderby"), _SORT),
    **dict.fromkeys(("limit", "head", "first", "fetch", "slice"), _LIMIT),
    **dict.fromkeys(("print", "show", "display", "peek", "inspect", "debug"), _PRINT),
    **dict.fromkeys(("where", "query"), '.filter(col("amount") > 5)'),
    **dict.fromkeys(("groupby", "groupBy"), '.group_by("user")'),
    **dict.fromkeys(("keyby", "keyBy", "partition_by"), '.key_by("user")'),
    **dict.fromkeys(("agg", "aggregated"), _ONE),
    **dict.fromkeys(("sum", "mean", "min", "max", "avg"), _ONE),
    **dict.fromkeys(("with_column", "withColumn", "assign", "add_column", "mutate"), _WITH),
    **dict.fromkeys(("drop_duplicates", "dedup", "deduplicate", "unique", "drop_duplicated"), _DISTINCT),
    **dict.fromkeys(("flatMap", "flatmap", "explode"), ".flat_map(f), or .records().flat_map(f) by record"),
    **dict.fromkeys(("forEach", "for_each"), ".foreach(f)"),
    **dict.fromkeys(("union_all", "unionAll", "concat", "append"), ".union(other)"),
    "left_join": '.join(other, on="id", how="left")',
    "inner_join": '.join(other, on="id")',
    "right_join": '.join(other, on="id", how="right")',
    "outer_join": '.join(other, on="id", how="outer")',
    "zip": '.join(other, on="id"), or .asof_join(other) by time',
    "rolling": _ROLLING,
    **dict.fromkeys(("watermark", "with_watermark", "assign_timestamps", "assign_timestamps_and_watermarks"), _TIMES),
    **dict.fromkeys(("to_list", "toList", "to_dicts", "rows"), ".to_pylist()"),
    **dict.fromkeys(("to_arrow", "to_table"), ".collect()"),
    "to_pandas": ".collect().to_pandas()",
    **dict.fromkeys(
        ("sink", "add_sink", "sink_to", "write", "output"), '.to_topic("results"), .to_parquet("results/"), …'
    ),
    **dict.fromkeys(("sink_to_kafka", "write_kafka"), '.to_kafka("results")'),
    "parallel": ".with_parallelism(4)",
    "sequential": ".with_parallelism(1)",
    "timeseries": _ROLLING,
    **dict.fromkeys(
        ("filter_equals", "filter_contains", "filter_starts_with", "filter_ends_with", "filter_regex"), _FILTER
    ),
    "from_parquet_duckdb": 'Stream.from_parquet("events/")',
    **dict.fromkeys(("range", "parallelize", "from_items", "from_collection"), "Stream.from_list([1, 2, 3])"),
    "from_pandas": "Stream.from_table(pa.Table.from_pandas(frame))",
    **dict.fromkeys(("read_parquet", "scan_parquet"), 'Stream.from_parquet("events/")'),
    **dict.fromkeys(("read_csv", "scan_csv"), 'Stream.from_csv("events.csv")'),
}

_CONNECTOR = "write a connector, Stream.from_source(…), or a function for Stream.from_iterable(…)"
_SINK = "write a connector, .to_sink(…), or call it in .to_callback(f)"
_SQL = "write the query with expressions and steps; Stream.from_sql reads the result of one from DuckDB"

#: Names of Sabot that nothing here replaces, and what is left to do.
GONE: Mapping[str, str] = {
    **dict.fromkeys(("from_postgres", "from_delta", "from_marbledb", "from_uri", "from_flight"), _CONNECTOR),
    "from_postgres_cdc": _CONNECTOR,
    **dict.fromkeys(("to_postgres", "to_delta", "to_feature_store", "to_flight"), _SINK),
    "sql": _SQL,
    "with_features": "join with a table of features: .join(app.table(…), on=…)",
    **dict.fromkeys(("transform_graph", "graph_query", "continuous_query"), "there are no graphs here"),
    **dict.fromkeys(("list_workflows", "enqueue_workflow"), "there are no workflows here"),
    "raft_stream": "dataflows run on processors, not on graphics cards",
}


def no_method(what: str, name: str, known: Mapping[str, str] | None = None, there: Any = ()) -> NoMethodError:
    """The error for a name that `what` does not have. `known` is what to write instead, `there` what it has."""
    way = (known or {}).get(name)
    if way is not None:
        more = f"write {way}"
    elif name in GONE:
        more = f"that of Sabot has no replacement here: {GONE[name]}"
    else:
        more = near(name, there, "methods")
    return NoMethodError(name, [problem(f".{name}", None, f"{what} has no {name}(); {more}")], at=find_location())


class NamedMethods(type):
    """For names of the class itself, such as `Stream.from_kafak`."""

    #: What people call such an object.
    called: str

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
        raise no_method(cls.called, name, WAYS, _public(cls))


class Named(metaclass=NamedMethods):
    """An object whose methods are known by name."""

    __slots__ = ()

    called: ClassVar[str] = "a stream"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise no_method(type(self).called, name, WAYS, _public(type(self)))


def _public(kind: type) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("_") and name != "called"]
