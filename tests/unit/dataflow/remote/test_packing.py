"""What a submitted job consists of: the spec, the plan, and the bundle with the user's code."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import os
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from textwrap import dedent

import pytest

from shoal import App, Stream, col
from shoal.artifacts.bundles import unpack_bundle
from shoal.artifacts.collecting import current_versions
from shoal.core.entropy import SystemEntropy
from shoal.core.errors import InvalidError, PreconditionError
from shoal.core.ids import JobId
from shoal.dataflow.connectors.topics.brokers import settings_of
from shoal.dataflow.errors import PlanError
from shoal.dataflow.execution.remote.coordinator import _add_brokers
from shoal.dataflow.fleet import DataflowEngine
from shoal.dataflow.fleet import spec as specs
from shoal.dataflow.plan.documents import PlanDocument
from shoal.dataflow.plan.prepared import read_prepared
from shoal.jobs.engine import Facts, Job
from shoal.model.jobs import JobDesired, JobRequest, JobState
from shoal.topics.kafka import KafkaSettings

PROGRAM = """
    from shoal import App, Stream, col, tumbling

    app = App("shop", data_dir={data!r}, broker={log!r}, checkpoint_interval=2, job={job!r})
    app.topic("orders", schema={{"user": "string", "amount": "int64"}})

    def scaled(by):
        return lambda row: {{**row, "amount": row["amount"] * by}}

    @app.dataflow()
    def totals():
        return Stream.from_kafka("orders").filter(col("amount") > {least}).group_by("user").sum("amount").to_kafka("t")

    @app.dataflow()
    def mapped():
        return Stream.from_kafka("orders").map(scaled({by})).to_kafka("m")
