from __future__ import annotations

import io
import tarfile
from pathlib import Path

from shoal.model.workloads import FileSpec
from shoal.runtimes.container.files import links_archive, write_files


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


def test_no_other_user_of_the_node_reaches_the_files(tmp_path: Path) -> None:
    workload = tmp_path / "web"
    workload.mkdir(mode=0o755)
    write_files(workload / "files", [(FileSpec("/key", secret="web-key"), b"value")])
    assert workload.stat().st_mode & 0o777 == 0o700
    # What is mounted can be read by any user in the container.
    assert (workload / "files").stat().st_mode & 0o777 == 0o755
    assert (workload / "files" / "0").stat().st_mode & 0o777 == 0o444
