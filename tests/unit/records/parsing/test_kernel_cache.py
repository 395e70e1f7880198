"""Machine code that is kept is used only with the sources that it was made from."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("numba")

from shoal.records.parsing.kernels import caching, instances, values, wire


def test_a_change_in_any_source_changes_the_fingerprint(tmp_path: Path) -> None:
    for name, content in (("one.py", b"x = 1\n"), ("two.py", b"")):
        (tmp_path / name).write_bytes(content)
    before = caching.fingerprint.__wrapped__(tmp_path)
    assert caching.fingerprint.__wrapped__(tmp_path) == before
    (tmp_path / "two.py").write_bytes(b"y = 1\n")
    after = caching.fingerprint.__wrapped__(tmp_path)
    (tmp_path / "two.py").write_bytes(b"")
    (tmp_path / "one.py").write_bytes(b"x = 1\ny = 1\n")
    assert len({before, after, caching.fingerprint.__wrapped__(tmp_path)}) == 3


def test_every_kernel_is_bound_to_the_sources_of_all_of_them() -> None:
    expected = caching.fingerprint(Path(wire.__file__).parent)
    found = [
        each._cache._impl.locator.get_source_stamp()
        for module in (wire, values, instances)
        for each in vars(module).values()
        if hasattr(each, "py_func")
    ]
    assert len(found) > 10
    assert set(found) == {expected}
