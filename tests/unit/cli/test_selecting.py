"""Selectors, watched lists, folders of specs, `describe`, `-o yaml`, and words that were mistyped."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re

import pytest
import yaml

from shoal.core.errors import (
    DeniedError,
    UnavailableError,
)
from shoal.core.ids import NodeId
from shoal.model.documents import read_document
from shoal.model.views import PlannedPlacement
from shoal.model.workloads import Rejection
from tests.unit.cli.scripted import (
    GROUP,
    WEB,
    run_cli,
    spec,
)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["workload", "list", "-l", "app=web"], {"web", "huge"}),
        (["workload", "list", "-l", "app=web,!big"], {"web"}),
        (["workload", "list", "-l", "app=web", "--status", "Pending"], {"huge"}),
        (["workload", "list", "--status", "Accepted"], {"web", "huge"}),
        (["workload", "list", "--status", "accepted", "-l", "big"], {"huge"}),
        (["node", "list", "-l", "zone=a"], {"node-1", "node-2"}),
        (["node", "list", "-l", "zone!=a"], set()),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_lists_by_label(labelled, capsys, arguments, names):
    outcome = run_cli(labelled, arguments, capsys)
    assert outcome.code == 0
    assert {line.split()[0] for line in outcome.stdout.splitlines()[1:]} == names


def test_a_node_is_labelled(control, capsys):
    outcome = run_cli(control, ["node", "label", "node-1", "rack=r1", "zone-", "empty="], capsys)
    assert (outcome.code, outcome.stderr) == (0, "node node-1 has the labels empty=, rack=r1\n")
    assert "node-1" in run_cli(control, ["node", "list", "-l", "rack=r1"], capsys).stdout
    wrong = run_cli(control, ["node", "label", "node-1", "rack", "=x", "-"], capsys)
    assert wrong.code == 2
    assert wrong.stderr.count("must be KEY=VALUE, or KEY- to remove a label") == 3


def test_events_by_label(labelled, capsys):
    labelled.events[:] = [
        dataclasses.replace(each, labels={"app": "web"} if each.subject_id == "web" else {}) for each in labelled.events
    ]
    outcome = run_cli(labelled, ["events", "-l", "app=web", "--json"], capsys)
    assert [event["subject_id"] for event in json.loads(outcome.stdout)["events"]] == ["web"]
    outcome = run_cli(labelled, ["events", "-l", "app=nightly"], capsys)
    assert (outcome.stdout, outcome.stderr) == ("", "no event of a workload that matches\n")
    assert run_cli(labelled, ["events", "-l", "app=web", "--node", "node-1"], capsys).code == 2


def test_delete_by_label(labelled, capsys):
    outcome = run_cli(labelled, ["delete", "-l", "app=web"], capsys)
    assert outcome.code == 0
    assert set(labelled.workloads) == {"batch"}
    assert outcome.stderr.splitlines()[-2:] == ["huge: deleted", "web: deleted"]
    assert run_cli(labelled, ["workload", "delete", "-l", "app=web"], capsys).code == 1


@pytest.mark.parametrize("detach", [[], ["--detach"]], ids=["wait", "detach"])
def test_delete_what_files_define(control, capsys, tmp_path, detach):
    folder = tmp_path / "specs"
    folder.mkdir()
    spec(folder, WEB)
    spec(folder, GROUP.replace("trainers", "nightly").replace("t-0", "batch"), "group.yaml")
    spec(folder, "not a spec", "README.md")
    outcome = run_cli(control, ["delete", "-f", str(folder), *detach], capsys)
    assert outcome.code == 0
    assert "nightly" not in control.groups
    if detach:
        assert outcome.stderr.splitlines() == ["batch: will be deleted", "web: will be deleted"]
    else:
        assert set(control.workloads) == {"huge"}
    assert run_cli(control, ["delete", "-f", str(folder), "web"], capsys).code == 2


def test_delete_says_which_files_define_nothing_that_is_there(control, capsys, tmp_path):
    outcome = run_cli(control, ["delete", "-f", spec(tmp_path, WEB + "---\n" + GROUP)], capsys)
    assert outcome.code == 1
    assert "error: group 'trainers' not found" in outcome.stderr
    assert "web" not in control.workloads


def test_apply_a_folder(control, capsys, tmp_path):
    (tmp_path / "below").mkdir()
    spec(tmp_path, WEB, "b.yml")
    spec(tmp_path, WEB.replace("web", "worker"), "a.yaml")
    spec(tmp_path, "nothing", "notes.txt")
    spec(tmp_path / "below", WEB.replace("web", "deep"))
    outcome = run_cli(control, ["apply", "-f", str(tmp_path), "--json"], capsys)
    assert [each["workload_id"] for each in json.loads(outcome.stdout)["applied"]] == ["worker", "web"]
    outcome = run_cli(control, ["apply", "-R", "-f", str(tmp_path), "--json"], capsys)
    assert "deep" in [each["workload_id"] for each in json.loads(outcome.stdout)["applied"]]
    (tmp_path / "empty").mkdir()
    outcome = run_cli(control, ["apply", "-f", str(tmp_path / "empty")], capsys)
    assert outcome.code == 2
    assert "must hold a file that ends in .yaml, .yml, .json" in outcome.stderr


def test_a_dry_run_shows_the_difference_and_what_a_group_loses(control, capsys, tmp_path):
    stored = read_document(yaml.safe_load(WEB))
    control.workloads["web"] = dataclasses.replace(control.workloads["web"], spec=stored.spec)
    control.placements["web"] = PlannedPlacement("web", "node-1", "update")
    outcome = run_cli(control, ["apply", "--dry-run", "-f", spec(tmp_path, WEB.replace("60", "61"))], capsys)
    assert outcome.code == 0
    assert "  -  - '60'\n  +  - '61'\n" in outcome.stdout
    assert outcome.stdout.splitlines()[1].split()[:4] == ["web", "update", "yes", "node-1"]
    group = GROUP.replace("trainers", "nightly")
    outcome = run_cli(control, ["apply", "--dry-run", "-f", spec(tmp_path, group)], capsys)
    assert ["batch", "delete"] in [line.split()[:2] for line in outcome.stdout.splitlines()]


def test_the_yaml_of_a_workload_can_be_applied(control, capsys, tmp_path):
    document = read_document(yaml.safe_load(WEB))
    control.workloads["web"] = dataclasses.replace(
        control.workloads["web"], spec=document.spec, revision_id="ab", spec_sha256=b"\xab"
    )
    outcome = run_cli(control, ["workload", "get", "web", "-o", "yaml"], capsys)
    assert outcome.code == 0
    assert read_document(yaml.safe_load(outcome.stdout)) == document
    assert json.loads(run_cli(control, ["workload", "get", "web", "-o", "json"], capsys).stdout)["workload"]
    wrong = run_cli(control, ["workload", "get", "web", "-o", "xml"], capsys)
    assert (wrong.code, wrong.stderr.splitlines()[0]) == (2, "error: --output: must be json or yaml (got 'xml')")


def test_the_yaml_of_a_group_can_be_applied(control, capsys):
    document = read_document(yaml.safe_load(WEB.replace("web", "batch")))
    control.workloads["batch"] = dataclasses.replace(control.workloads["batch"], spec=document.spec)
    outcome = run_cli(control, ["group", "get", "nightly", "-o", "yaml"], capsys)
    group = read_document(yaml.safe_load(outcome.stdout))
    assert (group.id, [member.id for member in group.members]) == ("nightly", ["batch"])
    assert group.members[0].spec == document.spec


def test_describe_shows_everything_about_one(control, capsys):
    control.logs = [(b"hello\n", "stdout"), (b"oh no\n", "stderr")]
    document = read_document(
        {**yaml.safe_load(WEB), "placement": {"constraints": [{"key": "gpu", "operator": "exists"}]}}
    )
    control.workloads["web"] = dataclasses.replace(control.workloads["web"], spec=document.spec)
    outcome = run_cli(control, ["describe", "web"], capsys)
    assert outcome.code == 0
    for head in ("placement", "probes", "spec", "last events", "last output"):
        assert f"\n{head}\n" in outcome.stdout
    assert "  oh no\n" in outcome.stdout
    assert re.search(r"placed because +it was applied", outcome.stdout)
    assert re.search(r"constraint +gpu exists", outcome.stdout)
    assert run_cli(control, ["describe", "nobody"], capsys).code == 1


def test_describe_of_one_that_no_node_can_take_says_what_each_node_lacks(control, capsys):
    lacking = (Rejection(NodeId("node-1"), "cpu", "needs 60000 millicores of cpu, 900 free"),)
    control.workloads["web"] = dataclasses.replace(
        control.workloads["web"], spec=read_document(yaml.safe_load(WEB)).spec, assigned_node_id=""
    )
    control.placements["web"] = PlannedPlacement("web", "", "unchanged", rejections=lacking)
    placement = run_cli(control, ["describe", "web"], capsys).stdout.partition("\nplacement\n")[2].partition("\n\n")[0]
    assert [line.split(maxsplit=1) for line in placement.splitlines() if "placed because" not in line] == [
        ["node", "none"],
        ["nodes", "that fit  none"],
        ["not", "node-1      needs 60000 millicores of cpu, 900 free"],
    ]


def test_describe_without_an_agent_shows_the_output_that_was_reported(control, capsys):
    control.fail_with["ReadLogs"] = UnavailableError("away")
    outcome = run_cli(control, ["describe", "batch"], capsys)
    assert outcome.code == 0
    assert "  Traceback: no such table\n" in outcome.stdout


@pytest.mark.parametrize("as_json", [False, True], ids=["table", "json"])
def test_a_watched_list_prints_what_changes(control, capsys, as_json):
    """Ends when the control plane refuses: that is no reason to go on watching."""
    control.fail_with_after = {"ListWorkloads": (4, DeniedError("enough"))}

    async def change() -> None:
        await asyncio.sleep(0.1)
        await control._change("web", status="Stopping")
        await asyncio.sleep(1.0)
        del control.workloads["batch"]
        await control._tell("WorkloadDeleted", "workload", "batch")

    control.at_start = change
    outcome = run_cli(control, ["workload", "list", "--watch", *(["--json"] if as_json else [])], capsys)
    assert outcome.stderr.startswith("error: enough")
    lines = outcome.stdout.splitlines()
    if as_json:
        documents = [json.loads(line) for line in lines]
        shown = [
            (each["change"], each["workload"]["workload_id"], each["workload"].get("status")) for each in documents
        ]
        assert shown[-2:] == [("changed", "web", "Stopping"), ("gone", "batch", None)]
    else:
        assert [line.split()[0] for line in lines] == ["WORKLOAD", "batch", "huge", "web", "web", "batch"]
        assert [line.split()[1] for line in lines[-2:]] == ["Stopping", "Gone"]
        assert len({line.index(line.split()[1]) for line in lines}) == 1, "the columns stay where they are"


def test_a_watched_list_outlives_a_control_plane_that_is_away(control, capsys):
    control.fail_with_after = {"ListNodes": (3, DeniedError("enough"))}
    control.fail_once = {"ListNodes": [None, UnavailableError("away"), None]}
    outcome = run_cli(control, ["node", "list", "-w"], capsys)
    assert "still watching" in outcome.stderr
    assert outcome.stderr.splitlines()[-3] == "error: enough"


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["delet"], "did you mean `shoal delete`?"),
        (["drain", "n"], "did you mean `shoal node drain`?"),
        (["node", "lst"], "did you mean `shoal node list`?"),
        (["ps"], "did you mean `shoal workload list`?"),
        (["node", "list", "--jsno"], "did you mean --json?"),
        (["zzz"], "`shoal --help` shows what can be given"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistyped_word_suggests_the_right_one(control, capsys, arguments, hint):
    outcome = run_cli(control, arguments, capsys)
    assert outcome.code == 2
    assert outcome.stderr.splitlines()[1:] == ["", f"hint: {hint}"]
