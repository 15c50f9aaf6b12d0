"""What users install: the wheel, and what it asks for."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    (path,) = folder.iterdir()
    return path


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    """SQL and types come with it; the checkout's workers, tests and examples do not."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    package = {name for name in names if not re.match(r"durable_taskrunner-[\d.]+\.dist-info/", name)}
    files = [path for path in (ROOT / "taskrunner").rglob("*") if path.suffix in {".py", ".sql", ".typed"}]
    assert package == {str(path.relative_to(ROOT)) for path in files}
    assert {"taskrunner/py.typed", "taskrunner/storage/sql/sqlite/0001_initial.sql"} <= package
    assert any(name.endswith("/licenses/LICENSE") for name in names)


def test_the_wheel_works_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """Installed, it opens a store and works."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, "-P", "-W", "error", "program.py"]
    env = {"PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"{tmp_path / 'site' / 'taskrunner' / '__init__.py'} 42\n", "")


PROGRAM = """
import asyncio

import taskrunner

runner = taskrunner.TaskRunner("agent.db")

@runner.task
def double(n: int) -> int:
    return 2 * n

async def main() -> int:
    async with runner.working():
        return await (await double.enqueue(21)).result(timeout="10s")

print(taskrunner.__file__, asyncio.run(main()))
"""


def test_every_dependency_is_pinned_within_its_bounds() -> None:
    """The versions that the tests run with are allowed ones, and every direct dependency has its lowest version."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    wanted = [
        *PROJECT["dependencies"],
        *(item for extra in PROJECT["optional-dependencies"].values() for item in extra),
    ]
    for requirement in wanted:
        name, lowest = requirement.split(">=")
        assert numbers(pins[name]) >= numbers(lowest), requirement


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers, to be compared."""
    return tuple(int(part) for part in version.split("."))
