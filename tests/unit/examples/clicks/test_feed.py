"""The feed reads its progress file, or says what is wrong with it."""

from __future__ import annotations

import pytest

from clicks.feed import Progress, read_progress, write_progress
from shoal.core.errors import InvalidError


def test_progress_is_read_as_it_was_written(tmp_path):
    assert read_progress(tmp_path) is None
    write_progress(tmp_path, Progress(1, 2))
    assert read_progress(tmp_path) == Progress(1, 2)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"start": "x", "next": 2}', '{"start": 1}', "[" * 100_000])
def test_a_damaged_file_is_refused(tmp_path, text):
    (tmp_path / "feed.json").write_text(text)
    with pytest.raises(InvalidError, match=r"feed\.json"):
        read_progress(tmp_path)
