from __future__ import annotations

import io
import tarfile

from shoal.model.workloads import FileSpec
from shoal.runtimes.container.files import links_archive


def test_the_archive_of_links_has_no_padding_that_podman_would_not_read() -> None:
    files = [(FileSpec("/etc/web/a"), b"one"), (FileSpec("/b"), b"two")]
    archive = links_archive(files)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert [(each.name, each.linkname) for each in tar] == [
            ("etc/web/a", "/run/shoal/files/0"),
            ("b", "/run/shoal/files/1"),
        ]
    assert len(archive) == (2 + 2) * tarfile.BLOCKSIZE
    assert archive.endswith(bytes(2 * tarfile.BLOCKSIZE))
