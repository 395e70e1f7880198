"""What `-o yaml` prints can be applied again, and means the same."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, example, given, settings

from shoal.cli import output
from shoal.cli.commands.common.specs import parse_specs
from shoal.model.documents import WorkloadDocument, write_document
from shoal.model.workloads import ProcessSpec, WorkloadSpec, WorkloadType
from tests.strategies import documents

ODD = WorkloadDocument(
    "web",
    WorkloadSpec(
        type=WorkloadType.PROCESS,
        process=ProcessSpec(
            command=("sh", "-c", "echo one\n  echo two\n", "\x85", "\u2028 x"), args=("no", "0x1", "~")
        ),
        labels={"a": "\x85", "1": "yes"},
    ),
    revision="1e3",
)


@settings(max_examples=25, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate])
@example([ODD])
@given(documents().map(lambda each: [each]))
def test_documents_are_read_as_they_were_printed(written):
    text = output.yaml_text([write_document(each) for each in written])
    assert [each.document for each in parse_specs(text, source="web.yaml")] == written


def test_a_script_is_printed_as_lines():
    script = {"process": {"command": ["sh", "-c", "echo one\necho two\n"]}}
    assert "|\n    echo one\n    echo two\n" in output.yaml_text([script])
