from __future__ import annotations

import io
import threading

import numpy as np
import pytest

from shoal.core import files
from shoal.core.errors import InvalidError, PreconditionError
from shoal.core.tfrecords import read_records
from shoal.records.writing import CloseHook, WritableFile
from shoal.testing.disks import DiskCall, faulty_disk


def test_what_was_appended_is_there_after_close(tmp_path):
    path = str(tmp_path / "f")
    file = WritableFile(path)
    for _ in range(1000):
        file.append("1234")
    assert not files.exists(path)
    CloseHook([file]).end()
    file.close()
    assert files.read_bytes(path) == b"1234" * 1000
    with pytest.raises(PreconditionError, match="is closed"):
        file.append(b"more")


def test_threads_do_not_mix_their_appends(tmp_path):
    path = str(tmp_path / "f")
    file = WritableFile(path)

    def append(letter):
        for _ in range(200):
            file.append(letter * 50)

    threads = [threading.Thread(target=append, args=(each,)) for each in "abc"]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    file.close()
    content = files.read_bytes(path).decode()
    pieces = [content[start : start + 50] for start in range(0, len(content), 50)]
    assert {len(set(piece)) for piece in pieces} == {1}
    assert len(pieces) == 600


def test_a_failed_job_leaves_no_file(tmp_path):
    opened = [WritableFile(str(tmp_path / name)) for name in "ab"]
    for each in opened:
        each.append("x")
    CloseHook(opened).fail()
    assert list(tmp_path.iterdir()) == []


def test_one_file_that_cannot_be_closed_does_not_keep_the_others(tmp_path):
    with faulty_disk(tmp_path / "disk") as disk:
        bad, good = WritableFile(f"{disk.url}/f"), WritableFile(str(tmp_path / "good"))
        good.append("x")
        disk.fail(DiskCall.RENAME)
        with pytest.raises(Exception, match="No space"):
            CloseHook([bad, good]).end()
    assert files.read_bytes(str(tmp_path / "good")) == b"x"


def test_entry_dumps_are_monoliths(tmp_path):
    path = str(tmp_path / "f")
    file = WritableFile(path)
    file.append_entry_dumps([5, -1], [0.5, 1.0], [[1.0, 2.0], [3.0, 4.0]])
    file.append_entry_dumps(np.array([2**63], np.uint64), [0], np.zeros((1, 0)))
    file.append_entry_dumps(np.zeros(0, np.int64), [], np.zeros((0, 3)))
    file.close()
    records = [payload.hex() for _, payload in read_records(io.BytesIO(files.read_bytes(path)), name=path)]
    assert records == [
        "090500000000000000" + "150000003f" + "150000803f" + "1500000040",
        "09ffffffffffffffff" + "150000803f" + "1500004040" + "1500008040",
        "090000000000000080" + "1500000000",
    ]


@pytest.mark.parametrize(("ids", "biases", "embeddings"), [
    ([1], [1, 2], [[1.0]]), ([1, 2], [1, 2], [[1.0]]), ([[1]], [1], [[1.0]]), ([1], [1], [1.0]), ([1.5], [1], [[1.0]]),
])  # fmt: skip
def test_shapes_must_agree(tmp_path, ids, biases, embeddings):
    file = WritableFile(str(tmp_path / "f"))
    with pytest.raises(InvalidError):
        file.append_entry_dumps(ids, biases, embeddings)
    file.discard()
