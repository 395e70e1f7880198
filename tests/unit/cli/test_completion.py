"""Tab completion: ids from the control plane, and silence when it is not there."""

from __future__ import annotations

import pytest

from tests.unit.cli.scripted import ScriptedControl, node, run_cli, workload


@pytest.fixture
def control():
    return ScriptedControl(
        nodes={"node-1": node("node-1"), "node-2": node("node-2"), "gpu-1": node("gpu-1")},
        workloads={"web": workload("web"), "worker": workload("worker"), "db": workload("db")},
    )


def complete(control, line, capsys, monkeypatch):
    """What a shell would offer at the end of a line."""
    monkeypatch.setenv("_SHOAL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    with pytest.raises(SystemExit):
        run_cli(control, [], capsys)
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("shoal node get no", ["node-1", "node-2"]),
        ("shoal workload get w", ["web", "worker"]),
        ("shoal workload delete web w", ["web", "worker"]),
        ("shoal logs d", ["db"]),
        ("shoal exec d", ["db"]),
        ("shoal workload list --node g", ["gpu-1"]),
        ("shoal wor", ["workload"]),
        ("shoal workload wait web --for s", ["settled", "stopped"]),
        ("shoal schema c", ["container", "compose"]),
    ],
)
def test_what_is_offered(control, capsys, monkeypatch, line, offered):
    assert complete(control, line, capsys, monkeypatch) == offered


def test_silence_when_nobody_answers(capsys, monkeypatch):
    assert complete(None, "shoal node get no", capsys, monkeypatch) == []


def test_an_address_given_before_is_honoured(control, capsys, monkeypatch):
    assert complete(control, "shoal node get --control 127.0.0.1:1 no", capsys, monkeypatch) == []


def test_a_slow_answer_is_not_waited_for(control, capsys, monkeypatch):
    async def slow(self, request, call):
        import asyncio

        await asyncio.sleep(3600)

    monkeypatch.setattr(ScriptedControl, "list_nodes", slow)
    assert complete(control, "shoal node get no", capsys, monkeypatch) == []
