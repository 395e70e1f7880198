"""Regenerates src/shoal/wire/pb from proto/, or with --check says whether it is up to date.

Called by `make proto` and `make check`. The generated code is committed, so that installing needs no compiler;
the generator's version is pinned in pyproject.toml so that its output is repeatable.
"""

from __future__ import annotations

import filecmp
import re
import shutil
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "proto"
TARGET = ROOT / "src" / "shoal" / "wire" / "pb"
PACKAGE = "shoal.wire.pb"
INIT = '"""Generated from proto/ by `make proto`; never edited."""\n'

#: Messages that another program registers as well, by folder, with the pool in `shoal.wire.pools` that ours are in.
OWN_POOLS = {"tensorflow": "TENSORFLOW", "idl": "MONOLITH", "monolith/native_training": "MONOLITH"}

# protoc writes imports relative to proto/; ours live inside the package.
_IMPORT = re.compile(r"^(\s*)(from|import) (persys|shoal\.v1|monolith|tensorflow|idl)(\b)", re.MULTILINE)


def generate(target: Path) -> None:
    """Write the stubs for every file under proto/ into `target`."""
    files = sorted(str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.proto"))
    include = str(Path(protoc.__file__).parent / "_proto")
    programs = Path(sys.executable).parent
    arguments = [
        "protoc",
        f"--plugin=protoc-gen-mypy={programs / 'protoc-gen-mypy'}",
        f"-I{SOURCES}",
        f"-I{include}",
        f"--python_out={target}",
        f"--mypy_out=quiet:{target}",
        *files,
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed")
    for path in [*target.rglob("*.py"), *target.rglob("*.pyi")]:
        text = path.read_text()
        text = _IMPORT.sub(rf"\1\2 {PACKAGE}.\3\4", text)
        text = re.sub(r"(?<![\w.])(persys|shoal)\.((?:\w+\.)*v1)\.(\w+_pb2)", rf"{PACKAGE}.\1.\2.\3", text)
        for owned, pool in OWN_POOLS.items():
            if path.is_relative_to(target / owned):
                text = _in_own_pool(text, owned.replace("/", "."), pool)
        path.write_text(text)
    for folder in [target, *(path for path in target.rglob("*") if path.is_dir())]:
        (folder / "__init__.py").write_text(INIT)


def _in_own_pool(text: str, package: str, pool: str) -> str:
    """Names of others are registered in a pool of their own: a process may import their program, too."""
    text = text.replace(
        "from google.protobuf import descriptor_pool as _descriptor_pool", "from shoal.wire import pools"
    )
    text = text.replace("_descriptor_pool.Default()", f"pools.{pool}")
    return text.replace(f"DESCRIPTOR, '{package}.", f"DESCRIPTOR, '{PACKAGE}.{package}.")


def drifted(fresh: Path) -> list[str]:
    """The files that differ between a fresh generation and what is committed."""
    names = {str(p.relative_to(fresh)) for p in fresh.rglob("*.py*") if p.suffix != ".pyc"}
    kept = {str(p.relative_to(TARGET)) for p in TARGET.rglob("*.py*") if p.suffix != ".pyc"}
    same = {name for name in names & kept if filecmp.cmp(fresh / name, TARGET / name, shallow=False)}
    return sorted((names | kept) - same)


def main() -> None:
    """Regenerate, or check."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "pb"
        fresh.mkdir()
        generate(fresh)
        if "--check" in sys.argv:
            changed = drifted(fresh)
            if changed:
                raise SystemExit(f"generated code is out of date, run `make proto`: {', '.join(changed)}")
            return
        shutil.rmtree(TARGET, ignore_errors=True)
        shutil.copytree(fresh, TARGET)


if __name__ == "__main__":
    main()
