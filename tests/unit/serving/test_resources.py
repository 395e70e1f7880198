from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.cli import main
from shoal.core.clock import SystemClock
from shoal.core.errors import NotFoundError
from shoal.serving.resources import MIB, CpuMeter, MemoryUse, model_sizes, read_cpus, read_memory

GIB = 1024 * MIB
MEMINFO = "MemTotal: 16777216 kB\nMemFree: 1048576 kB\nMemAvailable: 8388608 kB\n"


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, "proc/stat": "cpu  100 0 50 900 0 0 0 0 0 0\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2 = {
    "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    "proc/self/cgroup": "0::/pod\n",
    "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
    "sys/fs/cgroup/pod/cgroup.controllers": "cpu memory\n",
    "sys/fs/cgroup/pod/memory.max": f"{4 * GIB}\n",
    "sys/fs/cgroup/pod/memory.current": f"{GIB}\n",
    "sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
    "sys/fs/cgroup/pod/cpu.stat": "usage_usec 3000000\nuser_usec 1\n",
}
V1 = {
    "proc/self/mountinfo": (
        "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "32 23 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    ),
    "proc/self/cgroup": "5:memory:/pod\n4:cpu,cpuacct:/pod\n",
    "sys/fs/cgroup/memory/pod/memory.limit_in_bytes": f"{4 * GIB}\n",
    "sys/fs/cgroup/memory/pod/memory.usage_in_bytes": f"{GIB}\n",
    "sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us": "150000\n",
    "sys/fs/cgroup/cpu/pod/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/cpu/pod/cpuacct.usage": "3000000000\n",
}


@pytest.mark.parametrize("files", [V1, V2], ids=["cgroup v1", "cgroup v2"])
def test_a_container_with_limits(tmp_path, files):
    root = machine(tmp_path, files)
    assert read_memory(root=root) == MemoryUse(4 * GIB, 3 * GIB)
    assert read_memory(limit=2 * GIB, root=root) == MemoryUse(2 * GIB, GIB)
    assert read_cpus(root=root) <= 1.5
    assert read_cpus(limit=0.5, root=root) == 0.5


def test_a_machine_without_groups(tmp_path):
    root = machine(tmp_path, {})
    assert read_memory(root=root) == MemoryUse(16 * GIB, 8 * GIB)
    assert read_memory(limit=12 * GIB, root=root) == MemoryUse(12 * GIB, 4 * GIB)
    assert read_memory(limit=99 * GIB, root=root) == MemoryUse(16 * GIB, 8 * GIB)


@pytest.mark.parametrize(
    ("files", "path", "text"),
    [
        (V1, "sys/fs/cgroup/cpu/pod/cpuacct.usage", "4000000000\n"),
        (V2, "sys/fs/cgroup/pod/cpu.stat", "usage_usec 4000000\n"),
        ({}, "proc/stat", "cpu  150 0 100 900 0 0 0 0 0 0\n"),
    ],
    ids=["cgroup v1", "cgroup v2", "host"],
)
@pytest.mark.looptime
async def test_cpu_use_is_measured_against_an_earlier_call(tmp_path, files, path, text):
    root = machine(tmp_path, files)
    clock = SystemClock()
    meter = CpuMeter(clock, root=root)
    await clock.sleep(2)
    (root / path).write_text(text)
    assert meter.read() == pytest.approx(50, rel=0.05)
    await clock.sleep(0.5)
    assert meter.read() == pytest.approx(50, rel=0.05)
    await clock.sleep(1)
    assert meter.read() == 0.0


def test_this_machine():
    memory = read_memory()
    assert 0 < memory.available < memory.total
    assert read_cpus() > 0
    assert CpuMeter(SystemClock()).read() >= 0


@pytest.fixture
def exported(tmp_path):
    def write(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    for sub_graph, size in (("entry", 10), ("ps_0", 20), ("ps_1", 30)):
        for version in (9, 100):
            write(f"exported_models/{sub_graph}/{version}/saved_model.pb", "x" * size)
            write(f"exported_models/{sub_graph}/{version}/variables/data", "x" * (version // 9))
    write("exported_models/ps_0/101/saved_model.pb", "not everywhere")
    write("exported_models/.hidden/1/x", "x")
    write("checkpoint", 'model_checkpoint_path: "/m/model.ckpt-50"\nall_model_checkpoint_paths: "/m/model.ckpt-10"\n')
    write("model.ckpt-50.assets/MonolithHashTable_a_1-00000-of-00002", "x" * 1000)
    write("model.ckpt-50.assets/MonolithHashTable_a_1-00001-of-00002", "x" * 500)
    write("model.ckpt-50.assets/MonolithHashTable_a_7-00000-of-00001", "x" * 7)
    write("model.ckpt-50.assets/other", "x")
    return tmp_path / "exported_models"


def sizes(found) -> dict[str, int]:
    return {name: each.bytes for name, each in found.items()}


def test_the_size_of_the_newest_version_that_all_have(exported):
    found = model_sizes(exported)
    assert sizes(found) == {"entry": 21, "ps_0": 31, "ps_1": 1541}
    assert found["entry"].path == exported / "entry" / "100"


@pytest.mark.parametrize(("arguments", "entry"), [({"version": 9}, 11), ({"checkpoint": "model.ckpt-10"}, 11)])
def test_the_size_of_another_version(exported, arguments, entry):
    for name in ("entry", "ps_0", "ps_1"):
        (exported / name / "ExportSaverListenerState").write_text(
            f'entries {{\n  export_dir: "/m/exported_models/{name}/9"\n  global_step: 10\n}}\n'
            f'entries {{\n  export_dir: "/m/exported_models/{name}/100"\n  global_step: 50\n}}\n'
        )
    assert sizes(model_sizes(exported, **arguments))["entry"] == entry


def test_sizes_are_shown(exported, capsys):
    assert main.run(("model", "size", str(exported))) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["SUB-GRAPH", "BYTES"],
        ["entry", "21"],
        ["ps_0", "31"],
        ["ps_1", "1541"],
    ]
    assert main.run(("model", "size", str(exported), "--version", "9", "--json")) == 0
    shown = json.loads(capsys.readouterr().out)["sub_graphs"]
    assert shown["entry"] == {"bytes": 11, "path": str(exported / "entry" / "9")}
    for wrong in ((str(exported), "--version", "101"), (str(exported / "missing"),), (str(exported / "entry" / "9"),)):
        assert main.run(("model", "size", *wrong)) == 1
        assert "not found" in capsys.readouterr().err


def test_a_model_without_a_common_version(tmp_path):
    (tmp_path / "e" / "entry" / "1").mkdir(parents=True)
    (tmp_path / "e" / "ps_0" / "2").mkdir(parents=True)
    with pytest.raises(NotFoundError):
        model_sizes(tmp_path / "e")
