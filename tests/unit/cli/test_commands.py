"""The client commands, against a scripted control plane: what is printed where, and the exit codes."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path

import pytest

from shoal.core.errors import (
    DeniedError,
    UnavailableError,
)
from shoal.model.views import PlannedPlacement, Reason
from shoal.wire import convert
from shoal.wire.pb.persys.control.v1 import control_pb2 as pb
from shoal.wire.pb.shoal.v1.run_pb2 import FieldProblem
from tests.unit.cli.scripted import (
    GROUP,
    NO_ROOM,
    TWO,
    WEB,
    ScriptedControl,
    Step,
    node,
    run_cli,
    run_on_terminal,
    spec,
    workload,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "cli"


def check_golden(name: str, text: str) -> None:
    """Compare with what is written down; SHOAL_WRITE_GOLDEN=1 writes it down."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("SHOAL_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


# ---------------------------------------------------------------------------------------------------------
# Reading


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("node-list", ["node", "list"]),
        ("node-get", ["node", "get", "node-1"]),
        ("workload-list", ["workload", "list"]),
        ("workload-get-failed", ["workload", "get", "batch"]),
        ("workload-get-pending", ["workload", "get", "huge"]),
        ("group-list", ["group", "list"]),
        ("group-get", ["group", "get", "nightly"]),
        ("status", ["status"]),
        ("events", ["events"]),
        ("top", ["top"]),
    ],
)
def test_screens(control, capsys, name, arguments):
    outcome = run_on_terminal(control, arguments, capsys)
    assert (outcome.code, outcome.stderr) == (0, "")
    assert all(len(line) <= 80 for line in outcome.stdout.splitlines())
    check_golden(name, outcome.stdout)


TABLES = (["node", "list"], ["workload", "list"], ["group", "list"], ["events"], ["top", "--once"])


@pytest.mark.parametrize("width", [40, 60, 120, 200])
@pytest.mark.parametrize("arguments", TABLES, ids=" ".join)
def test_tables_fit_a_terminal_and_keep_ids_whole(control, capsys, arguments, width):
    outcome = run_on_terminal(control, arguments, capsys, width=width)
    assert all(len(line) <= width for line in outcome.stdout.splitlines()), outcome.stdout
    assert "nightly" in outcome.stdout if arguments[0] == "group" else "node-1" in outcome.stdout


@pytest.mark.parametrize("columns", ["", "20"])
@pytest.mark.parametrize("arguments", TABLES, ids=" ".join)
def test_piped_tables_are_never_cut_and_keep_every_column(control, capsys, monkeypatch, arguments, columns):
    """Whatever the shell exports as COLUMNS: it is the width of a terminal, and a pipe is none."""
    monkeypatch.setenv("COLUMNS", columns)
    control.nodes["node-2"] = dataclasses.replace(control.nodes["node-2"], status_reason="a long story " * 30)
    control.groups["nightly"] = dataclasses.replace(control.groups["nightly"], message="a long story " * 30)
    lines = run_cli(control, arguments, capsys).stdout.splitlines()
    assert not any("…" in line for line in lines)
    for table in "\n".join(lines).split("\n\n"):
        header, *rows = table.splitlines()
        starts = [match.start() for match in re.finditer(r"(?<!\S)\S", header.replace(" FREE", "_FREE"))]
        titles = re.split(r"\s{2,}", header.strip())
        assert rows
        assert len(starts) == len(titles)
        assert all(len(re.split(r"\s{2,}", row.strip())) == len(titles) for row in rows), table


def test_a_piped_list_has_the_same_columns_whatever_is_in_it(control, capsys):
    full = run_cli(control, ["workload", "list"], capsys).stdout.splitlines()[0].split()
    for name in ("batch", "huge"):
        del control.workloads[name]
    control.workloads["web"] = dataclasses.replace(control.workloads["web"], revision_id="")
    header, row = run_cli(control, ["workload", "list"], capsys).stdout.splitlines()
    assert header.split() == full
    assert len(row.split()) == len(full)


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        (["node", "get", "node-1", "--json"], "node"),
        (["workload", "get", "batch", "--json"], "workload"),
        (["group", "get", "nightly", "--json"], "group"),
        (["status", "--json"], "summary"),
        (["events", "--json"], "events"),
    ],
)
def test_json_keys_are_those_written_down(control, capsys, arguments, path):
    outcome = run_cli(control, arguments, capsys)
    assert (outcome.code, outcome.stderr) == (0, "")
    document = json.loads(outcome.stdout)
    assert path in document
    check_golden(f"keys-{arguments[0]}", shape_of(document))


