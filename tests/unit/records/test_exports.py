"""Exports: complete or absent, whatever stops the writer; never opened when half written, damaged or made up."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.core import faults, files
from shoal.core.errors import (
    CorruptError,
    ExhaustedError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    UnsupportedError,
)
from shoal.discovery.models.exports import load_export
from shoal.model.artifacts import (
    DENSE_FILE,
    EXPORT_FILE,
    STATE_FILE,
    WARM_UP_FILE,
    ExportedTable,
    ExportManifest,
    Signature,
    TableFormat,
    TensorSpec,
    check_file_path,
    shard_sub_graph,
)
from shoal.records.exports import (
    list_versions,
    open_export,
    read_manifest,
    read_state,
    remove_versions,
    write_export,
    write_state,
)
from shoal.testing.disks import DiskCall, faulty_disk
from shoal.wire.pb.idl.matrix.proto.example_pb2 import FeatureConfigs

TABLE = ExportedTable("t", "assets/t-00000-of-00001", TableFormat.DUMP)
SIGNATURES = {"serving_default": Signature({"x": TensorSpec("float32", (-1, 4))}, {"y": TensorSpec("float32", (-1,))})}


def manifest(version=7, **more):
    return ExportManifest(
        "m", "entry", version, serving_shards=2, sub_graphs=("entry", "ps_0", "ps_1"), tables=(TABLE,),
        versions={"shoal": "0.1"}, **more,
    )  # fmt: skip


def write(base, version=7, **more):
    features = FeatureConfigs()
    features.feature_configs["fc_a"].table = "t"
    with write_export(base, manifest(version, **more)) as export:
        export.put(DENSE_FILE, b"stablehlo")
        export.put_signatures(SIGNATURES)
        export.put_features(features)
        export.put(WARM_UP_FILE, b"requests")
        with export.open(TABLE.path) as file:
            file.write(b"rows")
            file.write(memoryview(b" and rows"))
    return f"{base}/entry/{version}"


@pytest.fixture(params=["local", "memory"])
def base(request, tmp_path):
    return str(tmp_path / "exported_models") if request.param == "local" else f"memory://{tmp_path.name}/models"


def test_what_was_written_is_read(base):
    path = write(base, global_step=50)
    export = open_export(path)
    assert dataclasses.replace(export.manifest, files=()) == manifest(global_step=50)
    assert export.read(DENSE_FILE) == b"stablehlo"
    assert export.read(TABLE.path) == b"rows and rows"
    assert export.signatures() == SIGNATURES
    assert export.features().feature_configs["fc_a"].table == "t"
    assert {each.path for each in export.manifest.files} == {
        DENSE_FILE, WARM_UP_FILE, TABLE.path, "signatures.json", "features.pbtxt",
    }  # fmt: skip
    with pytest.raises(InvalidError, match="must be a file of"):
        export.read("nothing")


def test_the_state_file_is_monoliths(tmp_path):
    base = str(tmp_path)
    assert list(read_state(base, "entry").entries) == []
    write(base, 1600000000, global_step=50)
    expected = f'entries {{\n  export_dir: "{base}/entry/1600000000"\n  global_step: 50\n}}\n'
    assert files.read_bytes(f"{base}/entry/{STATE_FILE}").decode() == expected


def test_shoal_model_finds_the_name(tmp_path):
    write(str(tmp_path))
    assert load_export(str(tmp_path)).model_name == "m"
    assert shard_sub_graph(3) == "ps_3"


def test_a_version_is_written_once(base):
    write(base)
    with pytest.raises(PreconditionError, match="exists already"):
        write(base)
    write(base, 8)
    assert list_versions(base, "entry") == (7, 8)
    assert list_versions(base, "nothing") == ()


def test_a_writer_that_fails_leaves_nothing(base):
    write(base, 6)
    with contextlib.suppress(RuntimeError), write_export(base, manifest()) as export:
        export.put(DENSE_FILE, b"x")
        raise RuntimeError("half way")
    assert list_versions(base, "entry") == (6,)
    assert not files.exists(f"{base}/entry/7/{EXPORT_FILE}")
    write(base)
    assert list_versions(base, "entry") == (6, 7)


def test_a_table_that_was_announced_must_be_written(base):
    with pytest.raises(InvalidError, match="was not written"), write_export(base, manifest()):
        pass
    assert list_versions(base, "entry") == ()


@pytest.mark.parametrize("path", [
    "", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/", "export.json", ".hidden", "a/.b", "a\x00b",
])  # fmt: skip
def test_files_stay_in_their_version(base, path):
    with pytest.raises(InvalidError):
        check_file_path(path)
    with pytest.raises(InvalidError), write_export(base, manifest()) as export:
        export.put(path, b"")


@pytest.mark.parametrize("name", [".", "..", ".hidden", "", "a/b"])
def test_a_sub_graph_has_a_directory_of_its_own(base, name):
    with pytest.raises(InvalidError, match="sub_graph: must"), write_export(base, ExportManifest("m", name, 7)):
        pass
    assert list_versions(base, "entry") == ()


def test_a_file_is_written_once(base):
    with contextlib.suppress(InvalidError), write_export(base, manifest()) as export:
        export.put("a", b"")
        with pytest.raises(InvalidError, match="written already"):
            export.put("a", b"")


# ---------------------------------------------------------------------------------------------------------
# Damage


@pytest.mark.parametrize("damage", ["missing", "longer", "changed"])
def test_a_damaged_file_is_not_opened(tmp_path, damage):
    path = write(str(tmp_path))
    place = f"{path}/{DENSE_FILE}"
    if damage == "missing":
        files.remove(place)
    else:
        files.write_atomic(place, b"stablehlo!" if damage == "longer" else b"stablehlO")
    with pytest.raises(CorruptError) as caught:
        open_export(path)
    assert caught.value.path == place
    if damage == "changed":
        open_export(path, verify=False)


def _document(tmp_path, **changes):
    path = write(str(tmp_path))
    document = json.loads(files.read_bytes(f"{path}/{EXPORT_FILE}"))
    document.update(changes)
    files.write_atomic(f"{path}/{EXPORT_FILE}", json.dumps(document).encode())
    return path


@pytest.mark.parametrize(("changes", "field"), [
    ({"files": [{"path": "../x", "size": 1, "sha256": "0" * 64}]}, r"files\[0\].path"),
    ({"files": [{"path": "x", "size": -1, "sha256": "0" * 64}]}, r"files\[0\].size"),
    ({"files": [{"path": "x", "size": 1, "sha256": "nothing"}]}, r"files\[0\].sha256"),
    ({"tables": [{"name": "t", "path": "x"}]}, r"tables\[0\].path"),
    ({"tables": [{"name": "t", "path": "assets/t-00000-of-00001", "format": "csv"}]}, r"tables\[0\].format"),
    ({"serving_shards": 0}, "serving_shards"),
    ({"model_name": "a:b"}, "model_name"),
    ({"model_name": None}, "model_name"),
    ({"version": "x"}, "version"),
])  # fmt: skip
def test_a_made_up_document_is_refused(tmp_path, changes, field):
    with pytest.raises(InvalidError, match=field):
        open_export(_document(tmp_path, **changes))


def test_documents_of_the_future(tmp_path):
    assert open_export(_document(tmp_path, more={"a": 1})).manifest.model_name == "m"
    with pytest.raises(UnsupportedError, match="format 2"):
        open_export(_document(tmp_path / "x", format=2))


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 5000])
def test_what_is_no_document_is_refused(tmp_path, content):
    files.write_atomic(f"{tmp_path}/entry/7/{EXPORT_FILE}", content)
    with pytest.raises(InvalidError):
        read_manifest(f"{tmp_path}/entry/7")
    files.write_atomic(f"{tmp_path}/entry/{STATE_FILE}", b"nothing: 1")
    with pytest.raises(InvalidError, match="ServingModelState"):
        read_state(str(tmp_path), "entry")


def test_a_directory_without_its_document_is_no_version(base):
    files.write_atomic(f"{base}/entry/7/{DENSE_FILE}", b"x")
    files.write_atomic(f"{base}/entry/nothing/{EXPORT_FILE}", b"{}")
    assert list_versions(base, "entry") == ()
    with pytest.raises(NotFoundError):
        open_export(f"{base}/entry/7")


def test_a_version_must_be_of_its_directory(base):
    path = write(base)
    for other in (f"{base}/entry/8", f"{base}/ps_0/7"):
        for each in files.list_files(path, recursive=True):
            files.write_atomic(f"{other}{each.path.removeprefix(path)}", files.read_bytes(each.path))
        with pytest.raises(CorruptError, match=f"must be of {other.removeprefix(base + '/')}, as its directory says"):
            open_export(other)


# ---------------------------------------------------------------------------------------------------------
# Retention


@pytest.mark.parametrize(
    "content", [b"{", b'{"format": 2}', b'{"model_name": "m", "sub_graph": "entry", "version": 8}']
)
def test_a_damaged_version_does_not_block_the_others(base, content, caplog):
    for version in (1, 2, 3):
        write(base, version, global_step=version)
    files.write_atomic(f"{base}/entry/2/{EXPORT_FILE}", content)
    write(base, 4, global_step=4)
    assert [each.global_step for each in read_state(base, "entry").entries] == [1, 3, 4]
    assert f"version {base}/entry/2 of an export is left out" in caplog.text
    assert remove_versions(base, "entry", keep_steps={3}) == (1,)
    assert list_versions(base, "entry") == (2, 3, 4)


def test_versions_go_with_their_checkpoints(base):
    for version, step in ((1, 10), (2, 20), (3, 30), (4, 40)):
        write(base, version, global_step=step)
    assert remove_versions(base, "entry", keep_steps={20}) == (1, 3)
    assert list_versions(base, "entry") == (2, 4), "the newest one stays, whatever its step"
    assert [each.global_step for each in read_state(base, "entry").entries] == [20, 40]
    assert remove_versions(base, "entry", keep_steps={20}) == ()


# ---------------------------------------------------------------------------------------------------------
# Killed, and out of space


POINTS = [name for name in faults.POINTS if name.startswith("export.")]
PROGRAM = """
import sys
from shoal.core import faults
faults.arm_from_environment()
sys.path.insert(0, sys.argv[2])
from tests.unit.records.test_exports import write
from shoal.records.exports import remove_versions
write(sys.argv[1], 8, global_step=80)
remove_versions(sys.argv[1], "entry", keep_steps={80})
"""


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_writer_leaves_a_whole_version_or_none(tmp_path, point):
    base = str(tmp_path)
    write(base, global_step=70)
    root = str(Path(__file__).resolve().parents[3])
    environment = {**os.environ, "SHOAL_FAULTS": f"{point}=kill", "PYTHONPATH": root}
    ended = subprocess.run([sys.executable, "-c", PROGRAM, base, root], env=environment, cwd=root, check=False)
    assert ended.returncode == -9, "the point was reached"
    visible = {
        "export.file.after": (7,), "export.manifest.before": (7,), "export.manifest.after": (7,),
        "export.rename.after": (7, 8), "export.state.after": (7, 8), "export.gone.after": (8,),
    }[point]  # fmt: skip
    assert list_versions(base, "entry") == visible
    for version in visible:
        open_export(f"{base}/entry/{version}")
    # The next writer finds everything in order, and removes what was left behind.
    write(base, 9, global_step=90)
    assert list_versions(base, "entry") == (*visible, 9)
    assert [each.global_step for each in read_state(base, "entry").entries] == [each * 10 for each in (*visible, 9)]
    assert [each.name for each in Path(base, "entry").iterdir() if each.name.startswith(".")] == []


@pytest.mark.parametrize("call", [DiskCall.WRITE, DiskCall.RENAME])
@pytest.mark.parametrize("point", [None, "export.file.after", "export.manifest.before", "export.manifest.after"])
def test_a_full_disk_leaves_no_version(tmp_path, call, point):
    with faulty_disk(tmp_path) as disk:
        base = f"{disk.url}/models"
        write(base, 6)
        if point is None:
            disk.fail(call, errno.ENOSPC)
        else:
            faults.arm(point, lambda _: disk.fail(call, errno.ENOSPC))
        try:
            if (call, point) == (DiskCall.WRITE, "export.manifest.after"):
                # Everything is written; the state file is not.
                with pytest.raises(ExhaustedError):
                    write(base)
                expected = (6, 7)
            else:
                with pytest.raises(ExhaustedError):
                    write(base)
                expected = (6,)
        finally:
            faults.disarm_all()
            disk.heal()
        assert list_versions(base, "entry") == expected
        write_state(base, "entry")
        write(base, 8)
        assert list_versions(base, "entry") == (*expected, 8)


class _Killed(BaseException):
    pass


@contextlib.contextmanager
def killed(monkeypatch, point, *, after=0):
    """What the block does ends at a fault point. Nothing is cleaned up."""
    left = iter(range(after))

    def die(_):
        if next(left, None) is None:
            monkeypatch.setattr("shoal.records.exports.files.remove", dead)
            raise _Killed

    def dead(*_, **__):
        raise _Killed

    faults.arm(point, die)
    try:
        with pytest.raises(_Killed):
            yield
    finally:
        faults.disarm_all()
        monkeypatch.undo()


def objects(base):
    return {each.path.removeprefix(f"{base}/entry/") for each in files.list_files(f"{base}/entry", recursive=True)}


IN_PLACE = {"export.file.after": False, "export.manifest.before": False, "export.manifest.after": True}


@pytest.mark.parametrize("point", IN_PLACE)
def test_what_a_killed_writer_leaves_on_an_object_store_is_removed(tmp_path, monkeypatch, point):
    base = f"memory://{tmp_path.name}/models"
    write(base, 6)
    before = objects(base)
    with killed(monkeypatch, point):
        write(base)
    assert list_versions(base, "entry") == ((6, 7) if IN_PLACE[point] else (6,))
    assert "7/.unfinished" in objects(base)
    # Another one, and then the same version again.
    write(base, 8)
    left = {each.partition("/")[0] for each in objects(base) - before}
    assert left == ({"7", "8"} if IN_PLACE[point] else {"8"})
    assert not any(".unfinished" in each for each in objects(base))
    with killed(monkeypatch, "export.file.after"):
        write(base, 9)
    open_export(write(base, 9))


# As below. The writer failed when everything was written, and is killed while it removes that.
@pytest.mark.parametrize("after", range(6))
def test_a_writer_that_fails_and_is_killed_leaves_no_version_on_an_object_store(tmp_path, monkeypatch, after):
    base = f"memory://{tmp_path.name}/models"
    write(base, 6)

    def fail(_):
        raise OSError("the connection is gone")

    with killed(monkeypatch, "export.gone.after", after=after):
        faults.arm("export.manifest.after", fail)
        write(base)
    assert list_versions(base, "entry") == (6,)
    write(base, 8)
    assert {each.partition("/")[0] for each in objects(base)} == {"6", "8", STATE_FILE}


# The document goes first, then the other five files.
@pytest.mark.parametrize("after", range(6))
def test_what_a_killed_removal_leaves_on_an_object_store_is_removed(tmp_path, monkeypatch, after):
    base = f"memory://{tmp_path.name}/models"
    write(base, 1)
    write(base, 2)
    with killed(monkeypatch, "export.gone.after", after=after):
        remove_versions(base, "entry", keep_steps=())
    assert list_versions(base, "entry") == (2,)
    assert "1/.unfinished" in objects(base)
    write(base, 3)
    assert {each.partition("/")[0] for each in objects(base)} == {"2", "3", STATE_FILE}


def test_directories_that_are_not_ours_stay(base):
    """Such as those of TensorFlow, which have other documents."""
    for version in (5, 7):
        files.write_atomic(f"{base}/entry/{version}/saved_model.pb", b"graph")
    with pytest.raises(PreconditionError, match="exists and is no version of ours"):
        write(base)
    write(base, 8)
    files.write_atomic(f"{base}/entry/007/{EXPORT_FILE}", b"{}")
    assert files.read_bytes(f"{base}/entry/5/saved_model.pb") == b"graph"
    assert list_versions(base, "entry") == (8,)
