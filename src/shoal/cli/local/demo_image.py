"""An image for the container of `shoal demo`, made on this machine: one program that prints a line and waits.

No registry, no compiler and no file of the machine is needed, so it works wherever there is an engine. The program is
33 bytes of machine code (48 on 64-bit ARM) in the smallest ELF file that Linux loads. Called by `demo_container`.
"""

from __future__ import annotations

import io
import struct
import tarfile

#: The path of the program in the image.
PROGRAM = "/hello"
LINE = b"hello from a container\n"

_LOADED_AT = 0x400000
_FILE_HEADER, _PROGRAM_HEADER = 64, 56
_CODE_AT = _FILE_HEADER + _PROGRAM_HEADER


def image_archive(architecture: str) -> bytes | None:
    """The root file system as a tar archive; None for an architecture that there is no program for.

    `architecture` is what engines call it: amd64 or arm64.
    """
    program = _program(architecture)
    if program is None:
        return None
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo(PROGRAM.lstrip("/"))
        entry.size, entry.mode = len(program), 0o755
        tar.addfile(entry, io.BytesIO(program))
    return archive.getvalue()


def _program(architecture: str) -> bytes | None:
    match architecture:
        case "amd64" | "x86_64":
            return _elf(62, _amd64_code())
        case "arm64" | "aarch64":
            return _elf(183, _arm64_code())
    return None


def _elf(machine: int, code: bytes) -> bytes:
    """A static program whose only segment is the file itself."""
    size = _CODE_AT + len(code)
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    sizes = (_FILE_HEADER, _PROGRAM_HEADER, 1, 0, 0, 0)
    header = struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, _LOADED_AT + _CODE_AT, _FILE_HEADER, 0, 0, *sizes)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _LOADED_AT, _LOADED_AT, size, size, 0x10000)
    return ident + header + segment + code


def _amd64_code() -> bytes:
    return (
        bytes.fromhex("b801000000 bf01000000 488d3510000000")  # mov eax, write; mov edi, 1; lea rsi, [line]
        + b"\xba"
        + struct.pack("<I", len(LINE))  # mov edx, length
        + bytes.fromhex("0f05 b822000000 0f05 ebf7")  # syscall; again: mov eax, pause; syscall; jmp again
        + LINE
    )


def _arm64_code() -> bytes:
    def move(register: int, number: int) -> int:
        return 0xD2800000 | number << 5 | register

    call = 0xD4000001
    write = [move(0, 1), 0x10000001 | 11 << 5, move(2, len(LINE)), move(8, 64), call]  # the line is 11 words ahead
    wait = [move(register, 0) for register in range(4)] + [move(8, 73), call, 0x14000000 | -6 & 0x3FFFFFF]  # ppoll
    words = [*write, *wait]
    return struct.pack(f"<{len(words)}I", *words) + LINE
