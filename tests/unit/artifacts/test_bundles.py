"""Bundles: deterministic, exact, and closed to everything that is not one."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.artifacts.bundles import MAGIC, MOST_ENTRIES, Bundle, check_versions, pack_bundle, unpack_bundle
from shoal.artifacts.collecting import collect_bundle, current_versions
from shoal.core.errors import CorruptError, ExhaustedError, InvalidError, NotFoundError, PreconditionError, ShoalError

GOOD = Bundle(
    "my_app:flow", {"my_app/__init__.py": b"", "my_app/flow.py": b"x = 1\n"}, {"f": b"\0blob"}, {"python": "3"}
)
NAMES = st.text("abcdef_", min_size=1, max_size=8)


@given(st.dictionaries(NAMES, st.binary(max_size=50)), st.dictionaries(st.text(max_size=9), st.binary(max_size=50)))
def test_a_bundle_is_read_back_and_is_always_the_same_bytes(files: Any, blobs: Any) -> None:
    bundle = Bundle("a:b", files, blobs, {"python": "3.11"})
    packed = pack_bundle(bundle)
    assert unpack_bundle(packed) == bundle
    backwards = Bundle("a:b", dict(reversed(files.items())), dict(reversed(blobs.items())), {"python": "3.11"})
    assert pack_bundle(backwards) == packed


def test_closures_with_the_same_text_and_different_captures_stay_different() -> None:
    def scaled(by: int) -> Any:
        return lambda row: row * by

    one, two = (pack_bundle(Bundle("a:b", {}, {"f": cloudpickle.dumps(scaled(by))})) for by in (2, 3))
    assert one != two
    found = [cloudpickle.loads(unpack_bundle(each).blobs["f"])(10) for each in (one, two)]
    assert found == [20, 30]


def made(files: Any = (), *, rest: bytes = b"", **changes: Any) -> bytes:
    """A bundle by hand, with right hashes."""
    listed = [[name, len(content), hashlib.sha256(content).hexdigest()] for name, content in files]
    body = {"format": 1, "entry": "a:b", "versions": {}, "files": listed, "blobs": []} | changes
    manifest = json.dumps(body).encode()
    contents = b"".join(content for _name, content in files)
    return MAGIC + struct.pack("<Q", len(manifest)) + manifest + contents + rest


PATHS = [
    "/etc/passwd",
    "../x.py",
    "a/../../x.py",
    "a//b.py",
    "./a.py",
    "a/.",
    "",
    "a\\b.py",
    "c:\\x",
    "a\0b",
    "a\nb",
    " a.py",
    "a /b.py",
    "x" * 513,
]


@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_leads_elsewhere_is_refused_on_both_sides(path: str) -> None:
    with pytest.raises(InvalidError, match="relative path"):
        unpack_bundle(made([(path, b"x")]))
    with pytest.raises(InvalidError, match="relative path"):
        pack_bundle(Bundle("a:b", {path: b"x"}))


WRONG = {
    "nothing": b"",
    "another beginning": b"PK\x03\x04" + bytes(100),
    "cut in the head": MAGIC + b"\0",
    "a manifest beyond the end": MAGIC + struct.pack("<Q", 1 << 60) + b"{}",
    "no JSON": MAGIC + struct.pack("<Q", 2) + b"{x",
    "deep JSON": MAGIC + struct.pack("<Q", 200_000) + b"[" * 200_000,
    "a list": MAGIC + struct.pack("<Q", 2) + b"[]",
    "a newer format": made(format=2),
    "a missing field": MAGIC + struct.pack("<Q", 2) + b"{}",
    "another field": made(more=1),
    "an entry that is no text": made(entry=1),
    "versions that are no texts": made(versions={"python": 3}),
    "blobs that are no list": made(blobs={}),
    "a file without a hash": made(blobs=[["a", 1]]),
    "a negative size": made(blobs=[["a", -1, "x"]]),
    "a size that is true": made(blobs=[["a", True, "x"]]),
    "a huge size": made(blobs=[["a", 1 << 61, "x"]]),
    "a wrong hash": made(blobs=[["a", 1, "00"]], rest=b"x"),
    "too many files": made(blobs=[["a", 0, ""]] * (MOST_ENTRIES + 1)),
    "the same file twice": made([("a.py", b"1"), ("a.py", b"2")]),
    "something behind the end": made([("a.py", b"1")], rest=b"x"),
    "less than the manifest says": made([("a.py", b"12")])[:-1],
}


@pytest.mark.parametrize("content", WRONG.values(), ids=WRONG)
def test_what_is_no_bundle_is_refused(content: bytes) -> None:
    with pytest.raises(CorruptError):
        unpack_bundle(content)


def test_a_file_below_a_file_is_refused() -> None:
    with pytest.raises(InvalidError, match="below another file"):
        unpack_bundle(made([("a", b"1"), ("a/b.py", b"2")]))


@given(st.data())
def test_changed_bytes_are_read_or_refused(data: st.DataObject) -> None:
    content = bytearray(pack_bundle(GOOD))
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        unpack_bundle(bytes(content))
    except ShoalError:
        return


def test_sizes_are_bounded() -> None:
    with pytest.raises(ExhaustedError):
        pack_bundle(GOOD, most=20)
    with pytest.raises(ExhaustedError):
        unpack_bundle(pack_bundle(GOOD), most=20)
    with pytest.raises(InvalidError, match="at most"):
        pack_bundle(Bundle("a:b", {f"f{number}": b"" for number in range(MOST_ENTRIES + 1)}))


def test_versions_that_differ_are_refused_naming_both() -> None:
    check_versions({"python": "3.11.2", "pyarrow": "26.0.1"}, {"python": "3.11.9", "pyarrow": "26.0.3", "x": "1"})
    with pytest.raises(PreconditionError, match=r"made with python 3\.11\.2, and this is python 3\.12\.0"):
        check_versions({"python": "3.11.2"}, {"python": "3.12.0"})
    with pytest.raises(PreconditionError, match=r"made with pyarrow 26\.0\.1, and this is pyarrow not installed"):
        check_versions({"pyarrow": "26.0.1"}, {})
    check_versions(current_versions(), current_versions())
    assert "pyarrow" in current_versions()


def test_a_package_is_collected_without_being_imported(tmp_path: Path) -> None:
    package = tmp_path / "my_app"
    (package / "inner").mkdir(parents=True)
    (package / "__pycache__").mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "inner" / "data.json").write_text("{}")
    (package / "__pycache__" / "x.pyc").write_text("")
    (tmp_path / "single.py").write_text("x = 1")
    found = collect_bundle("my_app.inner:flow", [str(tmp_path / "nowhere"), str(tmp_path)], {"f": b"1"})
    assert sorted(found.files) == ["my_app/__init__.py", "my_app/inner/data.json"]
    assert (found.blobs, found.versions) == ({"f": b"1"}, current_versions())
    assert collect_bundle("single:x", [str(tmp_path)], {}).files == {"single.py": b"x = 1"}
    with pytest.raises(NotFoundError):
        collect_bundle("other:x", [str(tmp_path)], {})
    for wrong in ("", "../x:y", "a b:c", "a..b"):
        with pytest.raises(InvalidError, match="module:name"):
            collect_bundle(wrong, [str(tmp_path)], {})
    (package / "link.py").symlink_to("/etc/passwd")
    with pytest.raises(InvalidError, match="must not be a link"):
        collect_bundle("my_app:flow", [str(tmp_path)], {})