def shape_of(value, at="") -> str:
    """Every key of a document, one a line."""
    lines: dict[str, None] = {}

    def walk(value, at):
        if isinstance(value, dict) and at.rsplit(".", 1)[-1] not in ("labels", "ports", "facts", "members[]"):
            for key, each in value.items():
                lines[f"{at}.{key}".lstrip(".")] = None
                walk(each, f"{at}.{key}")
        elif isinstance(value, list):
            for each in value:
                walk(each, f"{at}[]")

    walk(value, at)
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize(
    ("arguments", "key", "single"),
    [
        (["node", "list"], "nodes", ["node", "get", "node-1"]),
        (["workload", "list"], "workloads", ["workload", "get", "web"]),
        (["group", "list"], "groups", ["group", "get", "nightly"]),
        (["top"], "nodes", ["node", "get", "node-1"]),
        (["top"], "workloads", ["workload", "get", "web"]),
    ],
)
def test_a_list_holds_what_get_shows(control, capsys, arguments, key, single):
    listed = json.loads(run_cli(control, [*arguments, "--json"], capsys).stdout)[key]
    (shown,) = json.loads(run_cli(control, [*single, "--json"], capsys).stdout).values()
    assert shown in listed


def test_an_empty_fleet_says_what_to_do(capsys):
    empty = ScriptedControl()
    outcome = run_cli(empty, ["node", "list"], capsys)
    assert (outcome.code, outcome.stdout) == (0, "")
    assert "shoal agent" in outcome.stderr
    outcome = run_cli(empty, ["workload", "list", "--json"], capsys)
    assert json.loads(outcome.stdout) == {"workloads": []}
    assert "shoal apply -f" in run_cli(empty, ["workload", "list"], capsys).stderr
    assert "none yet" in run_cli(empty, ["status"], capsys).stdout


def test_lists_can_be_narrowed(control, capsys):
    assert "batch" not in run_cli(control, ["workload", "list", "--node", "node-1"], capsys).stdout
    assert "web" not in run_cli(control, ["workload", "list", "--status", "Failed"], capsys).stdout
    assert "node-2" not in run_cli(control, ["node", "list", "--status", "Ready"], capsys).stdout


@pytest.mark.parametrize("words", ["node list", "workload get batch", "node get nobody"])
def test_no_colour_without_a_terminal(control, capsys, words):
    outcome = run_cli(control, words.split(), capsys)
    assert outcome.stdout + outcome.stderr
    assert "\x1b" not in outcome.stdout + outcome.stderr


def test_events_follow_until_the_control_plane_is_gone_for_good(control, capsys):
    control.fail_with["WatchEvents"] = UnavailableError("away")
    outcome = run_cli(control, ["events", "-f", "--workload", "web", "--json"], capsys)
    assert [json.loads(line)["kind"] for line in outcome.stdout.splitlines()] == ["WorkloadPlaced"]
    assert outcome.code == 1
    assert 60 <= outcome.seconds < 70


def test_events_about_two_things_at_once_are_refused(control, capsys):
    outcome = run_cli(control, ["events", "--node", "a", "--group", "b"], capsys)
    assert outcome.code == 2
    assert outcome.stderr.startswith("error: --node and --group: only one of them can be given\n\nhint: ")


def test_events_after_a_cursor(control, capsys):
    outcome = run_cli(control, ["events", "--after", "1", "--json"], capsys)
    document = json.loads(outcome.stdout)
    assert [event["cursor"] for event in document["events"]] == [2]
    assert document["next"] == 2


def test_schema_and_version_need_no_control_plane(capsys):
    outcome = run_cli(None, ["schema", "process"], capsys)
    assert json.loads(outcome.stdout)["properties"]["type"] == {"const": "process"}
    assert run_cli(None, ["version"], capsys).stdout == run_cli(None, ["--version"], capsys).stdout
    assert run_cli(None, ["schema", "cake"], capsys).code == 2
    assert json.loads(run_cli(None, ["schema", "group"], capsys).stdout)["required"] == ["kind", "id", "members"]


