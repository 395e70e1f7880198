"""`python -m shoal.runtimes.keeper.exec_child`: becomes a command that an operator runs beside a run.

    exec_child CONFIG REPORT

CONFIG is a pipe with the command as JSON, because it has the environment of the run in it. REPORT is a pipe for what
goes wrong before the command runs; it closes without a word when it does. The command has the user, the directory, the
environment and the limits of its run. It dies with the agent that started it. Standard library only.
"""

from __future__ import annotations

import json
import os
import resource
import sys

from shoal.runtimes.keeper.lives.children import ChildDefaults, Launch, run_program


def main(arguments: list[str]) -> None:
    """Read the command and become it."""
    config, report = int(arguments[0]), int(arguments[1])
    with open(config, "rb") as file:
        given = json.loads(file.read())
    launch = Launch(
        argv=tuple(given["argv"]),
        env=given["env"],
        working_dir=given["working_dir"],
        stdout=1,
        stderr=2,
        user=given["user"],
        own_dir=given["own_dir"],
        cgroup_entrances=tuple(given["cgroup_entrances"]),
        die_with_parent=True,
        terminal=given["terminal"],
    )
    defaults = ChildDefaults(open_files=resource.getrlimit(resource.RLIMIT_NOFILE), oom_score="0")
    run_program(launch, defaults, stdin=0, parent=os.getppid(), report=report)


if __name__ == "__main__":
    main(sys.argv[1:])
