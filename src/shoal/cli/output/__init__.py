"""What commands print, and how it looks: text, tables, errors with hints, live displays, units.

Everything that writes to stdout or stderr, and what only decides how it looks. Nothing here knows a command, a
connection or the fleet. Data goes to stdout, messages for people go to stderr.
"""

from shoal.cli.output.displays import Progress, ProgressRow, progress, screen, stdout_is_lively
from shoal.cli.output.printing import (
    Cell,
    data,
    facts,
    fail,
    fail_by_bug,
    fail_with,
    json_document,
    json_line,
    raw,
    raw_error,
    state,
    styled,
    table,
    table_lines,
    to_plain,
    to_width,
    warn,
    words,
    yaml_documents,
    yaml_text,
)
from shoal.cli.output.units import ago, ago_words, cores, in_words, local_time, megabytes, short, size, span

__all__ = [
    "Cell",
    "Progress",
    "ProgressRow",
    "ago",
    "ago_words",
    "cores",
    "data",
    "facts",
    "fail",
    "fail_by_bug",
    "fail_with",
    "in_words",
    "json_document",
    "json_line",
    "local_time",
    "megabytes",
    "progress",
    "raw",
    "raw_error",
    "screen",
    "short",
    "size",
    "span",
    "state",
    "stdout_is_lively",
    "styled",
    "table",
    "table_lines",
    "to_plain",
    "to_width",
    "warn",
    "words",
    "yaml_documents",
    "yaml_text",
]
