from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidError
from shoal.core.ids import IDENTIFIER, is_identifier
from shoal.core.shape import Identifier, read_value


@pytest.mark.parametrize("text", ["a", "A1", "web-1", "a.b_c-d", "0", "a" * 128])
def test_ids(text: str) -> None:
    assert is_identifier(text)
    assert read_value(Identifier, text) == text


@pytest.mark.parametrize(
    "text",
    ["", ".", "..", "a/b", "../a", "a..b", "-a", "a-", ".a", "a ", "a\n", "a\x00", "ä", "a" * 129, "a%2fb", "a:b"],
)
def test_no_ids(text: str) -> None:
    assert not is_identifier(text)
    with pytest.raises(InvalidError):
        read_value(Identifier, text)


@given(st.text(alphabet="aB9._-/\\\n \x00é", max_size=10) | st.from_regex(IDENTIFIER, fullmatch=True))
def test_an_id_is_always_one_part_of_a_path(text: str) -> None:
    if is_identifier(text):
        assert PurePosixPath("/base", text).parts == ("/", "base", text)
        assert text not in (".", "..")
        assert text.isprintable()
