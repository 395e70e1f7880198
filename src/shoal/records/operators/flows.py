"""Splits the records of a file by their source, and merges several flows into one.

The source of a record is in the header of its frame (`lagrangex_header`). A flow is an iterator of batches or payloads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TypeVar

import numpy as np

from shoal.core.errors import InvalidError, problem
from shoal.records.formats.payloads import Payloads

Item = TypeVar("Item")


def of_sources(payloads: Iterable[Payloads], source_keys: Collection[int]) -> Iterator[Payloads]:
    """The records of some sources, in order. Raises `InvalidError` for a key that no header can hold."""
    wrong = [each for each in source_keys if not 0 <= each < 1 << 32]
    if wrong or not source_keys:
        raise InvalidError([problem("source_keys", wrong or list(source_keys), "must be keys of 32 bits")])
    return _of_sources(payloads, np.array(sorted(source_keys), np.uint32))


def _of_sources(
    payloads: Iterable[Payloads], wanted: np.ndarray[tuple[int], np.dtype[np.uint32]]
) -> Iterator[Payloads]:
    for each in payloads:
        found = each.take(np.isin(each.source_keys, wanted))
        if len(found):
            yield found


def merge_flows(flows: Iterable[Iterable[Item]]) -> Iterator[Item]:
    """One of each flow in turn, until all have ended. A flow that ends early leaves the others their turns."""
    left = [iter(each) for each in flows]
    while left:
        going = []
        for flow in left:
            for item in flow:
                yield item
                going.append(flow)
                break
        left = going