"""


@pytest.fixture(autouse=True)
def search_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


def load(folder: Path, name: str, *, least: int = 5, by: int = 2, job=None, log: str = ""):
    text = dedent(PROGRAM).format(
        data=str(folder / "data"), log=log or str(folder / "log"), least=least, by=by, job=job or {}
    )
    (folder / f"{name}.py").write_text(text)
    sys.path.insert(0, str(folder))
    # Bytecode of a text of the same length and second would be taken for this one's.
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    importlib.invalidate_caches()
    sys.modules.pop(name, None)
    return importlib.import_module(name)


async def test_a_packed_job_has_everything_that_tasks_are_built_from(tmp_path):
    module = load(tmp_path, "shop_program_a", job={"task_host": {"memory_mb": 128}, "env": {"A": "b"}})
    packed = await module.totals.pack(3)
    spec = packed.spec
    assert (spec.name, spec.parallelism) == ("shop.totals", 3)
    assert spec.plan == hashlib.sha256(packed.package.plan).hexdigest()
    assert spec.bundle == hashlib.sha256(packed.package.bundle).hexdigest()
    assert dict(spec.checkpoint or {}) == {
        "directory": str(tmp_path / "data" / "checkpoints"),
        "interval": 2.0,
        "exactly_once": False,
    }
    assert spec.task_host.memory_mb == 128
    assert dict(spec.env) == {"A": "b"}
    assert specs.decode(specs.encode(spec)) == spec
    stateful = {step.kind: step for step in spec.steps.values() if step.stateful}
    assert "sum(amount) by user" in stateful["aggregate"].text
    bundle = unpack_bundle(packed.package.bundle)
    assert bundle.entry == "shop_program_a:shop.totals"
    assert list(bundle.files) == ["shop_program_a.py"]
    assert dict(bundle.versions) == current_versions()
    plan = read_prepared(PlanDocument(json.loads(packed.package.plan), bundle.blobs))
    assert plan.physical.stages[-1].parallelism == 3


async def test_the_same_program_is_the_same_job_and_another_one_is_not(tmp_path):
    first = await load(tmp_path, "shop_program_b").totals.pack(2)
    again = await load(tmp_path, "shop_program_b").totals.pack(2)
    assert specs.encode(first.spec) == specs.encode(again.spec), "an upload and a submit that were lost are repeated"
    other = await load(tmp_path, "shop_program_b", least=6).totals.pack(2)
    assert other.spec.plan != first.spec.plan
    before, after = (
        next(each for each in packed.spec.steps.values() if each.kind == "aggregate") for packed in (first, other)
    )
    assert before == after, "the state of the sum fits"


async def test_closures_with_the_same_text_and_different_captures_are_different_jobs(tmp_path):
    one, two = [await load(tmp_path, "shop_program_e", by=by).mapped.pack(1) for by in (2, 3)]
    assert one.spec.plan != two.spec.plan
    names = [set(unpack_bundle(each.package.bundle).blobs) for each in (one, two)]
    assert len(names[0]) == len(names[1]) == 1
    assert names[0] != names[1]


async def test_modules_beside_the_program_are_not_left_out_silently(tmp_path):
    (tmp_path / "beside_a.py").write_text("BY = 2\n")
    (tmp_path / "beside_b").mkdir()
    (tmp_path / "beside_b" / "more.py").write_text("BY = 2\n")
    program = dedent(PROGRAM).format(data=str(tmp_path), log=str(tmp_path / "log"), least=5, by=2, job={})
    guarded = "try:\n    import beside_c\nexcept ImportError:\n    pass\n"
    (tmp_path / "beside_c.py").write_text("")
    (tmp_path / "shop_program_g.py").write_text(
        f"{program}\nimport beside_a\n{guarded}\ndef f():\n    from beside_b.more import BY\n"
    )
    sys.path.insert(0, str(tmp_path))
    importlib.invalidate_caches()
    module = importlib.import_module("shop_program_g")
    with pytest.raises(PreconditionError, match=r"imports beside_a, beside_b from its own folder") as caught:
        await module.mapped.pack(1)
    assert "one package" in caught.value.hint
    assert (await module.totals.pack(1)).spec.name == "shop.totals", "a plan without functions needs no module"


async def test_settings_of_kafka_become_a_secret(tmp_path, monkeypatch):
    monkeypatch.setattr(App, "make_topics", lambda *_: None)
    password = SystemEntropy().token(20)
    module = load(tmp_path, "shop_program_f")
    app = App("safe", data_dir=tmp_path, broker=KafkaSettings("k1:9092", client={"sasl.password": password}))
    app.module = module.__name__
    app.topic("orders", schema={"amount": "int64"})

    @app.dataflow()
    def flow():
        return Stream.from_kafka("orders").filter(col("amount") > 1).to_kafka("m")

    packed = await flow.pack(1)
    ((broker, secret),) = packed.spec.brokers.items()
    assert broker.endswith("@k1:9092")
    assert secret == "safe.flow.broker-0"
    assert json.loads(packed.secrets[secret])["client"] == {"sasl.password": password}
    for content in (packed.package.plan, packed.package.bundle, specs.encode(packed.spec), repr(packed).encode()):
        assert password.encode() not in content


async def test_a_password_reaches_the_coordinator_as_a_secret_and_no_child_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(App, "make_topics", lambda *_: None)
    password = SystemEntropy().token(20)
    module = load(tmp_path, "shop_program_i")
    settings = KafkaSettings("k2:9092", client={"sasl.mechanism": "PLAIN", "sasl.password": password})
    app = App("sealed", data_dir=tmp_path, broker=settings)
    app.module = module.__name__
    app.topic("orders", schema={"amount": "int64"})

    @app.dataflow()
    def flow():
        return Stream.from_kafka("orders").filter(col("amount") > 1).to_kafka("m")

    packed = await flow.pack(1)
    ((broker, secret),) = packed.spec.brokers.items()
    job = Job(JobId("j"), specs.encode(packed.spec), b"", JobState.SUBMITTED, JobDesired.RUNNING, JobRequest())
    placed = DataflowEngine().decide(job, Facts({}, {}), datetime(2026, 1, 1, tzinfo=UTC)).decision
    planned = DataflowEngine().plan(dataclasses.replace(job, progress=placed.progress), {}).workloads
    wanted = {each.workload_id: dict(each.spec.process.env_from_secrets) for each in planned}
    ((variable, named),) = wanted.pop("j-coordinator").items()
    assert named == secret
    assert all(not each for each in wanted.values()), "task hosts get it from the coordinator, over their own channel"
    # What an agent does: the variable has the value of the secret.
    monkeypatch.setenv(variable, packed.secrets[secret].decode())
    monkeypatch.setattr("shoal.dataflow.connectors.topics.brokers._settings", {})
    _add_brokers(packed.spec, dict(os.environ))
    assert settings_of(broker).client["sasl.password"] == password
    assert variable not in os.environ
    with pytest.raises(PreconditionError, match="has no settings of the Kafka cluster") as caught:
        _add_brokers(packed.spec, {variable: "no JSON"})
    assert password not in str(caught.value)


async def test_what_only_this_machine_can_run_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = load(tmp_path, "shop_program_c", log="relative/log")
    with pytest.raises(PreconditionError, match="relative/log") as caught:
        await module.totals.pack(1)
    assert "absolute path" in caught.value.hint
    app = App("here", data_dir=tmp_path)

    @app.dataflow()
    def flow():
        return Stream.from_iterable(iter([{"a": 1}])).to_list([])

    with pytest.raises(PlanError):
        await flow.pack(1)


@pytest.mark.parametrize(
    ("job", "match"),
    [
        ({"plan": "x"}, "plan"),
        ({"task_hosts": {}}, "task_hosts"),
        ({"env": {"SHOAL_CONTROL": "x"}}, "SHOAL_"),
    ],
)
async def test_wrong_fields_of_a_job_are_named(tmp_path, job, match):
    module = load(tmp_path, "shop_program_d", job=job)
    with pytest.raises(InvalidError, match=match):
        await module.totals.pack(1)


async def test_what_runs_here_is_no_job_to_upgrade(tmp_path):
    with pytest.raises(PreconditionError, match="is no job"):
        await load(tmp_path, "shop_program_h").totals.upgrade()
