"""What is measured of the dataflow engine, and what is promised of it."""

from __future__ import annotations

from bench.dataflow.nexmark import QUERIES
from bench.dataflow.scale import EVENTS, FULL
from bench.figures import Against, Bar, Figure, at_least, at_most

ROWS = "M rows/s"
MESSAGES = "K messages/s"
TIMES = "×"


def _ratio(name: str, over: str, under: str, bar: Bar | None = None) -> Figure:
    """How many times as fast one is as the other."""
    return Figure(name, TIMES, f"`{over}` divided by `{under}`.", bar=bar, quotient=(over, under))


_MEMORY = (
    Figure(
        "map_filter",
        ROWS,
        "Rows of four columns (an id, a time, a string, a number), of which half pass a filter and get one more, by "
        "expressions.",
    ),
    Figure("map_filter_bare", ROWS, "The same kernels of Arrow in a plain loop, in turn with it."),
    Figure(
        "map_filter_flink",
        ROWS,
        "The same job in Flink SQL with parallelism 1 and object reuse, in a warm JVM that is not held to one core. "
        "Its rows come from its sequence of numbers, its quickest source.",
        optional=True,
    ),
    Figure(
        "map_filter_bytewax",
        ROWS,
        "The same job in Bytewax with the best of the batch sizes 1,000, 10,000 and 50,000.",
        optional=True,
    ),
    _ratio("map_filter_to_bare", "map_filter", "map_filter_bare", at_least(0.4)),
    _ratio("map_filter_to_flink", "map_filter", "map_filter_flink", at_least(2)),
    _ratio("map_filter_to_bytewax", "map_filter", "map_filter_bytewax", at_least(10)),
    Figure(
        "map_filter_small",
        ROWS,
        "As `map_filter`, in batches of 1,000 rows: what a batch costs besides its rows. Literals are bound when the "
        "plan is made.",
    ),
    Figure("map_filter_small_bare", ROWS, "The same in bare Arrow, with literals made once; in turn with it."),
    _ratio("map_filter_small_to_bare", "map_filter_small", "map_filter_small_bare"),
    Figure(
        "tumbling",
        ROWS,
        "The sum of each of 1,000 string keys in windows of 10 s, of rows that are a millisecond of event time apart.",
    ),
    Figure(
        "tumbling_bare",
        ROWS,
        "The same with Arrow's own grouping in a plain loop: batch by batch, and the parts of a window together when "
        "it is over; in turn with it.",
    ),
    Figure("tumbling_flink", ROWS, "The same in Flink SQL, as for `map_filter_flink`.", optional=True),
    Figure(
        "tumbling_bytewax",
        ROWS,
        f"The same in Bytewax with the better of the batch sizes 1,000 and 10,000, over {FULL.bytewax_window_rows:,} "
        "rows.",
        optional=True,
    ),
    _ratio("tumbling_to_bare", "tumbling", "tumbling_bare", at_least(0.5)),
    _ratio("tumbling_to_flink", "tumbling", "tumbling_flink", at_least(5)),
    _ratio("tumbling_to_bytewax", "tumbling", "tumbling_bytewax", at_least(50)),
    Figure(
        "tumbling_many_keys",
        ROWS,
        "As `tumbling`, of 1,000,000 string keys with 200,000 rows in a second of event time: most keys are in every "
        "window.",
        bar=at_least(1),
    ),
    Figure("tumbling_many_keys_bare", ROWS, "The same in bare Arrow, in turn with it."),
    _ratio("tumbling_many_keys_to_bare", "tumbling_many_keys", "tumbling_many_keys_bare"),
    Figure(
        "sliding",
        ROWS,
        "The sum of each of 1,000 string keys in windows of 60 s that begin every second, of the rows of `tumbling`: "
        "about as many results as rows.",
    ),
    Figure("sliding_tumbling", ROWS, "`tumbling` again, in turn with `sliding`."),
    Figure(
        "sliding_cost",
        TIMES,
        "How many times as long as `tumbling` a row takes in `sliding`.",
        bar=at_most(3),
        quotient=("sliding_tumbling", "sliding"),
    ),
    Figure(
        "records",
        ROWS,
        "A Python function over each record, which reads two columns and returns a dictionary of two.",
        bar=at_least(0.4),
    ),
    Figure("records_bare", ROWS, "The same by hand: `to_pylist`, the function, `from_pylist`; in turn with it."),
    _ratio("records_to_bare", "records", "records_bare"),
)

