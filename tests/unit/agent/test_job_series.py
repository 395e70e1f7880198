"""The agent reads what processes of jobs leave in their work directories."""

import os

from shoal.agent.job_series import JobSeries
from shoal.core.clock import SystemClock
from shoal.model.series import FRESH, JOB_FILE, OWN_FILE, head_line
from shoal.runtimes.work_files import read_file

LINE = b'shoal_dataflow_recoveries_total{dataflow="d"} 1.0\n'
GOOD = b"# TYPE shoal_dataflow_recoveries_total counter\n" + LINE


class Runtime:
    """Work directories by workload."""

    def __init__(self, folder):
        self.folder = folder

    async def read_work_file(self, workload_id, name, *, at_most):
        if workload_id == "j-host-9":
            raise OSError("the disk hangs")
        return read_file(self.folder / workload_id, name, at_most=at_most)


def leave(folder, workload_id, name, clock, *, age=0.0):
    path = folder / workload_id / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(head_line("j") + GOOD)
    at = clock.wall().timestamp() - age
    os.utime(path, (at, at))


async def test_fresh_files_of_every_process_here_are_read(tmp_path):
    clock = SystemClock()
    workloads = ["j-coordinator", "j-host-0", "j-host-1", "j-host-9", "web-1"]
    leave(tmp_path, "j-coordinator", OWN_FILE, clock)
    leave(tmp_path, "j-coordinator", JOB_FILE, clock)
    leave(tmp_path, "j-host-0", OWN_FILE, clock)
    leave(tmp_path, "j-host-1", OWN_FILE, clock, age=FRESH + 1)
    series = JobSeries(Runtime(tmp_path), lambda: workloads, clock)
    own = (await series.own()).decode()
    assert own.count("host=") == 2, "a process that has stopped writing tells nothing"
    assert 'job="j",host="host-0"' in own
    assert (await series.of_job("j")).decode().count("host=") == 1
    assert await series.of_job("web") == b""


def test_only_plain_small_files_of_the_directory_itself_are_read(tmp_path):
    (tmp_path / "secret").write_bytes(b"s")
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "plain").write_bytes(b"1234")
    (folder / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "pipe")
    found = read_file(folder, "plain", at_most=4)
    assert found is not None
    assert found[0] == b"1234"
    assert read_file(folder, "plain", at_most=3) is None
    assert read_file(folder, "missing", at_most=3) is None
    assert read_file(tmp_path / "nowhere", "plain", at_most=3) is None
    assert read_file(folder, "pipe", at_most=3) is None
    try:
        content = read_file(folder, "link", at_most=3)
    except OSError:
        content = None
    assert content is None