def test_events_show_the_start_of_a_long_revision(control, capsys):
    (event, *_) = control.events
    sha256 = "0123456789ab" + 52 * "f"
    control.events[0] = dataclasses.replace(event, message=f"revision {sha256}, Running")
    shown = run_cli(control, ["events"], capsys).stdout
    assert "revision 0123456789ab, Running" in shown
    assert sha256 in run_cli(control, ["events", "--json"], capsys).stdout


# ---------------------------------------------------------------------------------------------------------
# Errors


def test_an_error_is_one_line_and_a_hint(control, capsys):
    control.fail_with["ListNodes"] = DeniedError("only operators may do this", hint="ask one")
    outcome = run_cli(control, ["node", "list"], capsys)
    assert outcome.code == 1
    assert outcome.stdout == ""
    assert outcome.stderr == "error: only operators may do this\n\nhint: ask one\n"


def test_nobody_there(capsys):
    outcome = run_cli(None, ["status"], capsys)
    assert outcome.code == 1
    assert outcome.stderr.startswith("error: the control plane at 127.0.0.1:8085 cannot be reached")
    assert "hint: start one with `shoal up`" in outcome.stderr


def test_what_does_not_exist(control, capsys):
    assert run_cli(control, ["node", "get", "nobody"], capsys).stderr == (
        "error: node 'nobody' not found\n\nhint: `shoal node list` shows the nodes\n"
    )
    assert run_cli(control, ["logs", "nobody"], capsys).code == 1
    assert run_cli(control, ["workload", "wait", "nobody"], capsys).code == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nod"], "no such command 'nod'"),
        (["node", "list", "--jsn"], "no such option"),
        (["node", "get"], "missing argument"),
        (["apply"], "missing option"),
        (["workload", "wait", "web", "--timeout", "soon"], "must be a duration such as 500ms"),
        (["workload", "wait", "web", "--for", "luck"], "luck"),
        (["logs", "web", "--tail", "-1"], "--tail"),
        (["exec", "web", "-it", "--", "sh"], "--tty"),
        (["exec", "web"], "COMMAND"),
        (["node", "list", "--control", "h:0"], "must be HOST:PORT"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(control, capsys, arguments, words):
    outcome = run_cli(control, arguments, capsys)
    assert outcome.code == 2
    assert outcome.stdout == ""
    first, *rest = outcome.stderr.splitlines()
    assert first.startswith("error: ")
    assert words in first.lower() or words in first
    assert rest[:1] in ([], [""])
    assert all(line.startswith("hint: ") for line in rest[1:])


def test_certificates_and_insecure_contradict_each_other(control, capsys, tmp_path):
    outcome = run_cli(control, ["status", "--ca", spec(tmp_path, "x")], capsys)
    assert outcome.code == 2
    assert outcome.stderr.startswith("error: --insecure: must not be given together with certificates (--ca)")


def test_a_bug_is_one_line_too(control, capsys, monkeypatch):
    def broken(*_, **__):
        raise KeyError("surprise")

    monkeypatch.setattr("shoal.cli.output.table", broken)
    outcome = run_cli(control, ["node", "list"], capsys)
    assert outcome.code == 1
    assert outcome.stderr.startswith("error: a bug: KeyError: 'surprise'")


# ---------------------------------------------------------------------------------------------------------
# Applying


def test_apply_waits_until_everything_runs(control, capsys, tmp_path):
    control.scripts["worker"] = [
        Step(0.5, {"status": "Scheduled", "assigned_node_id": "node-1"}),
        Step(1.0, {"status": "Running"}),
    ]
    del control.workloads["web"]
    outcome = run_cli(control, ["apply", "-f", spec(tmp_path, TWO)], capsys)
    assert outcome.code == 0
    assert 3.5 <= outcome.seconds < 3.6  # it was ready after 1.5 s and stayed so for 2 s
    check_golden("apply", outcome.stdout)
    assert outcome.stderr.splitlines()[-1] == "worker: Running on node-1"


@pytest.mark.parametrize(("settle", "code"), [("2s", 4), ("500ms", 0)])
def test_apply_is_no_success_while_a_workload_dies_after_a_moment(control, capsys, tmp_path, settle, code):
    crash = [Step(0.7, {"status": "Pending"}), Step(0.5, {"status": "Running"})]
    control.scripts["worker"] = [Step(0.0, {"status": "Running", "assigned_node_id": "node-1"}), *crash * 20]
    outcome = run_cli(control, ["apply", "-f", spec(tmp_path, TWO), "--settle", settle, "--timeout", "10s"], capsys)
    assert outcome.code == code


def test_apply_from_several_files_and_groups(control, capsys, tmp_path):
    files = ["-f", spec(tmp_path, WEB), "-f", spec(tmp_path, GROUP, "group.yaml")]
    outcome = run_cli(control, ["apply", *files, "--json"], capsys)
    assert outcome.code == 0
    applied = json.loads(outcome.stdout)["applied"]
    assert [(each["workload_id"], each["group_id"], each["outcome"], each["status"]) for each in applied] == [
        ("web", "", "unchanged", "Running"),
        ("t-0", "trainers", "created", "Running"),
    ]


def test_apply_detached_does_not_wait(control, capsys, tmp_path):
    control.scripts["web"] = [Step(100.0, {"status": "Running"})]
    del control.workloads["web"]
    outcome = run_cli(control, ["apply", "-f", spec(tmp_path, WEB), "--detach"], capsys)
    assert (outcome.code, outcome.seconds) == (0, 0)
    assert "Accepted" in outcome.stdout


def test_apply_detached_of_what_is_unchanged_says_how_it_is_and_where(control, capsys, tmp_path):
    outcome = run_cli(control, ["apply", "-f", spec(tmp_path, WEB), "--detach"], capsys)
    assert outcome.code == 0
    [_, row] = outcome.stdout.splitlines()
    assert row.split()[:4] == ["web", "unchanged", "Running", "node-1"]
    outcome = run_cli(control, ["apply", "-f", spec(tmp_path, WEB), "--detach", "--json"], capsys)
    [applied] = json.loads(outcome.stdout)["applied"]
    assert (applied["outcome"], applied["status"], applied["node_id"]) == ("unchanged", "Running", "node-1")


@pytest.mark.parametrize("how", ["--detach", "--dry-run"])
@pytest.mark.parametrize("named", [False, True], ids=["own-directory", "named-directory"])
def test_apply_says_that_a_directory_of_the_spec_is_not_bounded(control, capsys, tmp_path, named, how):
    process = "command: [sleep, '60']" + (", working_dir: /srv/web" if named else "")
    text = f"id: web\ntype: process\nprocess: {{{process}}}\nresources: {{disk_gb: 2}}\n"
    outcome = run_cli(control, ["apply", "-f", spec(tmp_path, text), how], capsys)
    assert outcome.code == 0
    words = "workload web: its 2 GB of resources.disk_gb are reserved, but not a bound: working_dir /srv/web may be"
    assert (words in outcome.stderr) is named


def test_apply_of_a_stopped_workload_waits_for_that(control, capsys, tmp_path):
    text = WEB.replace("web", "quiet") + "desired_state: Stopped\n"
    outcome = run_cli(control, ["apply", "-f", spec(tmp_path, text)], capsys)
    assert outcome.code == 0
    assert "Stopped" in outcome.stdout


def test_no_room_is_exit_code_3_with_every_reason(control, capsys, tmp_path):
    control.scripts["big"] = [Step(0.1, {"rejections": NO_ROOM})]
    outcome = run_cli(control, ["apply", "-f", spec(tmp_path, WEB.replace("web", "big"))], capsys)
    assert outcome.code == 3
    assert 2.0 <= outcome.seconds <= 2.2
    check_golden("apply-no-room", outcome.stderr)


def test_no_room_with_a_timeout_waits_that_long(control, capsys, tmp_path):
    control.scripts["big"] = [Step(0.1, {"rejections": NO_ROOM})]
    arguments = ["apply", "-f", spec(tmp_path, WEB.replace("web", "big")), "--timeout", "0.5m"]
    outcome = run_cli(control, arguments, capsys)
    assert outcome.code == 4
    assert outcome.seconds == pytest.approx(30.0)
    assert "node-2" in outcome.stderr


def test_room_that_comes_late_is_taken(control, capsys, tmp_path):
    control.scripts["big"] = [
        Step(0.1, {"rejections": NO_ROOM}),
        Step(20.0, {"rejections": (), "status": "Running", "assigned_node_id": "node-1"}),
    ]
    arguments = ["apply", "-f", spec(tmp_path, WEB.replace("web", "big")), "--timeout", "30s"]
    assert run_cli(control, arguments, capsys).code == 0


def test_a_failure_is_exit_code_1_with_the_last_output(control, capsys, tmp_path):
    failed = control.workloads["batch"].run
    control.scripts["job"] = [
        Step(
            0.1, {"status": "Failed", "assigned_node_id": "node-1", "run": failed, "reason": Reason("X", "exit code 3")}
        )
    ]
    outcome = run_cli(control, ["apply", "-f", spec(tmp_path, WEB.replace("web", "job"))], capsys)
    assert outcome.code == 1
    check_golden("apply-failed", outcome.stderr)


def test_a_slow_start_times_out(control, capsys, tmp_path):
    control.scripts["slow"] = [Step(0.0, {"status": "Scheduled", "assigned_node_id": "node-1"})]
    arguments = ["apply", "-f", spec(tmp_path, WEB.replace("web", "slow")), "--timeout", "500ms"]
    outcome = run_cli(control, arguments, capsys)
    assert outcome.code == 4
    assert "still Scheduled (on node-1) after 500ms" in outcome.stderr


def test_bad_files_change_nothing(control, capsys, tmp_path):
    text = WEB + "---\n" + WEB.replace("process:", "proces:").replace("id: web", "id: ../up")
    path = spec(tmp_path, text)
    outcome = run_cli(control, ["apply", "-f", path], capsys)
    assert outcome.code == 2
    assert control.calls == []
    lines = outcome.stderr.splitlines()
    assert lines[0] == f"error: {path}:7: proces: is not a known field; did you mean process?"
    assert lines[1].startswith(f"error: {path}:5: id: must be 1 to 128 letters")
    assert lines[-1].startswith("hint: `shoal schema")


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ("id: a\ntype: vm\nvm: {memory: 5}\n", "vm"),
        ("id: a\ncontainer: {imag: x}\n", "container"),
        ("id: g\nkind: group\nworkloads: []\n", "group"),
        ("id: g\nkind: group\nmembers: [{id: a, type: vm, vm: {memory: 5}}]\n", "vm"),
        ("id: g\nkind: group\nmembers: []\nmore: 1\n", "group"),
        ("id: a\ntype: vm\nvm: {}\nx: 1\n---\nid: b\ntype: compose\ny: 1\n", "process"),
        ("just words\n", "process"),
    ],
)
def test_bad_files_name_the_schema_of_their_kind(control, capsys, tmp_path, text, schema):
    outcome = run_cli(control, ["apply", "-f", spec(tmp_path, text)], capsys)
    assert outcome.code == 2
    assert outcome.stderr.endswith(f"\nhint: `shoal schema {schema}` prints every field and its rule\n")


