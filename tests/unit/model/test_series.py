"""Series that workloads leave for their agent: what is taken out of a file, and what is not."""

import time

import pytest

from shoal.core.telemetry import MetricRegistry
from shoal.dataflow.checkpoint.coordinator import CheckpointCounts
from shoal.dataflow.execution.coordinator.running import FlowMetrics
from shoal.dataflow.execution.progress import FlowSeries
from shoal.model.series import LABELS, head_line, merge_series

GOOD = b"""# TYPE shoal_dataflow_rows_emitted_total counter
shoal_dataflow_rows_emitted_total{dataflow="shop.totals",step="sum-1"} 12.0
"""


def test_series_of_several_processes_are_one_text_with_one_type_each():
    merged = merge_series((f"shop.totals-{part}", head_line("shop.totals") + GOOD) for part in ("host-0", "host-1"))
    assert merged.decode().splitlines() == [
        "# TYPE shoal_dataflow_rows_emitted_total counter",
        'shoal_dataflow_rows_emitted_total{job="shop.totals",host="host-0",dataflow="shop.totals",step="sum-1"} 12.0',
        'shoal_dataflow_rows_emitted_total{job="shop.totals",host="host-1",dataflow="shop.totals",step="sum-1"} 12.0',
    ]


def test_what_a_process_really_writes_is_taken_whole():
    series = FlowSeries(MetricRegistry())
    counts = CheckpointCounts(completed=3, last_number=3, last_bytes=10, last_seconds=0.25, age=1e-07)
    series.update('a "job"\\', FlowMetrics((), {}, counts, kafka="consumer"), 0)
    written = series.registry.render()
    own = [line for line in written.decode().splitlines() if line.startswith("shoal_dataflow_")]
    merged = merge_series([("j-coordinator", head_line("j") + written)]).decode().splitlines()
    assert len(own) >= 6
    assert len([line for line in merged if not line.startswith("#")]) == len(own)
    assert {label for each in series.registry.described() for label in each.labels} == set(LABELS)
    assert "process_" not in "".join(merged)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        GOOD,
        b"\xff\xfe",
        head_line("other") + GOOD,
        head_line("../x") + GOOD,
        head_line("j") + b'shoal_dataflow_rows_emitted_total{dataflow="no type"} 1\n',
        head_line("j") + GOOD.replace(b"shoal_dataflow_rows_emitted_total", b"shoal_agent_workloads"),
        head_line("j") + GOOD.replace(b"step=", b"job="),
        head_line("j") + GOOD.replace(b"12.0", b"12.0 1700000000"),
        head_line("j") + GOOD.replace(b"sum-1", b'a"} 1\\nevil{b="'),
        head_line("j") + GOOD.replace(b"sum-1", b"a" * 2000),
    ],
)
def test_what_has_another_form_is_left_out(content):
    assert merge_series([("j-host-0", content)]) == b""


def test_a_file_made_to_be_slow_is_read_soon():
    began = time.process_time()
    merge_series([("j-host-0", head_line("j") + b'shoal_dataflow_a{step="' + b"\\\\" * 100_000)])
    assert time.process_time() - began < 5, "each letter is looked at a bounded number of times"
