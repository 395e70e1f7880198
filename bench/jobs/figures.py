"""What is measured of dataflow jobs on a fleet, and what is promised of them."""

from __future__ import annotations

from bench.figures import Bar, Figure, at_least, at_most
from bench.flight_figures import FIGURES as _FLIGHT
from bench.jobs.scale import FULL

ROWS = "M rows/s"
TIMES = "×"


def _ratio(name: str, over: str, under: str, bar: Bar | None = None) -> Figure:
    return Figure(name, TIMES, f"`{over}` divided by `{under}`.", bar=bar, quotient=(over, under))


_SPEED = (
    Figure(
        "sum",
        ROWS,
        "The sum of each of 1,000 string keys in windows of 10 s, behind a hash exchange, as a job on two slots, into "
        "Parquet files that appear with a checkpoint. From the first row that a task reads to the last.",
    ),
    Figure("sum_processes", ROWS, "The same with `shoal run --processes 2`, in turn with it."),
    _ratio("sum_to_processes", "sum", "sum_processes", at_least(0.9)),
    Figure("sum_bare", ROWS, "The same sums in bare Arrow on one core, without an exchange, checkpoints or files."),
    _ratio("sum_to_bare", "sum", "sum_bare", at_least(1.2)),
    Figure(
        "sum_flink",
        ROWS,
        "The same in Flink SQL with parallelism 2 and checkpoints every second, into its blackhole.",
        optional=True,
    ),
    _ratio("sum_to_flink", "sum", "sum_flink", at_least(10)),
    Figure(
        "slot_memory",
        "MB",
        "The most resident memory that a process of that job had.",
        bar=at_most(300),
    ),
)
_AGENTS = (
    *(
        Figure(
            f"cpu_{count}",
            "CPU s/M rows",
            f"CPU time of the processes of that job for a million rows, over {count} agent{'s' if count > 1 else ''}. "
            "The start of a task host does not count, only what it uses from when it begins to read.",
            once=True,
        )
        for count in FULL.agents
    ),
    Figure(
        "cpu_growth",
        "%",
        "How much more the most expensive of these costs than the cheapest.",
        bar=at_most(25),
        once=True,
    ),
)
_DELAYS = (
    Figure(
        "steady_p50",
        "ms",
        "50,000 rows/s of JSON through a job from a topic of a local log to another, at least once: from when a row "
        "was due to when a reader has it.",
    ),
    Figure("steady_p99", "ms", "The slowest hundredth of them.", bar=at_most(50)),
    Figure("steady_memory", "MB", "The most resident memory that a process of that job had.", bar=at_most(300)),
    Figure(
        "start",
        "s",
        "From the submit of a job of two tasks to its first row, at least once, on idle agents.",
        bar=at_most(2),
    ),
)
_APPENDED = (
    Figure(
        "appended_p50",
        "ms",
        "50,000 rows/s of JSON through a job with an exactly-once sink, from a topic of Kafka to another: from when a "
        "row was due to when it is in the log of its topic, in a transaction that a checkpoint commits later.",
        optional=True,
    ),
    Figure("appended_p99", "ms", "The slowest hundredth of them.", bar=at_most(50), optional=True),
)
_LOSSES = (
    Figure(
        "loss_host",
        "s",
        "A task host of a job with an exactly-once sink is killed: until a row is committed that came after that.",
        bar=at_most(10),
    ),
    Figure("loss_agent", "s", "The same with an agent and everything that it started.", bar=at_most(10)),
    Figure("loss_coordinator", "s", "The same with the agent that has the coordinator.", bar=at_most(10)),
)
_RESCALE = (
    Figure(
        "rescale_gap",
        "s",
        "A job whose state is `rescale_state` large gets two task hosts instead of one, and one again, under load: the "
        "longest time without a committed row.",
        bar=at_most(5),
        once=True,
    ),
    Figure("rescale_state", "MB", "The state of that job in its checkpoint.", once=True),
)
_RECORDS = (
    Figure(
        "records_agent",
        "K messages/s",
        "JSON from a topic of a local log to another, at least once, by a function of single records, written as "
        "`@app.agent`.",
        once=True,
    ),
    Figure("records_dataflow", "K messages/s", "The same as a dataflow, by an expression.", once=True),
    _ratio("records_dataflow_to_agent", "records_dataflow", "records_agent"),
)

FIGURES = (*_SPEED, *_FLIGHT, *_AGENTS, *_DELAYS, *_APPENDED, *_LOSSES, *_RESCALE, *_RECORDS)
