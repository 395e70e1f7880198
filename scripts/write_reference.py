"""Writes docs/reference from the code, or with --check says whether it is up to date.

Called by `make docs` and `make check`. One JSON Schema per kind of workload, for editors and other checkers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from shoal.model.documents import workload_schema
from shoal.model.workloads import WorkloadType

ROOT = Path(__file__).resolve().parent.parent
SCHEMAS = ROOT / "docs" / "reference" / "schemas"


def pages() -> dict[Path, str]:
    """Every file of the reference with its content."""
    return {
        SCHEMAS / f"{kind.value}.json": json.dumps(workload_schema(kind), indent=2, ensure_ascii=False) + "\n"
        for kind in WorkloadType
    }


def main() -> None:
    """Write, or check."""
    fresh = pages()
    if "--check" in sys.argv:
        kept = set(SCHEMAS.glob("*.json")) | set(fresh)
        changed = sorted(
            str(path.relative_to(ROOT))
            for path in kept
            if path not in fresh or not path.exists() or path.read_text(encoding="utf-8") != fresh[path]
        )
        if changed:
            raise SystemExit(f"the reference is out of date, run `make docs`: {', '.join(changed)}")
        return
    SCHEMAS.mkdir(parents=True, exist_ok=True)
    for path in set(SCHEMAS.glob("*.json")) - set(fresh):
        path.unlink()
    for path, content in fresh.items():
        path.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
