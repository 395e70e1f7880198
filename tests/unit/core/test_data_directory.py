"""The directory that a server lives in: for it alone, and a sentence where there can be none."""

import os
import stat

import pytest

from shoal.agent.store.database import AgentDatabase
from shoal.control.leadership.instance_id import InstanceId
from shoal.control.store.sqlite import SqliteStore
from shoal.core.disk.private_files import let_others_pass, make_data_directory
from shoal.core.entropy import SeededEntropy
from shoal.core.errors import UnavailableError
from shoal.runtimes.keeper.files import KeeperFiles
from shoal.wire.convert import decode_spec_bytes


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


async def open_store(path):
    store = SqliteStore(path / "control.db", decode_spec=decode_spec_bytes)
    await store.open()
    await store.close()


async def open_agent_database(path):
    database = AgentDatabase(path)
    await database.open()
    await database.close()


async def hold_name(path):
    InstanceId(path, SeededEntropy(1))


async def make_keeper_files(path):
    KeeperFiles(path).make()


EVERYWHERE = pytest.mark.parametrize("make", [open_store, hold_name, open_agent_database, make_keeper_files])


@EVERYWHERE
async def test_the_first_program_makes_it_for_its_owner_alone(make, tmp_path):
    await make(tmp_path / "above" / "data")
    assert mode(tmp_path / "above" / "data") == 0o700
    assert mode(tmp_path / "above") == 0o755


@EVERYWHERE
async def test_one_that_is_there_keeps_its_mode(make, tmp_path):
    (tmp_path / "data").mkdir(mode=0o750)
    await make(tmp_path / "data")
    assert mode(tmp_path / "data") == 0o750


@EVERYWHERE
@pytest.mark.parametrize("where", ["/proc/x", "file", "file/below"])
async def test_where_there_can_be_none_that_is_said_in_a_sentence(make, where, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match=r"cannot be used: (no such file|not a directory)") as caught:
        await make(tmp_path / where)
    assert "--data-dir" in caught.value.hint


def test_a_name_that_is_none():
    from pathlib import Path

    with pytest.raises(UnavailableError, match="cannot be used"):
        make_data_directory(Path("a\0b"))


def test_others_may_pass_and_not_look(tmp_path):
    make_data_directory(tmp_path / "data")
    let_others_pass(tmp_path / "data")
    assert mode(tmp_path / "data") == 0o711
