"""Which key seals the secrets: one that every control plane has, or none is set; another key is told, not used."""

import base64
import dataclasses
import logging

import pytest

from shoal.core.errors import PreconditionError
from shoal.testing.control import ControlKit, process_spec
from shoal.wire.methods import AgentControl, Secrets
from shoal.wire.pb.persys.control.v1 import control_pb2
from shoal.wire.pb.shoal.v1 import secrets_pb2 as pb

pytestmark = pytest.mark.looptime

KEY = base64.b64encode(b"k" * 32).decode()
OTHER_KEY = base64.b64encode(b"o" * 32).decode()
SHARED = "postgresql://shoal@db.example/shoal"


@pytest.fixture
async def kit(tmp_path):
    async with ControlKit(tmp_path) as kit:
        yield kit


async def set_secret(kit, name="db-password"):
    return await kit.channel.call(Secrets.SET_SECRET, pb.SetSecretRequest(name=name, value=b"hunter2"))


async def delete_secret(kit, name="db-password"):
    await kit.channel.call(Secrets.DELETE_SECRET, pb.DeleteSecretRequest(name=name))


async def start_again(kit, **changed):
    """The next leader on the same store, with other settings."""
    await kit.stop_control()
    kit.settings = dataclasses.replace(kit.settings, **changed)
    await kit.start_control()


async def apply_naming(kit, workload_id):
    spec = process_spec()
    spec.process.env_from_secrets["PASSWORD"] = "db-password"
    request = control_pb2.ApplyWorkloadRequest(workload_id=workload_id, spec=spec)
    await kit.channel.call(AgentControl.APPLY_WORKLOAD, request)


def secrets_health(kit):
    return kit.plane.health()[1]["secrets"]


async def test_on_a_shared_database_no_secret_is_set_with_a_key_that_only_one_has(kit, tmp_path):
    await start_again(kit, database=SHARED)
    with pytest.raises(PreconditionError, match="given to all of them") as caught:
        await set_secret(kit)
    assert "SHOAL_SECRET_KEY (`openssl rand -base64 32`)" in caught.value.hint
    assert await kit.store.secrets() == ()
    assert not (tmp_path / "secret.key").exists()


async def test_secrets_that_were_sealed_with_a_key_of_its_own_are_still_opened_and_the_key_is_named(kit, tmp_path):
    node = kit.node("n1")
    await set_secret(kit)
    await start_again(kit, database=SHARED)
    assert secrets_health(kit) == "ok"
    await apply_naming(kit, "web")
    await kit.wait_status("web", "Running")
    assert dict(node.runs["web"].request.secrets) == {"db-password": b"hunter2"}
    with pytest.raises(PreconditionError) as caught:
        await set_secret(kit)
    assert str(tmp_path / "secret.key") in caught.value.hint
    await start_again(kit, secret_key=(tmp_path / "secret.key").read_text())
    assert (await set_secret(kit)).secret.revision == 2


async def test_the_next_leader_with_the_same_key_opens_them(kit, tmp_path):
    node = kit.node("n1")
    await start_again(kit, database=SHARED, secret_key=KEY)
    await set_secret(kit)
    await start_again(kit, data_dir=str(tmp_path / "another"))
    assert secrets_health(kit) == "ok"
    await apply_naming(kit, "web")
    await kit.wait_status("web", "Running")
    assert dict(node.runs["web"].request.secrets) == {"db-password": b"hunter2"}


@pytest.mark.parametrize("name", ["db-password", "new"])
async def test_a_leader_with_another_key_says_so_at_once_and_sets_nothing(kit, caplog, name):
    kit.node("n1")
    await start_again(kit, database=SHARED, secret_key=KEY)
    await set_secret(kit)
    with caplog.at_level(logging.ERROR, logger="shoal.control.server"):
        await start_again(kit, secret_key=OTHER_KEY)
    assert "1 of 1 secrets were sealed with another key than this one" in caplog.text
    assert secrets_health(kit) == "1 of 1 secrets were sealed with another key than this one"
    assert kit.plane.health()[0] == 200, "it can do everything else"
    with pytest.raises(PreconditionError, match="another key") as caught:
        await set_secret(kit, name)
    assert "the right SHOAL_SECRET_KEY" in caught.value.hint
    await apply_naming(kit, "web")
    await kit.wait(lambda: bool(kit.plane.leadership.commands.errors), what="an error")
    assert "another key" in kit.plane.leadership.commands.errors["web"]
    assert KEY not in caplog.text
    assert OTHER_KEY not in caplog.text


async def test_a_lost_key_is_left_behind_by_setting_everything_again(kit):
    node = kit.node("n1")
    await start_again(kit, database=SHARED, secret_key=KEY)
    await set_secret(kit)
    await apply_naming(kit, "web")
    await kit.wait_status("web", "Running")
    with pytest.raises(PreconditionError, match="is used by web"):
        await delete_secret(kit)
    await start_again(kit, secret_key=OTHER_KEY)
    await delete_secret(kit)
    await set_secret(kit)
    await kit.clock.sleep(120)
    assert secrets_health(kit) == "ok"
    assert (await kit.workload("web")).status == "Running"
    assert node.runs["web"].request.secrets["db-password"] == b"hunter2"


async def test_a_key_file_that_is_gone_is_not_made_anew_over_the_secrets_there_are(kit, tmp_path):
    await set_secret(kit)
    await kit.stop_control()
    (tmp_path / "secret.key").unlink()
    await kit.start_control()
    assert "no " + str(tmp_path / "secret.key") in secrets_health(kit)
    with pytest.raises(PreconditionError, match="the store has sealed secrets but their key is missing"):
        await set_secret(kit)
    assert not (tmp_path / "secret.key").exists()


async def test_a_follower_hears_of_a_first_secret_that_it_could_not_open(kit):
    """The leader has set one since this one looked."""
    await start_again(kit, database=SHARED, secret_key=KEY)
    await set_secret(kit)
    await kit.stop_control()
    kept, kit.store.secrets = kit.store.secrets, _nothing
    kit.settings = dataclasses.replace(kit.settings, secret_key=OTHER_KEY)
    await kit.start_control()
    assert secrets_health(kit) == "ok"
    kit.store.secrets = kept
    await kit.clock.sleep(61)
    assert "another key" in secrets_health(kit)


async def _nothing():
    return ()
