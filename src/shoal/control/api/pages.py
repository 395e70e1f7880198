"""Cuts lists into pages that fit into a message. Called by `shoal.control.api.service`.

A page has as many entries as were asked for, or fewer when they are large, and never none while there are more. Its
token is the id of its last entry: lists are in order of the ids, so the next page begins right after it, whatever came
or went meanwhile, and a control plane that has just taken over goes on where the last one stopped. A page of thousands
of entries is made in several turns: heartbeats are answered between them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TypeVar

from google.protobuf.message import Message

from shoal.core.errors import InvalidError, problem
from shoal.core.ids import is_identifier

MessageT = TypeVar("MessageT", bound=Message)

MAX_PAGE_SIZE = 10_000
#: A quarter of the largest message: room for one more large entry and for the other fields.
PAGE_BYTES = 4 * 1024 * 1024
#: Entries that are made before other tasks get their turn.
MADE_TOGETHER = 50


def check_page(size: int, token: str) -> None:
    """Raise `InvalidError` for a bad page size or token."""
    problems = []
    if not 0 <= size <= MAX_PAGE_SIZE:
        problems.append(problem("page_size", size, f"must be between 0 and {MAX_PAGE_SIZE:,}"))
    if token and not is_identifier(token):
        problems.append(problem("page_token", token, "must be the next_page_token of the page before"))
    if problems:
        raise InvalidError(problems)


async def first_page(entries: Iterable[tuple[str, MessageT]], size: int) -> tuple[list[MessageT], str]:
    """The first entries, each given with its id, and the token for the next page: empty when there is none.

    With a size of 0 everything is one page, as for callers that know of no pages.
    """
    page: list[MessageT] = []
    last, left = "", PAGE_BYTES
    for number, (entry_id, message) in enumerate(entries, start=1):
        if number % MADE_TOGETHER == 0:
            await asyncio.sleep(0)
        left -= message.ByteSize()
        if size and page and (len(page) == size or left < 0):
            return page, last
        page.append(message)
        last = entry_id
    return page, ""


def fitting(messages: Sequence[MessageT], *, from_end: bool = False) -> list[MessageT]:
    """As many of the first messages as fit into a page, at least one; with `from_end`, of the last."""
    kept: list[MessageT] = []
    left = PAGE_BYTES
    for message in reversed(messages) if from_end else messages:
        left -= message.ByteSize()
        if kept and left < 0:
            break
        kept.append(message)
    return kept[::-1] if from_end else kept
