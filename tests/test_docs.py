"""What the documents say is true: specs in them are valid, links in them lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from shoal.model.documents import WorkloadDocument, read_document, workload_schema
from shoal.services.spec import read_service

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
SPECS = sorted((ROOT / "examples").rglob("*.yaml"))

BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def check_specs(text: str) -> int:
    documents = [each for each in yaml.safe_load_all(text) if isinstance(each, dict) and "id" in each]
    for each in documents:
        if each.get("kind") == "service":
            read_service({key: value for key, value in each.items() if key not in ("kind", "id")})
            continue
        document = read_document(each)
        if isinstance(document, WorkloadDocument):
            jsonschema.Draft202012Validator(workload_schema(document.spec.type)).validate(each)
    return len(documents)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for block in BLOCK.findall(text):
        check_specs(block)
    for target in LINK.findall(text):
        if "://" not in target and not target.startswith(("#", "mailto:")):
            assert (page.parent / target.partition("#")[0]).exists(), target


def test_the_front_page_has_a_spec_and_fits() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert sum(check_specs(block) for block in BLOCK.findall(text)) >= 1
    assert len(text.splitlines()) <= 200


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_example(spec: Path) -> None:
    assert check_specs(spec.read_text(encoding="utf-8")) >= 1
