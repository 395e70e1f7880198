"""Bundles where they arrive: checked, unpacked once, and their modules found by the process that runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shoal.artifacts import opening
from shoal.artifacts.bundles import Bundle, pack_bundle
from shoal.artifacts.collecting import collect_bundle, current_versions
from shoal.artifacts.opening import open_bundle
from shoal.core.errors import CorruptError, ExhaustedError, NotFoundError, PreconditionError

PROGRAM = """
import pickle, sys
from pathlib import Path
from shoal.artifacts.opening import open_bundle
bundle = open_bundle(Path(sys.argv[1]), Path(sys.argv[2]))
assert "my_app" not in sys.modules, "opening imports nothing"
open_bundle(Path(sys.argv[1]), Path(sys.argv[2]))
print(*(pickle.loads(bundle.blobs[name])(10) for name in sorted(bundle.blobs)))
"""


@pytest.fixture(autouse=True)
def search_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


def written(folder: Path, bundle: Bundle) -> Path:
    path = folder / "bundle.shoal"
    path.write_bytes(pack_bundle(bundle))
    return path


def test_functions_of_a_package_run_in_a_process_that_has_never_seen_it(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "my_app").mkdir(parents=True)
    (source / "my_app/__init__.py").write_text(
        "def scaled(by):\n    return lambda row: row * by * unit()\n"
        "def unit():\n    from my_app.units import UNIT\n    return UNIT\n"
    )
    (source / "my_app/units.py").write_text("UNIT = 100\n")
    # Pickled where the package is: the same text with different captures, and a function by its name.
    make = (
        "import cloudpickle, sys; sys.path.insert(0, sys.argv[1]); import my_app\n"
        "blobs = [my_app.scaled(2), my_app.scaled(3)]\n"
        "[open(f'{sys.argv[1]}/{i}', 'wb').write(cloudpickle.dumps(each)) for i, each in enumerate(blobs)]"
    )
    subprocess.run([sys.executable, "-c", make, str(source)], check=True)
    blobs = {f"fn-{number}": (source / str(number)).read_bytes() for number in range(2)}
    assert blobs["fn-0"] != blobs["fn-1"], "they differ by what they have captured"
    path = written(tmp_path, collect_bundle("my_app:flow", [str(source)], blobs))
    (source / "my_app").rename(source / "gone")
    command = [sys.executable, "-c", PROGRAM, str(path), str(tmp_path / "work")]
    for _ in range(2):  # and again, where it is unpacked already
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        assert answer.stdout.split() == ["2000", "3000"], answer.stderr
    assert len(list((tmp_path / "work").iterdir())) == 1


@pytest.mark.parametrize("library", ["python", "pyarrow"])
def test_another_version_is_refused_naming_both_and_nothing_is_unpacked(tmp_path: Path, library: str) -> None:
    versions = {**current_versions(), library: "1.2.3"}
    path = written(tmp_path, Bundle("a:b", {"a.py": b""}, {}, versions))
    before = list(sys.path)
    with pytest.raises(PreconditionError, match=rf"{library} 1\.2\.3, and this is {library} ") as caught:
        open_bundle(path, tmp_path / "work")
    assert current_versions()[library] in caught.value.message
    assert not (tmp_path / "work").exists()
    assert sys.path == before


def test_what_is_no_bundle_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    with pytest.raises(NotFoundError):
        open_bundle(path, tmp_path)
    path.write_bytes(b"something else")
    with pytest.raises(CorruptError):
        open_bundle(path, tmp_path)
    good = pack_bundle(Bundle("a:b", {"a.py": b"x = 1"}))
    path.write_bytes(good[:-1] + b"2")
    with pytest.raises(CorruptError):
        open_bundle(path, tmp_path)
    monkeypatch.setattr(opening, "MOST_BYTES", 3)
    with pytest.raises(ExhaustedError):
        open_bundle(path, tmp_path)


def test_a_bundle_is_unpacked_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, Bundle("a:b", {"a/__init__.py": b"", "b.py": b""}))
    work = tmp_path / "work"
    write = Path.write_bytes

    def full(self: Path, content: bytes) -> int:
        if self.name == "b.py":
            raise OSError(28, "No space left on device")
        return write(self, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ExhaustedError, match="No space left"):
        open_bundle(path, work)
    assert list(work.iterdir()) == []
    monkeypatch.undo()
    monkeypatch.setattr(sys, "path", list(sys.path))
    open_bundle(path, work)
    (folder,) = work.iterdir()
    assert sorted(each.name for each in folder.iterdir()) == ["a", "b.py"]
    assert sys.path[0] == str(folder)