_MORSELS = (
    Figure("map_filter_one_thread", ROWS, "`map_filter` on all cores with one thread for each task, the default."),
    Figure(
        "map_filter_two_threads",
        ROWS,
        "The same with two threads that share the kernels, morsel by morsel, where that is quicker; in turn with it.",
    ),
    _ratio("map_filter_two_threads_to_one", "map_filter_two_threads", "map_filter_one_thread", at_least(0.95)),
    Figure("map_filter_wide_one_thread", ROWS, "A job of more and heavier kernels, with one thread."),
    Figure("map_filter_wide_two_threads", ROWS, "The same with two threads, in turn with it."),
    _ratio(
        "map_filter_wide_two_threads_to_one",
        "map_filter_wide_two_threads",
        "map_filter_wide_one_thread",
        at_least(0.95),
    ),
    Figure("text_one_thread", ROWS, "Texts that are changed and matched with regular expressions, with one thread."),
    Figure(
        "text_two_threads",
        ROWS,
        "The same with two threads, in turn with it. Why the default is what it is: a thread more pays only where "
        "kernels are heavy and a core is idle, and a task more uses that core for everything.",
    ),
    _ratio("text_two_threads_to_one", "text_two_threads", "text_one_thread", at_least(1.5)),
    Figure(
        "plan_time",
        "ms",
        "From a program of two sources, a join, expressions and a window to a plan that can run: defined, checked, "
        "optimised, laid out.",
    ),
    Figure("explain_time", "ms", "The same program, with its plans printed."),
)

_PROCESSES = (
    Figure(
        "function_two_processes",
        ROWS,
        "The function of `records` over two processes with parallelism 2, from rows in memory of each; timed from the "
        "start of the tasks to the end of the last, as all of this group.",
    ),
    Figure("function_one_process", ROWS, "The same over one process with parallelism 1, in turn with it."),
    _ratio("function_two_to_one", "function_two_processes", "function_one_process", at_least(1.6)),
    Figure(
        "tumbling_two_processes",
        ROWS,
        "The sums of `tumbling` over two processes with parallelism 2, behind a hash exchange, with checkpoints every "
        "second and an exactly-once sink of Parquet files.",
    ),
    Figure("tumbling_one_process", ROWS, "The same over one process with parallelism 1, in turn with it."),
    _ratio("tumbling_two_to_one", "tumbling_two_processes", "tumbling_one_process", at_least(1.5)),
    Figure(
        "tumbling_two_processes_flink",
        ROWS,
        "The sums in Flink SQL with parallelism 2 and checkpoints every second, as for `tumbling_flink`; its sink "
        "drops the rows.",
        optional=True,
    ),
    _ratio("tumbling_two_to_flink", "tumbling_two_processes", "tumbling_two_processes_flink", at_least(10)),
    Figure(
        "transport",
        "MB/s",
        "Batches of the rows of `tumbling`, shared out by key over two tasks: the part of one task goes to another "
        "process by a channel of the exchange on a unix socket, with its credits.",
    ),
    Figure(
        "transport_bare",
        "MB/s",
        "The same bytes by a bare unix socket, in turn with it: serialized before, read into one buffer again and "
        "again, and not looked at.",
    ),
    _ratio("transport_to_bare", "transport", "transport_bare", at_least(0.8)),
)

_LOG = (
    Figure("log", MESSAGES, "JSON from a topic of the local log through a filter to another, at least once."),
    Figure("log_exact", MESSAGES, "The same exactly once, with a checkpoint every second."),
    _ratio("log_exact_share", "log_exact", "log"),
    Figure(
        "log_p50",
        "ms",
        f"At {FULL.rate:,.0f} rows/s, each in a message of JSON: from when a row is due at the feeder, through a topic "
        "of the local log, the job and another topic, to the reader of that: the median.",
    ),
    Figure("log_p99", "ms", "As `log_p50`, the 99th percentile.", bar=at_most(20)),
    Figure("log_trickle", "ms", "The same for one row a second: the slowest.", bar=at_most(50)),
    Figure("log_steady_cpu", "% of a core", f"What the job used at {FULL.rate:,.0f} rows/s."),
)

