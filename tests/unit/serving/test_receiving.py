from __future__ import annotations

import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import DeadlineError
from shoal.core.tasks import running
from shoal.serving.models.files import ModelFiles
from shoal.serving.models.receiving import ModelReceiver
from tests.unit.serving.conftest import until
from tests.unit.serving.test_model_files import put


@pytest.fixture
def receiver(tmp_path):
    seen, missed = [], []
    files = ModelFiles("rank", tmp_path / "p2p", tmp_path / "received", keep=1)
    made = ModelReceiver(
        files, clock=SystemClock(), received=lambda found: seen.append(found.version), missed=lambda: missed.append(1)
    )
    (tmp_path / "p2p").mkdir()
    return made, files, seen, missed


async def test_the_first_version_is_waited_for(receiver, tmp_path, monkeypatch):
    monkeypatch.setattr("shoal.serving.models.receiving.FIRST_LOOK_SECONDS", 0.01)
    monkeypatch.setattr("shoal.serving.models.receiving.LOOP_SECONDS", 0.01)
    made, files, seen, missed = receiver
    async with running(made.wait_first(), name="first") as waiting:
        (tmp_path / "p2p" / "rank@3" / "rank").mkdir(parents=True)
        (tmp_path / "p2p" / "rank@3.write.done").touch()
        await until(lambda: missed)
        put(tmp_path / "p2p", 4)
        await waiting
    assert seen == [4]
    async with running(made.run(), name="loop"):
        put(tmp_path / "p2p", 10)
        await until(lambda: files.present() == [10])
    assert seen == [4, 10]


async def test_a_model_that_never_comes(receiver):
    made, *_ = receiver
    with pytest.raises(DeadlineError, match="no version of model rank"):
        await made.wait_first(timeout=0)


async def test_what_model_servers_still_serve_is_kept(tmp_path):
    source, target = tmp_path / "p2p", tmp_path / "received"
    (source / "rank@3" / "rank" / "entry_item_embedding_0" / "3").mkdir(parents=True)
    (source / "rank@3.write.done").touch()
    (target / "rank" / "entry_item_embedding_0" / "3").mkdir(parents=True)
    marker = target / "rank" / "entry_item_embedding_0" / "3" / "loaded"
    marker.touch()
    receiver = ModelReceiver(ModelFiles("rank", source, target), clock=SystemClock())
    await receiver.wait_first(keep=True)
    assert marker.exists()
    await receiver.wait_first()
    assert not marker.exists()
