"""Other programs to compare with, each in a virtual environment of its own, so that they cannot touch ours.

`Peer.prepare` makes the environment below the user's cache once and makes it again when its packages change; `Peer.run`
runs a script of ours in it and reads the one line of JSON that it prints. Called by the areas.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.errors import UnavailableError

HOME = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal" / "peers"
SCRIPTS = Path(__file__).resolve().parent / "peer_scripts"

INSTALLS_WITHIN = 1200.0
_STAMP = "installed.txt"
_TAIL = 2000


@dataclass(frozen=True, slots=True)
class Peer:
    """A program to compare with."""

    name: str
    #: Everything that is installed, each with its version.
    requirements: tuple[str, ...]
    #: The name of a file in `bench/peer_scripts`. It may import what is required above and nothing of ours.
    script: str
    #: Jars from Maven Central, as group:artifact:version. They lie in `jars` beside the environment's `bin`.
    jars: tuple[str, ...] = ()
    #: The area is measured without it where it cannot be installed, and says so.
    optional: bool = False

    def prepare(self, *, home: Path = HOME) -> Path:
        """Make its environment, if it is not there yet. Returns its interpreter."""
        folder = home / self.name
        stamp = folder / _STAMP
        wanted = "\n".join((sys.version, *self.requirements, *self.jars))
        interpreter = folder / "bin" / "python"
        if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted and interpreter.exists():
            return interpreter
        if folder.exists():
            shutil.rmtree(folder)
        _run([sys.executable, "-m", "venv", "--without-pip", str(folder)], within=INSTALLS_WITHIN)
        # Our own pip installs into it: the environment then holds what is compared and nothing else.
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--python", str(interpreter)]
        if self.requirements:
            _run([*pip, "install", *self.requirements], within=INSTALLS_WITHIN)
        if self.jars:
            _fetch_jars(self.jars, folder)
        # Last, so that an installation that was cut off is begun again.
        stamp.write_text(wanted, encoding="utf-8")
        return interpreter

    def run(self, arguments: Sequence[str] = (), *, within: float, home: Path = HOME) -> Any:
        """Run its script and return what it prints, which is one line of JSON."""
        interpreter = self.prepare(home=home)
        printed = _run([str(interpreter), str(SCRIPTS / self.script), *arguments], within=within)
        lines = printed.strip().splitlines()
        if len(lines) != 1:
            raise UnavailableError(f"the peer {self.name} printed {len(lines)} lines instead of one")
        return json.loads(lines[0])

    def start(self, arguments: Sequence[str], *, log: Path, home: Path = HOME) -> subprocess.Popen[bytes]:
        """Start its script and return at once. Its output goes to a file; the caller ends it."""
        interpreter = self.prepare(home=home)
        command = [str(interpreter), str(SCRIPTS / self.script), *arguments]
        with log.open("wb") as out:
            return subprocess.Popen(command, stdout=out, stderr=out, env=_environment(command[0]), cwd=log.parent)


_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>shoal.bench</groupId><artifactId>peer</artifactId><version>1</version>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""


def _fetch_jars(jars: Sequence[str], folder: Path) -> None:
    """Only the jars that are named: what they need comes with the program, or is in them."""
    parts = [each.split(":") for each in jars]
    dependencies = "\n".join(
        f"    <dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
        f"<version>{version}</version></dependency>"
        for group, name, version in parts
    )
    (folder / "pom.xml").write_text(_POM.format(dependencies=dependencies), encoding="utf-8")
    goal = ["dependency:copy-dependencies", "-DexcludeTransitive=true", f"-DoutputDirectory={folder / 'jars'}"]
    _run(["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), *goal], within=INSTALLS_WITHIN)


def _environment(program: str) -> dict[str, str]:
    """Without the variables that would let our own packages into the other environment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    # Its own folder comes first: some programs start the bare `python` that they find.
    kept["PATH"] = f"{Path(program).parent}{os.pathsep}{kept.get('PATH', '')}"
    return kept


def _run(command: Sequence[str], *, within: float) -> str:
    environment = _environment(command[0])
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=within, env=environment)
    except FileNotFoundError:
        raise UnavailableError(f"{Path(command[0]).name} is not installed") from None
    except subprocess.CalledProcessError as error:
        raise UnavailableError(
            f"{Path(command[0]).name} failed with code {error.returncode}: {(error.stderr or '').strip()[-_TAIL:]}",
            hint="the packages of peers are installed with pip; is the package index within reach?",
        ) from None
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{Path(command[0]).name} took longer than {within:g} s") from None
    return done.stdout