def test_bad_yaml_has_a_line(control, capsys, tmp_path):
    path = spec(tmp_path, WEB + "labels: [\n")
    outcome = run_cli(control, ["apply", "-f", path], capsys)
    assert outcome.code == 2
    assert outcome.stderr.startswith(f"error: {path}:5: is not valid YAML: ")


def test_what_the_control_plane_finds_wrong_is_bad_input_too(control, capsys, tmp_path):
    control.refuse["worker"] = pb.ApplyWorkloadResponse(
        success=False,
        failure_reason=pb.INVALID_SPEC,
        problems=[FieldProblem(field="spec.type", value="'x'", rule="must be y"), FieldProblem(field="a", rule="b")],
    )
    path = spec(tmp_path, TWO)
    outcome = run_cli(control, ["apply", "-f", path], capsys)
    assert outcome.code == 2
    assert outcome.stderr == (
        f"applied before the error: web\nerror: {path}:5: spec.type: must be y (got 'x')\nerror: {path}:5: a: b\n"
        "\nhint: `shoal schema process` prints every field and its rule\n"
    )


def test_a_revision_that_is_used_says_what_to_do(control, capsys, tmp_path):
    rule = "workload 'web' has it with another spec; a changed spec needs a new one"
    control.refuse["web"] = pb.ApplyWorkloadResponse(
        success=False,
        failure_reason=pb.INVALID_SPEC,
        problems=[FieldProblem(field="revision_id", value="r1", rule=rule)],
    )
    outcome = run_cli(control, ["apply", "-f", spec(tmp_path, WEB)], capsys)
    assert (
        outcome.stderr.splitlines()[-1] == "hint: leave `revision` out of the file: then each spec gets one of its own"
    )