_NEEDS = (
    Figure(
        "start",
        "s",
        "From the start of `shoal run` to the first row that a reader of the output topic has, on a local log.",
        bar=at_most(1),
    ),
    Figure("start_exact", "s", "The same exactly once, with a checkpoint every second.", bar=at_most(2)),
    Figure("start_cpu", "s", "CPU time that `start` takes, which no other work on the machine touches."),
    Figure("start_memory", "MB", "Peak resident memory by then; MB of 2^20 bytes."),
    Figure(
        "log_memory",
        "MB",
        "Peak resident memory of the jobs through the local log, at full speed, exactly once and at a steady rate: the "
        "largest of the three.",
        bar=at_most(300),
    ),
    Figure(
        "stalled_growth",
        "MB",
        "How much resident memory grows when the sink behind an exchange to two tasks no longer takes anything. The "
        "bound is 16 MB for the queue of each and 2 MB for what the source reads ahead.",
        bar=at_most(34),
    ),
    Figure("stalled_waiting", "MB", "What lies in the queues then."),
)


def _kafka(name: str, unit: str, meaning: str, bar: Bar | None = None, against: Against | None = None) -> Figure:
    """Needs a broker."""
    return Figure(name, unit, meaning, bar=bar, against=against, optional=True)


_JSON = "JSON of 97 bytes from a topic of Kafka through a filter, which half pass, to another"

_KAFKA = (
    _kafka("kafka", MESSAGES, f"{_JSON}, at least once, in one process.", at_least(400)),
    _kafka("kafka_two", MESSAGES, "The same in two processes, each with half of the messages.", at_least(750)),
    _kafka("kafka_processes", MESSAGES, "The same as one job with parallelism 2 over two child processes."),
    _kafka("kafka_exact", MESSAGES, "The same exactly once, in one process, with a checkpoint every second."),
    _kafka(
        "kafka_loop",
        MESSAGES,
        "The same without an engine: a loop of `confluent-kafka` and orjson with the client's queues tuned, which "
        "commits every second.",
    ),
    _kafka("kafka_loop_two", MESSAGES, "Two such loops, each with half of the messages."),
    _kafka("kafka_loop_exact", MESSAGES, "Such a loop in transactions, one a second."),
    _kafka(
        "kafka_flink",
        MESSAGES,
        "The same in Flink SQL with parallelism 1 and checkpoints every second, in a JVM that has done it before.",
    ),
    _kafka("kafka_flink_two", MESSAGES, "The same with parallelism 2."),
    _kafka("kafka_bytewax", MESSAGES, f"The same in Bytewax, for {FULL.bytewax_messages:,} messages."),
    _kafka("kafka_quix", MESSAGES, f"The same in Quix Streams, for {FULL.quix_messages:,} messages."),
    _ratio("kafka_to_loop", "kafka", "kafka_loop", at_least(0.95)),
    _ratio("kafka_two_to_loop", "kafka_two", "kafka_loop_two"),
    _ratio("kafka_processes_to_loop", "kafka_processes", "kafka_loop_two", at_least(0.95)),
    _ratio("kafka_exact_share", "kafka_exact", "kafka", at_least(0.85)),
    _ratio("kafka_to_flink", "kafka", "kafka_flink", at_least(1)),
    _ratio("kafka_two_to_flink", "kafka_two", "kafka_flink_two", at_least(1)),
    _ratio("kafka_to_bytewax", "kafka", "kafka_bytewax"),
    _ratio("kafka_to_quix", "kafka", "kafka_quix"),
    _kafka("kafka_cpu", "s", "CPU time of our process for a million messages, its start included."),
    _kafka("kafka_loop_cpu", "s", "The same of the loop."),
    _kafka(
        "kafka_memory",
        "MB",
        "Peak resident memory of our process meanwhile. The client's fetch queue is bounded by a setting, "
        "`fetch_ahead`: 64 MiB by default, with all that the client keeps of each record.",
        at_most(450),
    ),
    _kafka("kafka_arrow", ROWS, "The same filter with our Arrow codec, many rows in a message.", at_least(2)),
    _kafka(
        "kafka_p50",
        "ms",
        f"At {FULL.rate:,.0f} rows/s, each in a message of JSON: from when a row is due at the feeder, through a "
        "topic, the job and another topic, to the reader of that: the median.",
        at_most(20),
    ),
    _kafka("kafka_p99", "ms", "As `kafka_p50`, the 99th percentile.", at_most(60)),
    _kafka("kafka_trickle", "ms", "The same for one row a second: the slowest.", at_most(50)),
    _kafka(
        "kafka_committed_p50",
        "ms",
        f"At {FULL.rate:,.0f} rows/s exactly once with a commit every 200 ms: from when a row is due at the feeder to "
        "a reader of what is committed, the median.",
    ),
    _kafka("kafka_committed_p99", "ms", "As `kafka_committed_p50`, the 99th percentile.", at_most(300)),
    _kafka("kafka_steady_cpu", "% of a core", f"What the job used at {FULL.rate:,.0f} rows/s."),
    _kafka("hop_p50", "ms", "The same without a job, so through one topic only: the median."),
    _kafka("hop_p99", "ms", "As `hop_p50`, the 99th percentile."),
)

