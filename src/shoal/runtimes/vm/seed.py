"""The cloud-init seed of a guest: a small ISO image with the volume name `cidata` (data source NoCloud).

Called by `shoal.runtimes.vm.runtime`. The instance id stays the same as long as the spec does, so a restart does not
configure the guest again.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path

from shoal.core.durable import replace_file
from shoal.core.errors import InvalidError, problem

#: All parts together, as the contract says.
MAX_BYTES = 256 * 1024
#: The names that cloud-init looks for.
USER_DATA, META_DATA, NETWORK_CONFIG, VENDOR_DATA = "user-data", "meta-data", "network-config", "vendor-data"


def check_size(parts: Mapping[str, str], *, at: str) -> None:
    """Raise `InvalidError` for parts that are larger together than a seed may be."""
    size = sum(len(text.encode()) for text in parts.values())
    if size > MAX_BYTES:
        raise InvalidError([problem(at, size, f"all parts together must not be larger than {MAX_BYTES} bytes")])


def instance_id(workload_id: str, parts: Mapping[str, str]) -> str:
    """The id by which a guest knows whether it was configured already."""
    digest = hashlib.sha256(repr(sorted(parts.items())).encode()).hexdigest()
    return f"{workload_id}-{digest[:12]}"


def write_seed(path: Path, parts: Mapping[str, str]) -> None:
    """Write the image, whole or not at all. Empty parts are left out, except the two that cloud-init requires."""
    import pycdlib  # a guest without cloud-init does not need it

    image = pycdlib.PyCdlib()
    image.new(interchange_level=3, joliet=3, rock_ridge="1.09", vol_ident="cidata")
    for number, (name, text) in enumerate(sorted(parts.items())):
        if not text and name not in (USER_DATA, META_DATA):
            continue
        data = text.encode()
        image.add_fp(io.BytesIO(data), len(data), f"/PART{number}.;1", rr_name=name, joliet_path=f"/{name}")
    output = io.BytesIO()
    image.write_fp(output)
    image.close()
    replace_file(path, output.getvalue())
