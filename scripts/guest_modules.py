"""Copies kernel modules and what they depend on, and writes down in which order they are loaded.

    python guest_modules.py /lib/modules/KERNEL TARGET LIST=MODULE,MODULE …

Each LIST becomes a file of that name in TARGET, with the file names of its modules in their order. What an earlier list
has is not in a later one. Modules that are built into the kernel are left out. Called by build_guests.sh.
"""

from __future__ import annotations

import lzma
import sys
from pathlib import Path


def read_dependencies(directory: Path) -> dict[str, tuple[str, list[str]]]:
    """By the name of each module: its path, and the names of what it needs."""
    found = {}
    for line in (directory / "modules.dep").read_text().splitlines():
        path, _, needed = line.partition(":")
        found[module_name(path)] = (path, [module_name(each) for each in needed.split()])
    return found


def module_name(path: str) -> str:
    """The name of a module: virtio_pci for kernel/drivers/virtio/virtio-pci.ko.xz."""
    return Path(path).name.partition(".")[0].replace("-", "_")


def in_order(names: list[str], known: dict[str, tuple[str, list[str]]]) -> list[str]:
    """The modules and everything that they need, each after what it needs itself."""
    order: list[str] = []
    for name in names:
        if name in known:
            for each in (*in_order(known[name][1], known), name):
                if each not in order:
                    order.append(each)
    return order


def main(directory: Path, target: Path, *lists: str) -> None:
    """Copy and write the lists."""
    known, copied = read_dependencies(directory), set[str]()
    for each in lists:
        title, _, names = each.partition("=")
        order = [name for name in in_order(names.split(","), known) if name not in copied]
        for name in order:
            path = directory / known[name][0]
            content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
            (target / f"{name}.ko").write_bytes(content)
        (target / title).write_text("".join(f"{name}.ko\n" for name in order))
        copied.update(order)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