def test_a_refusal_without_problems(control, capsys, tmp_path):
    control.refuse["web"] = pb.ApplyWorkloadResponse(
        success=False, failure_reason=pb.RUNTIME_ERROR, error_message="workload 'web' is being deleted"
    )
    outcome = run_cli(control, ["apply", "-f", spec(tmp_path, WEB)], capsys)
    assert outcome.code == 1
    assert outcome.stderr == (
        "error: workload 'web' is being deleted\n\nhint: `shoal workload get web` shows its state\n"
    )


def test_a_dry_run_stores_nothing(control, capsys, tmp_path):
    control.placements["worker"] = PlannedPlacement("worker", "node-2", "unchanged")
    before = dict(control.workloads)
    outcome = run_cli(control, ["apply", "-f", spec(tmp_path, f"{TWO}---\n{GROUP}"), "--dry-run"], capsys)
    assert outcome.code == 0
    assert control.workloads == before
    assert set(control.calls) == {"PlanPlacement", "GetWorkload", "GetGroup"}
    check_golden("apply-dry-run", outcome.stdout)
    assert outcome.stderr == "nothing was stored: this is what applying would do now\n"


def test_a_dry_run_without_room_is_exit_code_3(control, capsys, tmp_path):
    control.placements["worker"] = PlannedPlacement("worker", "", "create", rejections=NO_ROOM)
    outcome = run_cli(control, ["apply", "-f", spec(tmp_path, TWO), "--dry-run"], capsys)
    assert outcome.code == 3
    assert "node-2  the node is NotReady" in outcome.stderr
    outcome = run_cli(control, ["apply", "-f", spec(tmp_path, TWO), "--dry-run", "--json"], capsys)
    document = json.loads(outcome.stdout)
    assert document["placeable"] is False
    assert document["placements"][1]["rejections"][0]["node_id"] == "node-1"


