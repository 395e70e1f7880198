"""What a process says of itself: log lines on stderr, and metrics in Prometheus' text format.

`setup_logging` is called once by each composition root in `shoal.cli`. Code logs with
`logging.getLogger(__name__)`, facts as `extra={"node_id": …}`; values under names that look like secrets never leave.

A `MetricRegistry` belongs to one server object and is no global, so that a whole fleet fits into one process. Each
package makes its series in one place and keeps them. A label takes few values: a state, an RPC, a result; never an id.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

from shoal.core.errors import InvalidError, ShoalError, problem

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge, Histogram

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
#: Libraries that write a line for each request.
_CHATTY = ("httpcore", "httpx")
HIDDEN = "***"

_SECRET_NAME = re.compile("token|secret|password|passwd|authorization|session", re.IGNORECASE)

# name=value, name: value, "name": "value"; and the password of a URL. A line may hold a word of a megabyte, so nothing
# here looks at a letter twice: names begin where words begin and are never given back.
_NAMED = re.compile(r"""(?<![\w.-])(?P<name>[\w.-]++)["']?\s*+[=:]\s*+""")
_VALUE = re.compile(
    r""""(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+'|(?:(?:bearer|basic)\s+)?[^\s,;&)\]}"']++""", re.IGNORECASE
)
_URL_PASSWORD = re.compile(r"(?P<before>://[^\s:/@]*+:)[^\s/@]++(?=@)")

# What every log record has; everything else was given by the caller as `extra`.
_RECORD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


# ---------------------------------------------------------------------------------------------------------
# Logging


def is_secret_name(name: str) -> bool:
    """Whether a value under this name must not be shown."""
    return _SECRET_NAME.search(name) is not None


def hide_secrets(text: str) -> str:
    """The text without what follows names that look like secrets, and without the passwords of URLs."""
    kept: list[str] = []
    done = 0
    for named in _NAMED.finditer(text):
        if named.start() < done or not is_secret_name(named["name"]):
            continue
        value = _VALUE.match(text, named.end())
        if value is not None:
            kept += [text[done : named.end()], HIDDEN]
            done = value.end()
    return _URL_PASSWORD.sub(rf"\g<before>{HIDDEN}", "".join([*kept, text[done:]]))


def setup_logging(
    level: str | None = None,
    *,
    style: str | None = None,
    env: Mapping[str, str] | None = None,
    stream: TextIO | None = None,
) -> None:
    """Send log lines to stderr. May be called again to change its mind.

    Args:
        level: the value of --log-level; None for that of LOG_LEVEL, or info.
        style: text or json; None for that of LOG_FORMAT, or text.
        env: the environment, os.environ if not given.
        stream: where to write, stderr if not given.
    """
    env = os.environ if env is None else env
    level_name = level or env.get("LOG_LEVEL") or "info"
    style_name = style or env.get("LOG_FORMAT") or "text"
    problems = []
    if level_name.lower() not in (*LEVELS, "warn"):
        where = "--log-level" if level else "LOG_LEVEL"
        problems.append(problem(where, level_name, f"must be one of {', '.join(LEVELS)}"))
    if style_name.lower() not in FORMATS:
        where = "--log-format" if style else "LOG_FORMAT"
        problems.append(problem(where, style_name, f"must be one of {', '.join(FORMATS)}"))
    if problems:
        raise InvalidError(problems)
    handler = _Lines(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if style_name.lower() == "json" else TextFormatter())
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each, _Lines)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level_name.upper())
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(root.level, logging.WARNING))


class _Lines(logging.StreamHandler[TextIO]):
    """Our own handler, so that a second set-up finds it and leaves those of others alone."""


class TextFormatter(logging.Formatter):
    """One line for a person: time, level, logger, message, facts."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; a traceback follows on lines of its own."""
        facts = "".join(f" {name}={value}" for name, value in _facts(record).items())
        line = f"{_timestamp(record)} {record.levelname:<7} {record.name}: {hide_secrets(record.getMessage())}{facts}"
        return "\n".join([line, *_trace(self, record)])


