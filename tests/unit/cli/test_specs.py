"""Spec files: several documents, and every problem with its file and line."""

from __future__ import annotations

import io
import os
import sys
import threading

import pytest

from shoal.cli.commands.common.specs import MAX_BYTES, parse_specs, read_specs
from shoal.core.errors import InvalidError
from shoal.model.documents import GroupDocument, WorkloadDocument

WEB = """\
id: web
type: process
process:
  command: [python3, -m, http.server]
resources: {cpu_millicores: 100, memory_mb: 64}
"""

GROUP = """\
kind: group
id: trainers
members:
- {id: t-0, type: process, process: {command: [sleep, "1"]}}
- {id: t-1, type: process, process: {command: [sleep, "1"]}}
"""


def problems_of(text: str) -> list[str]:
    with pytest.raises(InvalidError) as caught:
        parse_specs(text, source="spec.yaml")
    return [str(each) for each in caught.value.problems]


def test_several_documents_with_their_lines():
    found = parse_specs(f"---\n{WEB}---\n{GROUP}---\n", source="spec.yaml")
    assert [type(each.document) for each in found] == [WorkloadDocument, GroupDocument]
    assert [each.place for each in found] == ["spec.yaml:2", "spec.yaml:8"]


def test_json_is_yaml_enough():
    text = '{"id": "web", "type": "process", "process": {"command": ["sleep", "1"]}}'
    (found,) = parse_specs(text, source="web.json")
    assert found.document.id == "web"


def test_a_syntax_error_names_its_line():
    (words,) = problems_of(WEB + "labels: {a: b\nmore: [\n")
    assert words.startswith("spec.yaml:7: is not valid YAML: ")


def test_what_is_no_text_of_yaml_is_no_crash():
    (words,) = problems_of("id: \x00\n")
    assert "is not valid YAML" in words
    assert words.startswith("spec.yaml")


def test_an_unknown_field_gets_its_line_and_a_suggestion():
    (words,) = problems_of(WEB.replace("command:", "comand:"))[:1]
    assert words == "spec.yaml:4: process.comand: is not a known field; did you mean command?"


def test_every_problem_of_every_document_is_listed():
    text = WEB.replace("memory_mb: 64", "memory_mb: lots") + "---\n" + GROUP.replace('"1"', "1")
    found = problems_of(text)
    assert "spec.yaml:5: resources.memory_mb: must be a whole number (got 'lots')" in found
    assert any(each.startswith("spec.yaml:10: members[0].process.command[1]: must be text") for each in found)
    assert any(each.startswith("spec.yaml:11: members[1].process.command[1]: must be text") for each in found)


def test_a_missing_field_points_at_what_it_is_missing_from():
    (words,) = problems_of("\n\n" + WEB.replace("id: web\n", ""))
    assert words == "spec.yaml:3: id: is required"


def test_a_key_given_twice_is_no_silent_choice():
    (words,) = problems_of(WEB + "type: process\n")
    assert words == "spec.yaml:6: type: is given twice"


def test_anchors_work_and_cannot_unfold_without_end():
    shared = "id: web\ntype: process\nprocess: {command: [a], env: &env {A: b}}\nlabels: *env\n"
    assert parse_specs(shared, source="spec.yaml")
    bomb = "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
    for before, name in zip("abcdef", "bcdefg", strict=True):
        bomb += f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n"
    (words,) = problems_of(bomb)
    assert "entries" in words
    (words,) = problems_of("id: &a [*a]\n")
    assert "entries" in words


def test_values_that_yaml_itself_cannot_make():
    (words,) = problems_of("id: 2020-13-45\ntype: process\n")
    assert "spec.yaml:1: cannot be read" in words


def test_the_same_id_in_two_documents_is_a_mistake(tmp_path):
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text(WEB)
    second.write_text(GROUP.replace("t-1", "web"))
    with pytest.raises(InvalidError) as caught:
        read_specs([str(first), str(second)])
    (found,) = caught.value.problems
    assert str(found) == f"{second}:1: id: the workload web was given already at {first}:1"


def test_stdin_is_a_dash(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(WEB.encode())))
    (found,) = read_specs(["-"])
    assert found.place == "<stdin>:1"


def test_stdin_cannot_be_read_twice():
    with pytest.raises(InvalidError, match="only once"):
        read_specs(["-", "-"])


def test_a_pipe_is_read_as_it_comes(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_text(WEB))
    writer.start()
    (found,) = read_specs([str(path)])
    writer.join()
    assert found.place == f"{path}:1"
    with pytest.raises(InvalidError, match="at least one document"):
        read_specs(["/dev/null"])


@pytest.mark.parametrize("content", ["", "---\n---\n", "# only a comment\n"])
def test_a_file_without_documents_is_said_to_be_one(tmp_path, content):
    path = tmp_path / "empty.yaml"
    path.write_text(content)
    with pytest.raises(InvalidError, match="at least one document"):
        read_specs([str(path)])


def test_files_that_cannot_be_read_are_all_named(tmp_path):
    missing, binary = tmp_path / "missing.yaml", tmp_path / "binary.yaml"
    empty = tmp_path / "folder"
    empty.mkdir()
    binary.write_bytes(b"id: web\ntype: \xff\xfe")
    with pytest.raises(InvalidError) as caught:
        read_specs([str(missing), str(empty), str(binary)])
    found = [str(each) for each in caught.value.problems]
    assert found[0] == f"{missing}: does not exist"
    assert found[1] == f"{empty}: must hold a file that ends in .yaml, .yml, .json"
    assert found[2] == f"{binary}:2: must be text in UTF-8"
    assert "- is stdin" in caught.value.hint


def test_a_huge_file_is_refused(tmp_path):
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(InvalidError, match="larger than"):
        read_specs([str(path)])


def test_a_document_that_is_no_mapping():
    (words,) = problems_of("- a\n- b\n")
    assert words.startswith("spec.yaml:1: document: must be a mapping")
