"""Every error is one line and what to do about it, wherever it comes from."""

from __future__ import annotations

import pytest

from shoal.cli import main
from shoal.cli.commands.common import waiting
from shoal.cli.commands.common.waiting import Judgement, Verdict, Waited
from shoal.cli.output import hints
from shoal.core import errors
from shoal.core.errors import InvalidError, NotFoundError, PreconditionError, ShoalError, problem
from shoal.model.workloads import Rejection, RunState, RunStatus
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from tests.unit.cli.scripted import ScriptedControl, node, run_cli, workload

WEB = "id: web\ntype: process\nprocess: {command: [sleep, '60']}\n"


@pytest.fixture(autouse=True)
def plain_surroundings(monkeypatch, tmp_path):
    for name in ("COLUMNS", "NO_COLOR", "SHOAL_CONTROL", "SHOAL_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHOAL_INSECURE", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.yaml").touch()
    (tmp_path / "twice.yaml").write_text(f"{WEB}---\n{WEB}")
    (tmp_path / "wrong.yaml").write_text("id: web\ntype: cake\n")


class Control(ScriptedControl):
    """A script that knows groups."""

    async def delete_workload(self, request, call):
        if request.workload_id == "member":
            words = "workload 'member' is a member of group 'g' (change the group as a whole)"
            return pb.DeleteWorkloadResponse(success=False, error_message=words)
        return await super().delete_workload(request, call)


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        ("node get nope", "node 'nope' not found", "`shoal node list`"),
        ("node remove nope", "node 'nope' not found", "`shoal node list`"),
        ("node cordon nope", "node 'nope' not found", "`shoal node list`"),
        ("workload get nope", "workload 'nope' not found", "`shoal workload list`"),
        ("workload wait nope", "workload 'nope' not found", "`shoal workload list`"),
        ("workload delete nope", "workload 'nope' not found", "`shoal workload list`"),
        ("workload delete member", "workload 'member' is a member of group 'g'\n", "hint: change the group as a whole"),
        ("workload list --node nope", "node 'nope' not found", "`shoal node list`"),
        ("workload list --group nope", "group 'nope' not found", "`shoal group list`"),
        ("group get nope", "group 'nope' not found", "`shoal group list`"),
        ("logs nope", "workload 'nope' not found", "`shoal workload list`"),
        ("apply -f nofile.yaml", "nofile.yaml: does not exist", "- is stdin"),
        ("apply -f empty.yaml", "-f: must hold at least one document", "`shoal schema process`"),
        ("apply -f twice.yaml", "the workload web was given already", "an id of its own"),
        ("apply -f wrong.yaml", "wrong.yaml:2: type: must be one of", "`shoal schema process`"),
        ("status --control foo:bar", "--control: must be HOST:PORT", "`shoal status --help`"),
        ("certs issue --role agent", "--node-id: is required", "`shoal certs issue --help`"),
        ("certs issue --role cook", "--role: must be one of agent, control, operator (got 'cook')", "--help`"),
        ("workload wait x --for ever", "--for: must be one of settled, running, completed, stopped, gone", "--help`"),
        ("token create --uses 0", "--uses: must be at least 1 (got '0')", "`shoal token create --help`"),
        ("events --limit 5000", "--limit: must be at most 1000 (got '5000')", "`shoal events --help`"),
        ("events --limit few", "--limit: must be a whole number (got 'few')", "`shoal events --help`"),
        (
            "schema cake",
            "KIND: must be one of process, container, compose, vm, group (got 'cake')",
            "`shoal schema --help`",
        ),
        ("statu", "no such command 'statu'", "did you mean `shoal status`?"),
        ("node drain n1 --wait", "no such option: --wait", "`shoal node drain --help`"),
        ("status --contol a:1", "no such option: --contol", "did you mean --control?"),
        ("node get", "missing argument 'NODE'", "`shoal node get --help`"),
    ],
)
def test_one_error_and_one_hint(words, error, hint, capsys):
    outcome = run_cli(Control(nodes={"node-1": node("node-1")}), words.split(), capsys)
    lines = outcome.stderr.splitlines()
    assert outcome.code in (1, 2)
    assert [line.partition(":")[0] for line in lines if line] == ["error", "hint"], outcome.stderr
    assert error in f"{lines[0]}\n"
    assert hint in lines[-1]
    assert "Value error" not in outcome.stderr
    assert "Input should" not in outcome.stderr