class JsonFormatter(logging.Formatter):
    """One JSON object a line, for machines."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        body: dict[str, Any] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": hide_secrets(record.getMessage()),
            **{name: value for name, value in _facts(record).items() if name not in ("time", "level", "logger")},
        }
        trace = _trace(self, record)
        if trace:
            body["trace"] = "\n".join(trace)
        return json.dumps(body, ensure_ascii=False)


def _timestamp(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _facts(record: logging.LogRecord) -> dict[str, str]:
    extra = {name: value for name, value in vars(record).items() if name not in _RECORD_FIELDS}
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, ShoalError):
        extra = {**error.facts, **extra}
    return {name: HIDDEN if is_secret_name(name) else hide_secrets(str(value)) for name, value in extra.items()}


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    parts = []
    if record.exc_info:
        parts.append(hide_secrets(formatter.formatException(record.exc_info)))
    if record.stack_info:
        parts.append(hide_secrets(formatter.formatStack(record.stack_info)))
    return parts


# ---------------------------------------------------------------------------------------------------------
# Metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds, from a call within a process to a start of a workload."""

_PERSYS_NOTE = "The name is for dashboards made for Persys; shoal_ series tell more."
_SERIES = re.compile(r"(?:shoal|persys)_[a-z]+(?:_[a-z0-9]+)+")
_MAX_LABELS = 6


@dataclass(frozen=True, slots=True)
class Series:
    """What a series is called and what it tells."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help_text: str


class MetricRegistry:
    """The series of one server object. Series are named `shoal_<package>_<noun>_<unit>`, counters end in `_total`.

    Asking for a series that exists returns it, so that two parts of a package may share one.
    """

    def __init__(self) -> None:
        # Imported here, so that programs which only log do not load it.
        from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics

        # They double the series and tell nothing that a counter's reset does not.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has types for all but this
        self._registry = CollectorRegistry(auto_describe=True)
        self._series: dict[str, tuple[tuple[object, ...], Any]] = {}
        self._described: list[Series] = []
        ProcessCollector(registry=self._registry)

    def counter(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Counter:
        """A number that only grows."""
        from prometheus_client import Counter

        if not name.endswith("_total"):
            raise ValueError(f"the name of the counter {name} must end in _total")
        counter: Counter = self._make(Counter, name, help_text, labels)
        return counter

    def gauge(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Gauge:
        """A number that goes up and down."""
        from prometheus_client import Gauge

        gauge: Gauge = self._make(Gauge, name, help_text, labels)
        return gauge

    def histogram(
        self, name: str, help_text: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = LATENCY_BUCKETS
    ) -> Histogram:
        """How often values of each size were seen."""
        from prometheus_client import Histogram

        histogram: Histogram = self._make(Histogram, name, help_text, labels, buckets=tuple(buckets))
        return histogram

    def described(self) -> tuple[Series, ...]:
        """Every series that there is, in the order they were asked for."""
        return tuple(self._described)

    def render(self) -> bytes:
        """Every series in Prometheus' text format, to be served as `CONTENT_TYPE`."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)

    def _make(self, kind: Any, name: str, help_text: str, labels: Sequence[str], **options: Any) -> Any:
        if not _SERIES.fullmatch(name):
            raise ValueError(f"the series {name} must be named shoal_<package>_<noun>_<unit>")
        if len(labels) > _MAX_LABELS:
            raise ValueError(f"the series {name} has more than {_MAX_LABELS} labels")
        shape = (kind, tuple(labels), tuple(sorted(options.items())))
        known = self._series.get(name)
        if known is not None:
            if known[0] != shape:
                raise ValueError(f"the series {name} exists already with another type, other labels or buckets")
            return known[1]
        shown = f"{help_text} {_PERSYS_NOTE}" if name.startswith("persys_") else help_text
        series = kind(name, shown, labelnames=tuple(labels), registry=self._registry, **options)
        self._series[name] = (shape, series)
        self._described.append(Series(name, kind.__name__.lower(), tuple(labels), help_text))
        return series