_CHECKPOINTS = (
    Figure(
        "checkpoint_pause",
        "ms",
        f"How long the task stands still for a checkpoint of sums over {FULL.state_keys:,} keys, of which one of a "
        "hundred changed since the last one: the median.",
        bar=at_most(20),
    ),
    Figure("checkpoint_written", "MB", "What such a checkpoint writes; MB of 10^6 bytes."),
    Figure("checkpoint_whole", "MB", "What is written of all of these keys."),
    Figure("checkpoint_share", "%", "`checkpoint_written` of `checkpoint_whole`.", bar=at_most(5)),
    *(
        figure
        for name, text, bar in (
            ("tumbling", "The job of `tumbling`", at_least(0.9)),
            ("sums", "Sums of 100,000 keys without a window, all of which change between two", at_least(0.9)),
            (
                "tumbling_many_keys",
                "The job of `tumbling_many_keys`, where most keys change between two",
                at_least(0.9),
            ),
        )
        for figure in (
            Figure(f"often_{name}", ROWS, f"{text}, on all cores, with a checkpoint every 100 ms."),
            Figure(f"often_{name}_without", ROWS, "The same without checkpoints, in turn with it."),
            _ratio(f"often_{name}_share", f"often_{name}", f"often_{name}_without", bar),
        )
    ),
)

_NEXMARK = tuple(
    figure
    for query in QUERIES
    for figure in (
        Figure(
            f"nexmark_{query}",
            "M events/s",
            f"Nexmark {query} over {EVENTS:,} events in Parquet files: the events that it reads, by the seconds from "
            "the first read to the closed output, with parallelism 1.",
            against=Against("DuckDB", f"nexmark_{query}_duckdb"),
            once=True,
        ),
        Figure(
            f"nexmark_{query}_two",
            "M events/s",
            "The same with parallelism 2 over two processes, from the start of the tasks to the end of the last.",
            against=Against("DuckDB", f"nexmark_{query}_duckdb"),
            once=True,
        ),
        _ratio(f"nexmark_{query}_two_to_duckdb", f"nexmark_{query}_two", f"nexmark_{query}_duckdb", at_least(0.3)),
        Figure(
            f"nexmark_{query}_duckdb",
            "M events/s",
            f"DuckDB's answer to {query} from the same files to a file, all at once and on all cores.",
            once=True,
        ),
    )
) + tuple(
    Figure(
        f"nexmark_{query}_flink",
        "M events/s",
        f"Flink SQL's answer to {query} over rows that it makes in memory, a million events like those of the files, "
        "with parallelism 2 and checkpoints every second.",
        once=True,
        optional=True,
    )
    for query in QUERIES
)

FIGURES = (*_MEMORY, *_MORSELS, *_PROCESSES, *_CHECKPOINTS, *_LOG, *_NEEDS, *_KAFKA, *_NEXMARK)
