"""Every key of `agent.conf`, with its type and default, and the reader that checks a file against them.

Keys have the names that Monolith's agents read; `tfs_binary` and `proxy_binary` are ours. Numbers may be arithmetic
(`60 * 1000 * 1000`), texts may be `none`, a list has one line per entry. Everything that is wrong is reported at once,
with the key and the line; a file with a mistake changes nothing. The environment has a say in some of them: that is
`shoal.serving.config.deployment`.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import InvalidError, Problem, problem
from shoal.core.shape import unknown_field
from shoal.discovery.servers import parse_servers
from shoal.discovery.store import check_path
from shoal.serving.config.text import Entry, read_entries
from shoal.serving.expressions import evaluate_number
from shoal.serving.filters import parse_filter

DEPLOY_TYPES = ("entry", "ps", "dense", "mixed", "unified")
VERSION_POLICIES = ("latest", "latest_once", "all", "specific")
ROUGH_SORT_SERVERS = ("entry", "ps", "dense")

#: With `agent_version` 3, unless the file says otherwise: a model server that tries a bad model takes no other layout.
LAYOUT_RETRY_MICROS = 1000 * 1000
#: The same: without threads a model server loads one model after the other, and a bad one holds up the rest.
LAYOUT_LOAD_THREADS = 4
#: Longer than this no bad model should hold up the next layout.
_LONG_SECONDS = 30

_TRUE = frozenset({"true", "yes", "on", "1", "t", "y"})
_FALSE = frozenset({"false", "no", "off", "0", "f", "n"})


@dataclass(frozen=True, slots=True)
class ModelServerSettings:
    """Flags of `tensorflow_model_server`. One that differs from its default is passed on.

    Two are none: `allow_growth` counts in a platform config file, and `version` is read for old files.
    """

    enable_batching: bool = False
    allow_version_labels_for_unavailable_models: bool = False
    batching_parameters_file: str | None = None
    #: With `agent_version` 3 it is 4.
    num_load_threads: int = 0
    num_unload_threads: int = 0
    max_num_load_retries: int = 5
    #: With `agent_version` 3 a second.
    load_retry_interval_micros: int = 60 * 1000 * 1000
    file_system_poll_wait_seconds: int = 1
    flush_filesystem_caches: bool = True
    tensorflow_session_parallelism: int = 0
    tensorflow_intra_op_parallelism: int = 0
    tensorflow_inter_op_parallelism: int = 0
    ssl_config_file: str | None = None
    platform_config_file: str | None = None
    per_process_gpu_memory_fraction: float = 0.0
    allow_growth: bool = True
    saved_model_tags: str | None = None
    grpc_channel_arguments: str | None = None
    grpc_max_threads: int = 0
    enable_model_warmup: bool = True
    version: str | None = None
    remove_unused_fields_from_bundle_metagraph: bool = True
    enable_signature_method_name_check: bool = False
    xla_cpu_compilation_enabled: bool = False
    enable_profiler: bool = True


@dataclass(frozen=True, slots=True)
class ServingSettings(ModelServerSettings):
    """Everything that a file can say."""

    #: The namespace of a business: the top of its tree.
    bzid: str | None = None
    base_name: str | None = None
    base_path: str | None = None
    num_ps: int = 1
    num_shard: int | None = None
    deploy_type: str | None = None
    #: The older name of `deploy_type`.
    server_type: str | None = None
    #: Read for old files; the replica id comes from the environment.
    replica_id: int | None = None
    stand_alone_serving: bool = False
    zk_servers: str | None = None
    proxy_port: int | None = None
    tfs_entry_port: int | None = None
    tfs_entry_http_port: int | None = None
    tfs_entry_archon_port: int | None = None
    tfs_ps_port: int | None = None
    tfs_ps_http_port: int | None = None
    tfs_ps_archon_port: int | None = None
    dense_alone: bool = False
    dense_service_num: int = 3
    tfs_dense_port: int | None = None
    tfs_dense_http_port: int | None = None
    tfs_dense_archon_port: int | None = None
    agent_port: int | None = None
    #: Seconds between two looks at the states of models that have settled, with `agent_version` 3.
    update_model_status_interval: int = 1
    model_config_file: str | None = None
    agent_version: int = 1
    #: How long entry waits for ps and dense, in seconds.
    max_waiting_sec: int = 1200
    #: Read for old files; nothing is preloaded. Model servers have the environment of the agent, `LD_PRELOAD` included.
    preload_jemalloc: bool = True
    version_policy: str = "latest"
    version_data: int = 1
    fetch_ps_timeout_ms: int = 200
    fetch_ps_long_conn_num: int = 100
    fetch_ps_long_conn_enable: bool = True
    fetch_ps_retry: int = 2
    aio_thread_num: int = 30
    file_system_poll_wait_seconds_ps: int = 0
    rough_sort_model_name: str | None = None
    rough_sort_model_local_path: str | None = None
    rough_sort_model_loaded_server: str = "entry"
    rough_sort_model_p2p_path: str | None = None
    rough_sort_resource_constrained: bool = False
    dc_aware: bool = False
    layout_pattern: str | None = None
    layout_filters: tuple[str, ...] = ()
    tfs_port_archon: int | None = None
    tfs_port_grpc: int | None = None
    tfs_port_http: int | None = None
    use_metrics: bool = True
    #: The command of the model server; MONOLITH_TFS_BINARY comes first.
    tfs_binary: str | None = None
    #: The command of the proxy beside entry; there is none without it.
    proxy_binary: str | None = None


_KINDS: dict[str, Any] = typing.get_type_hints(ServingSettings)
_PORTS = frozenset(name for name in _KINDS if "port" in name.split("_"))
_POSITIVE = frozenset(
    {
        "dense_service_num",
        "max_waiting_sec",
        "num_ps",
        "num_shard",
        "update_model_status_interval",
        "version_data",
    }
)
_CHOICES = {
    "deploy_type": DEPLOY_TYPES,
    "server_type": DEPLOY_TYPES,
    "version_policy": VERSION_POLICIES,
    "rough_sort_model_loaded_server": ROUGH_SORT_SERVERS,
}
#: Become parts of paths in the tree.
_NAMES = frozenset({"bzid", "base_name", "rough_sort_model_name"})


def read_settings(path: str) -> ServingSettings:
    """Read a file. Raises `InvalidError` with every problem."""
    return settings_from(*read_entries(path))


def settings_from(entries: Iterable[Entry], unread: Sequence[Problem] = ()) -> ServingSettings:
    """The settings that entries of a file make. Raises `InvalidError` with every problem, also of what was not read."""
    problems = list(unread)
    values: dict[str, Any] = {}
    first: dict[str, Entry] = {}
    for entry in entries:
        if entry.key not in _KINDS:
            problems.append(dataclasses.replace(unknown_field(entry.key, _KINDS), field=entry.where))
            continue
        earlier = first.setdefault(entry.key, entry)
        is_list = _is_list(entry.key)
        if earlier is not entry and not is_list:
            problems.append(
                problem(entry.where, entry.value, f"is given already in line {earlier.line} of {earlier.path}")
            )
            continue
        try:
            value = _read(entry.key, entry.value)
        except ValueError as error:
            problems.append(problem(entry.where, entry.value, str(error)))
            if not is_list:  # it has no value: neither this one nor the default
                values[entry.key] = None
            continue
        values[entry.key] = (*values.get(entry.key, ()), value) if is_list else value
    # What is missing may stand in a file that could not be read.
    found = () if unread else _across(values, lambda key: first[key].where if key in first else key)
    # A key whose value is wrong is not missed as well.
    broken = {each.field for each in problems}
    problems.extend(each for each in found if each.field not in broken)
    if problems:
        raise InvalidError(problems)
    if values.get("agent_version") == 3:
        values.setdefault("load_retry_interval_micros", LAYOUT_RETRY_MICROS)
        values.setdefault("num_load_threads", LAYOUT_LOAD_THREADS)
    return ServingSettings(**values)


def cautions(settings: ServingSettings) -> Iterator[str]:
    """What a file asks for that does not go well with layouts."""
    if settings.agent_version != 3:
        return
    if settings.num_load_threads <= 0:
        yield (
            "num_load_threads 0: a stock model server loads one model after the other, so a slow or a bad one holds up "
            f"the others; without the line it has {LAYOUT_LOAD_THREADS} threads"
        )
    seconds = settings.load_retry_interval_micros * settings.max_num_load_retries / 1e6
    if seconds > _LONG_SECONDS:
        yield (
            "load_retry_interval_micros and max_num_load_retries: a stock model server tries a bad model for "
            f"{seconds:g} s and takes no other layout meanwhile; without the lines it is 5 s"
        )


def _is_list(key: str) -> bool:
    return typing.get_origin(_KINDS[key]) is tuple


def _plain(kind: Any) -> tuple[Any, bool]:
    """The type of a field, and whether it may be `none`."""
    if typing.get_origin(kind) is tuple:
        return typing.get_args(kind)[0], False
    if isinstance(kind, types.UnionType):
        return next(each for each in typing.get_args(kind) if each is not types.NoneType), True
    return kind, False


def _read(key: str, text: str) -> Any:
    """The value of a text. Raises ValueError with the rule."""
    kind, optional = _plain(_KINDS[key])
    if optional and text.lower() == "none":
        return None
    value = _READERS[kind](text)
    if key in _CHOICES:
        value = value.lower()
        if value not in _CHOICES[key]:
            raise ValueError(f"must be one of {', '.join(_CHOICES[key])}")
    for rule in _rules(key, value):
        raise ValueError(rule)
    return value


def _rules(key: str, value: Any) -> Iterator[str]:
    if key in _PORTS and not 0 <= value <= 65535:
        yield "must be a port between 0 and 65,535"
    if key in _POSITIVE and not 1 <= value <= 1_000_000:
        yield "must be between 1 and 1,000,000"
    if key == "agent_version" and value not in (1, 3):
        yield "must be 1 or 3; agent version 2 has data in the tree and no agent" if value == 2 else "must be 1 or 3"
    if key in _NAMES and not is_name(value):
        yield NAME_RULE
    if key == "layout_filters":
        parse_filter(value)
    if key == "layout_pattern" and not _is_path(value):
        yield "must be the name of a layout, or its absolute path in the tree"
    if key == "zk_servers":
        parse_servers(value)


NAME_RULE = "must not contain / or :, and must not be . or .."


def is_name(text: str) -> bool:
    """Whether a text can be one part of a path in the tree."""
    return bool(text) and not {"/", ":", "\0"} & set(text) and text not in {".", ".."} and text.isprintable()


def _is_path(text: str) -> bool:
    """Whether a text can be a path in the tree, or the end of one."""
    try:
        check_path(text if text.startswith("/") else f"/{text}")
    except InvalidError:
        return False
    return text != "/"


def _to_bool(text: str) -> bool:
    word = text.lower()
    if word not in _TRUE | _FALSE:
        raise ValueError("must be true or false")
    return word in _TRUE


def _to_int(text: str) -> int:
    value = evaluate_number(text)
    if isinstance(value, float):
        if not value.is_integer():
            raise ValueError("must be a whole number")
        value = int(value)
    if not -(2**63) <= value < 2**63:
        raise ValueError("must fit into 64 bits")
    return value


def _to_float(text: str) -> float:
    return float(evaluate_number(text))


_READERS: dict[Any, Callable[[str], Any]] = {bool: _to_bool, int: _to_int, float: _to_float, str: str}


def _across(values: dict[str, Any], where: Callable[[str], str]) -> Iterator[Problem]:
    """Rules between fields."""
    deploy = "mixed" if values.get("stand_alone_serving") else values.get("deploy_type") or values.get("server_type")
    version = values.get("agent_version", 1)
    if deploy is None:
        yield problem(where("deploy_type"), None, f"is required: one of {', '.join(DEPLOY_TYPES)}")
    elif version == 3 and deploy != "unified":
        yield problem(where("deploy_type"), deploy, "must be unified with agent_version 3")
    elif version == 1 and deploy == "unified":
        yield problem(where("agent_version"), version, "must be 3 with deploy_type unified")
    if deploy == "dense" and not values.get("dense_alone"):
        yield problem(where("dense_alone"), values.get("dense_alone"), "must be true with deploy_type dense")
    if not values.get("bzid"):
        yield problem(where("bzid"), None, "is required")
    if version == 1:
        for key in ("base_name", "base_path"):
            if not values.get(key):
                yield problem(where(key), None, "is required with agent_version 1")
    yield from _companions(values, where)


def _companions(values: dict[str, Any], where: Callable[[str], str]) -> Iterator[Problem]:
    """Keys that mean nothing without others."""
    if values.get("batching_parameters_file") and not values.get("enable_batching"):
        yield problem(
            where("batching_parameters_file"), None, "is refused by model servers without enable_batching true"
        )
    if values.get("rough_sort_model_name"):
        for key in ("rough_sort_model_local_path", "rough_sort_model_p2p_path"):
            if not values.get(key):
                yield problem(where(key), None, "is required with rough_sort_model_name")
