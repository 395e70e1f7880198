"""What parsers are given, and how those of files are called. For the registry, `tests.fuzz.parsers`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

DEEP = 1200
DEEP_TEXTS = ("[" * DEEP, "{a: " * DEEP, '{"a":' * DEEP, "- " * DEEP, "x = " + "[" * DEEP)
texts = st.text(max_size=40) | st.sampled_from(("", "\x00", "9" * 5000, *DEEP_TEXTS))
blobs = st.binary(max_size=60) | st.sampled_from((b"", b"\xff\xfe", b"[" * DEEP, b'{"a":' * DEEP))
numbers = st.integers(-(2**63), 2**63 - 1) | st.sampled_from((0, -1, 2**31, 2**63 - 1, -(2**63)))


def flipped_bytes(good: bytes) -> st.SearchStrategy[bytes]:
    """As many bytes, of which a few that stand together are others: lengths and places that are wrong, not torn."""
    pieces = st.binary(min_size=1, max_size=8) | st.sampled_from((b"\xff" * 4, b"\xff" * 8, b"\x7f\xff\xff\xff"))
    return st.builds(
        lambda at, piece: (good[:at] + piece + good[at + len(piece) :])[: len(good)],
        st.integers(0, len(good) - 1),
        pieces,
    )


def with_folder(fill: Callable[[Path, Any], None], parse: Callable[[Path], object]) -> Callable[[Any], object]:
    """A parser of files, as one of their content."""

    def run_it(content: Any) -> object:
        folder = Path(tempfile.mkdtemp())
        try:
            fill(folder, content)
            return parse(folder)
        finally:
            shutil.rmtree(folder)

    return run_it


def file_named(name: str) -> Callable[[Path, Any], None]:
    """Writes the content to a file of this name."""

    def fill(folder: Path, content: Any) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
        path.chmod(0o600)

    return fill