def every_error():
    return [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, ShoalError)]


@pytest.mark.parametrize("kind", [each for each in every_error() if each is not ShoalError])
def test_no_kind_of_error_is_without_advice(kind):
    error = kind.__new__(kind)
    ShoalError.__init__(error, "it broke")
    if isinstance(error, InvalidError):
        error.problems = ()
    assert hints.told(error)[1]


def test_who_knows_better_is_not_overruled():
    assert hints.told(NotFoundError("node", "a", hint="look there")) == ("node 'a' not found", "look there")


def test_what_a_foreign_server_says_is_understood_by_its_words():
    error = NotFoundError.__new__(NotFoundError)
    ShoalError.__init__(error, "not found: group g1 not found")
    assert hints.told(error)[1] == "`shoal group list` shows the groups"


def test_brackets_within_a_sentence_stay_there():
    error = PreconditionError("the agent (old) cannot", node_id="n1")
    assert hints.told(error) == ("the agent (old) cannot", "`shoal node get n1` shows its state")


def test_fields_are_called_as_they_were_typed():
    error = InvalidError([problem("ttl_ms", "1 ms", "must be more"), problem("other", 1, "must be 2")])
    assert [each.field for each in hints.renamed(error, {"ttl_ms": "--ttl"}).problems] == ["--ttl", "other"]


@pytest.mark.parametrize(
    ("words", "called"),
    [
        (["node", "get", "node"], "shoal node get"),
        (["apply", "-f", "node"], "shoal apply"),
        (["--version"], "shoal"),
        ([], "shoal"),
        (["node"], "shoal node"),
    ],
)
def test_the_command_within_a_command_line(words, called):
    assert main._called(words) == called


# ---------------------------------------------------------------------------------------------------------
# What a workload without a place waits for


def waited_for(**fields):
    view = workload("web", status="Pending", assigned_node_id="", **fields)
    return Waited({"web": Judgement(Verdict.UNPLACED, "Pending")}, {"web": view}, 1.0)


@pytest.mark.parametrize(
    ("codes", "missing"),
    [
        (("type", "type"), "there is a node whose agent can run vm workloads"),
        (("type", "memory"), "a node has room for it"),
        (("type", "not_ready"), "a node is Ready or there is a node whose agent can run vm workloads"),
        (("cordoned", "draining"), "a node takes work again (`shoal node uncordon`)"),
        (("label",), "a node's labels meet its constraints"),
        (("something-new",), "a node can do what it asks for"),
        ((), "a node registers: start one with `shoal agent`"),
    ],
)
def test_what_is_missing_is_what_is_said(codes, missing, capsys):
    rejections = tuple(Rejection(f"n{index}", code, "it says no") for index, code in enumerate(codes))
    waiting.explain(waited_for(type="vm", rejections=rejections))
    assert f"hint: it stays Pending and starts as soon as {missing}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ("CrashLoop", "  │ bad thing\n\nhint: `shoal logs web` shows all of its output; "),
        ("WaitingForSecret", "\n\nhint: `shoal secret set` sets the secret, and it starts then; "),
        ("Starting", "\n\nhint: a longer --timeout waits for it; "),
    ],
)
def test_a_wait_that_ran_out_of_time_says_what_can_be_done(state, shown, capsys):
    view = workload("web", status="Pending", run=RunStatus("web", RunState.PENDING, last_output="bad thing\n"))
    waiting.explain(Waited({"web": Judgement(Verdict.WAITING, state)}, {"web": view}, 1.0))
    error = capsys.readouterr().err
    assert error.startswith(f"error: workload web is still {state} after 1s\n")
    assert f"{shown}nothing was undone: it continues\n" in error
    assert ("bad thing" in error) == (state == "CrashLoop")


def test_every_word_for_what_is_missing_is_one_that_the_scheduler_says():
    from shoal.control.placement.feasible import RejectionCode

    assert set(waiting._MISSING) | waiting._ROOM <= set(RejectionCode)