# ---------------------------------------------------------------------------------------------------------
# The other verbs


def test_stop_start_retry_and_delete_wait(control, capsys):
    outcome = run_cli(control, ["workload", "stop", "web"], capsys)
    assert (outcome.code, outcome.stderr.splitlines()[-1]) == (0, "web: stopped")
    assert 0.5 <= outcome.seconds < 0.6
    assert run_cli(control, ["workload", "start", "web"], capsys).code == 0
    assert run_cli(control, ["workload", "retry", "batch"], capsys).code == 0
    outcome = run_cli(control, ["workload", "delete", "web", "batch"], capsys)
    assert outcome.code == 0
    assert set(control.workloads) == {"huge"}


def test_verbs_detached(control, capsys):
    outcome = run_cli(control, ["workload", "delete", "web", "--detach"], capsys)
    assert (outcome.code, outcome.seconds) == (0, 0)
    assert outcome.stderr == "web: will be deleted\n"


def test_one_that_is_missing_does_not_stop_the_others(control, capsys):
    outcome = run_cli(control, ["workload", "delete", "nobody", "web"], capsys)
    assert outcome.code == 1
    assert "error: workload 'nobody' not found" in outcome.stderr
    assert "web" not in control.workloads


def test_retry_of_what_runs(control, capsys):
    outcome = run_cli(control, ["workload", "retry", "web"], capsys)
    assert outcome.code == 1
    assert "nothing to retry" in outcome.stderr


def test_wait(control, capsys):
    assert run_cli(control, ["workload", "wait", "web"], capsys).code == 0
    assert run_cli(control, ["workload", "wait", "web", "--for", "stopped", "--timeout", "1s"], capsys).code == 4
    assert run_cli(control, ["workload", "wait", "batch", "--for", "running"], capsys).code == 1
    assert run_cli(control, ["workload", "wait", "nobody", "--for", "gone"], capsys).code == 0


def test_remove_node(control, capsys):
    outcome = run_cli(control, ["node", "remove", "node-1"], capsys)
    assert (outcome.code, outcome.stderr) == (
        1,
        "error: node 'node-1' still sends heartbeats\n\nhint: stop its agent first\n",
    )
    assert run_cli(control, ["node", "remove", "node-2"], capsys).code == 0
    assert "node-2" not in control.nodes


