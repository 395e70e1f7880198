"""Reads a pipeline of operators from Monolith's `TransformConfig` message.

Called by programs that keep the pipelines of a Monolith job. New ones are written in Python with `Compose` and `AnyOf`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from shoal.core.errors import InvalidError, problem
from shoal.records.formats.documents import load_message
from shoal.records.operators.base import AnyOf, Compose, RowFilter, RowOperator
from shoal.records.operators.filters import Comparison, FilterByFids, FilterByLabel, FilterByValue
from shoal.records.operators.labels import AddLabel, TaskLabel
from shoal.wire.pb.monolith.native_training.data.transform.transform_config_pb2 import (
    AddLabelConfig,
    BasicTransformConfig,
    FilterByValueConfig,
    TransformConfig,
)

_OPERANDS = ("float_operand", "int_operand", "string_operand")


def load_transform(path: str, id_columns: tuple[str, ...]) -> Compose:
    """The pipeline in a file, as bytes, JSON or text by the end of its name. Raises as `make_transform` does."""
    return make_transform(load_message(path, TransformConfig), id_columns)


def make_transform(config: TransformConfig, id_columns: tuple[str, ...]) -> Compose:
    """The operators of a pipeline, in their order. Raises `InvalidError` that names the field.

    Args:
        config: the pipeline. Its ids are of version 2, as columns have them.
        id_columns: the columns that filters by id look at. Monolith looks at every id of a record.
    """
    operators: list[RowOperator] = []
    for index, each in enumerate(config.configs):
        where = f"configs[{index}]"
        if each.HasField("logical_or_config"):
            either, other = each.logical_or_config.x, each.logical_or_config.y
            where += ".logical_or_config"
            operators.append(
                AnyOf((_filter(either, f"{where}.x", id_columns), _filter(other, f"{where}.y", id_columns)))
            )
        else:
            operators.append(_operator(each.basic_config, f"{where}.basic_config", id_columns))
    return Compose(tuple(operators))


def _filter(config: BasicTransformConfig, where: str, id_columns: tuple[str, ...]) -> RowFilter:
    if config.WhichOneof("type") == "add_label":
        raise InvalidError([problem(where, "add_label", "must be a filter: one of two ways to keep a row")])
    made: RowFilter = _operator(config, where, id_columns)
    return made


def _operator(config: BasicTransformConfig, where: str, id_columns: tuple[str, ...]) -> Any:
    kind = config.WhichOneof("type")
    if kind is None:
        raise InvalidError([problem(where, None, f"must be one of {', '.join(_MAKERS)}")])
    return _MAKERS[kind](getattr(config, kind), f"{where}.{kind}", id_columns)


def _by_fid(config: Any, where: str, id_columns: tuple[str, ...]) -> FilterByFids:
    if not id_columns:
        raise InvalidError([problem(where, None, "needs the columns that have ids: give id_columns")])
    dropped, wanted, needed = (
        tuple(np.array(each, np.uint64).view(np.int64).tolist())
        for each in (config.filter_fids, config.has_fids, config.select_fids)
    )
    return FilterByFids(id_columns, dropped, wanted, needed)


def _by_label(config: Any, where: str, id_columns: tuple[str, ...]) -> FilterByLabel:
    del id_columns
    if any(math.isnan(each) for each in config.thresholds):
        raise InvalidError([problem(f"{where}.thresholds", list(config.thresholds), "must be numbers")])
    return FilterByLabel(tuple(config.thresholds))


def _by_value(config: FilterByValueConfig, where: str, id_columns: tuple[str, ...]) -> FilterByValue:
    del id_columns
    if not config.field_name:
        raise InvalidError([problem(f"{where}.field_name", config.field_name, "must name a column")])
    known = {each.value: each for each in Comparison}
    if config.op not in known:
        raise InvalidError([problem(f"{where}.op", config.op, f"must be one of {', '.join(known)}")])
    op = known[config.op]
    given = [tuple(getattr(config, name)) for name in _OPERANDS if getattr(config, name)]
    if len(given) + bool(config.operand_filepath) != 1:
        rule = f"must have operands in one of {', '.join((*_OPERANDS, 'operand_filepath'))}"
        raise InvalidError([problem(where, len(given) + bool(config.operand_filepath), rule)])
    if not given:
        path = config.operand_filepath
        return FilterByValue.from_file(config.field_name, op, path, keep_empty=config.keep_empty)
    return FilterByValue(config.field_name, op, given[0], config.keep_empty)


def _add_label(config: AddLabelConfig, where: str, id_columns: tuple[str, ...]) -> AddLabel:
    del id_columns
    tasks, problems = [], []
    for index, each in enumerate(config.task_label_configs):
        tasks.append(TaskLabel(tuple(each.pos_actions), tuple(each.neg_actions), each.sample_rate))
        problems += tasks[-1].problems(f"{where}.task_label_configs[{index}]", " ".join(str(each).split()))
    if not tasks:
        problems.append(problem(f"{where}.task_label_configs", None, "must have a task"))
    if problems:
        raise InvalidError(problems)
    return AddLabel(tuple(tasks), config.negative_value, config.new_sample_rate)


_MAKERS: dict[str, Callable[[Any, str, tuple[str, ...]], Any]] = {
    "filter_by_fid": _by_fid,
    "filter_by_action": lambda config, _where, _columns: FilterByFids((), has_actions=tuple(config.has_actions)),
    "filter_by_label": _by_label,
    "filter_by_value": _by_value,
    "add_label": _add_label,
}
