"""The built wheel has everything in it and works where the source tree is not."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import shoal

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the tree with the tools that are installed, and so without a network."""
    target = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(ROOT)],
        check=True,
        capture_output=True,
        text=True,
    )
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel in it, which borrows the packages that it needs from this one."""
    home = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index", str(wheel)],
        check=True,
        capture_output=True,
        text=True,
    )
    (packages,) = home.glob("lib/python*/site-packages")
    # Only its directory: what is installed there in editable form stays out of sight.
    (packages / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return home


def run(environment: Path, *command: str) -> str:
    surroundings = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    answer = subprocess.run(
        [str(environment / "bin" / command[0]), *command[1:]],
        capture_output=True,
        text=True,
        cwd=environment,
        env=surroundings,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_the_wheel_has_what_is_not_python_and_what_is_generated(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    sources = ROOT / "src"
    for pattern in ("shoal/wire/pb/**/*_pb2.py", "shoal/**/*.sql", "shoal/py.typed"):
        expected = {str(path.relative_to(sources)) for path in sources.glob(pattern)}
        assert expected, pattern
        assert expected <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests/", "bench/", "scripts/")) for name in names)


def test_the_wheel_has_the_example_that_the_demo_runs(environment: Path) -> None:
    program = (
        "from shoal.cli.local.examples import make_importable\n"
        "print(make_importable())\n"
        "import shoal.cli.local.demo_stream, clicks.clicks, clicks.feed\n"
        "print(clicks.feed.__file__)"
    )
    folder, feed = run(environment, "python", "-c", program).split()
    assert Path(folder).is_relative_to(environment)
    assert Path(feed).is_relative_to(folder)


def test_the_package_comes_from_the_wheel(environment: Path) -> None:
    where = run(environment, "python", "-c", "import shoal; print(shoal.__file__)").strip()
    assert Path(where).is_relative_to(environment)


def test_the_console_script_works(environment: Path) -> None:
    assert shoal.__version__ in run(environment, "shoal", "--version")
    assert "apply" in run(environment, "shoal", "--help")


def test_every_module_can_be_imported(environment: Path) -> None:
    program = (
        "import importlib, pkgutil, shoal\n"
        "names = [module.name for module in pkgutil.walk_packages(shoal.__path__, 'shoal.')]\n"
        "names = [n for n in names if not n.startswith('shoal.testing') and not n.endswith('__main__')]\n"
        "[importlib.import_module(name) for name in names]\n"
        "print(len(names))\n"
    )
    assert int(run(environment, "python", "-c", program)) > 10