def test_cordon_and_uncordon(control, capsys):
    outcome = run_cli(control, ["node", "cordon", "node-1"], capsys)
    assert (outcome.code, outcome.stderr) == (0, "node node-1 is cordoned: it gets no new work\n")
    assert "cordoned" in run_cli(control, ["node", "list"], capsys).stdout
    assert "cordoned" in run_cli(control, ["node", "get", "node-1"], capsys).stdout
    assert run_cli(control, ["node", "uncordon", "node-1"], capsys).stderr == "node node-1 takes work again\n"
    assert run_cli(control, ["node", "cordon", "nowhere"], capsys).code == 1


def test_a_drain_is_waited_for(control, capsys):
    there = [name for name, view in control.workloads.items() if view.assigned_node_id == "node-1"]
    outcome = run_cli(control, ["node", "drain", "node-1", "--deadline", "5m"], capsys)
    assert (outcome.code, control.drains) == (0, [(300_000, False)])
    assert outcome.seconds >= 10.0 * len(there)
    assert "web: Running waits for its turn\n" in outcome.stderr
    assert f"node-1: Draining {len(there)} workload still to leave\n" in outcome.stderr
    assert outcome.stderr.endswith("node node-1 is drained\n")


def test_a_drain_need_not_be_waited_for(control, capsys):
    outcome = run_cli(control, ["node", "drain", "node-1", "--detach", "--force"], capsys)
    assert (outcome.code, outcome.stderr, control.drains) == (0, "node node-1 will be drained\n", [(0, True)])
    outcome = run_cli(control, ["node", "drain", "node-1", "--timeout", "2s"], capsys)
    assert outcome.code == 4
    assert "the drain continues" in outcome.stderr
    assert "  web  waits for its turn\n" in outcome.stderr


@pytest.mark.parametrize("state", ["Failed", "Completed"])
def test_a_drain_does_not_name_what_has_ended(control, capsys, state):
    control.workloads["ended"] = workload("ended", status=state)
    outcome = run_cli(control, ["node", "drain", "node-1", "--timeout", "2s"], capsys)
    assert "web" in outcome.stderr
    assert "ended" not in outcome.stderr


def test_a_drain_that_somebody_takes_back_ends_the_wait(control, capsys):
    async def taken_back(request, call):
        view = node("node-1", status="Ready")
        control.nodes["node-1"] = view
        return pb.DrainNodeResponse(node=convert.node_view_to_proto(view))

    control.drain_node = taken_back
    outcome = run_cli(control, ["node", "drain", "node-1"], capsys)
    assert (outcome.code, "canceled" in outcome.stderr) == (1, True)


def test_a_node_is_declared_dead(control, capsys):
    outcome = run_cli(control, ["node", "dead", "node-1"], capsys)
    assert (outcome.code, "--force" in outcome.stderr) == (1, True)
    outcome = run_cli(control, ["node", "dead", "node-1", "--force"], capsys)
    assert (outcome.code, outcome.stderr) == (0, "node node-1 is declared dead; its work moves\n")
    assert "an operator declared the node dead" in run_cli(control, ["node", "get", "node-1"], capsys).stdout


def test_an_orphan_is_adopted(control, capsys):
    outcome = run_cli(control, ["workload", "adopt", "node-1", "stray"], capsys)
    assert outcome.code == 0
    assert outcome.stderr.startswith("stray: adopted as it runs on node-1")


def test_delete_group(control, capsys):
    outcome = run_cli(control, ["group", "delete", "nightly"], capsys)
    assert outcome.code == 0
    assert "batch" not in control.workloads
    assert run_cli(control, ["group", "delete", "nightly"], capsys).code == 1


def test_every_json_key_is_documented():
    docs = Path(__file__).parents[3] / "docs"
    page = (docs / "command-line.md").read_text() + (docs / "reference" / "cli.md").read_text()
    documented = set(re.findall(r"`([a-z_0-9]+)`", page))
    for path in GOLDEN.glob("keys-*.txt"):
        keys = {re.sub(r"\[\]$", "", line.rsplit(".", 1)[-1]) for line in path.read_text().splitlines()}
        top = {line for line in path.read_text().splitlines() if "." not in line}
        assert keys - top - {"nodes", "workloads"} <= documented, path.name
        assert all(f'"{key}"' in page for key in top), path.name
