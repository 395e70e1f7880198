"""Writes the cloud-init seed of a guest: a small ISO image with the volume name `cidata` (data source NoCloud).

Called by `shoal.runtimes.vm.runtime`; the parts come from `cloud_init`.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

from shoal.core.disk.durable import replace_file


def write_seed(path: Path, parts: Mapping[str, str]) -> None:
    """Write the image, whole or not at all. Only the agent may read it: user-data may hold secrets. Raises OSError."""
    import pycdlib  # a guest without cloud-init does not need it

    image = pycdlib.PyCdlib()
    image.new(interchange_level=3, joliet=3, rock_ridge="1.09", vol_ident="cidata")
    for number, (name, text) in enumerate(sorted(parts.items())):
        data = text.encode()
        image.add_fp(io.BytesIO(data), len(data), f"/PART{number}.;1", rr_name=name, joliet_path=f"/{name}")
    output = io.BytesIO()
    image.write_fp(output)
    image.close()
    replace_file(path, output.getvalue())
