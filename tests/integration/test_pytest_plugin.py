"""`taskrunner.testing` as a plugin of pytest, in a project of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

APP = """
from taskrunner import TaskContext, TaskRunner

runner = TaskRunner("shop.db")

def price(n: int) -> int:
    return 3 * n

@runner.task
async def order(ctx: TaskContext, n: int) -> int:
    return await ctx.step("price", price, n)
"""

TESTS = """
import pytest
from shop import order, runner

pytestmark = pytest.mark.anyio

async def test_by_a_still_clock(taskrunner_harness):
    assert await taskrunner_harness.call(order.bind(2)) == 6
    later = await order.options(delay="3d").enqueue(3)
    await taskrunner_harness.advance("3d")
    assert await later.result(timeout=0) == 9

async def test_at_work(taskrunner_working, taskrunner_app):
    assert taskrunner_working is taskrunner_app is runner
    assert await (await order.enqueue(4)).result(timeout="10s") == 12

async def test_survives(taskrunner_crash_sweep):
    sweep = await taskrunner_crash_sweep(order.bind(5))
    assert set(sweep.results) == {15}
    assert sweep.repeated_steps == []
"""

INI = '[tool.pytest.ini_options]\ntaskrunner_app = "shop:runner"\npythonpath = ["."]\n'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with an app and its tests, which run on asyncio."""
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "test_shop.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(
        'import pytest\nfrom taskrunner.testing import harness\n\npytest_plugins = ["taskrunner.testing"]\n\n'
        '@pytest.fixture\ndef anyio_backend():\n    return "asyncio"\n'
    )
    (tmp_path / "pyproject.toml").write_text(INI)
    return tmp_path


def run(project: Path, *arguments: str) -> tuple[int, str]:
    """Run its tests, with warnings as errors: the exit code, and what pytest says."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("TASKRUNNER_", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *arguments],
        cwd=project,
        env={**ours, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.timeout(60)
@pytest.mark.parametrize("mode", ["prepend", "importlib"])
def test_the_fixtures_of_a_project(project: Path, mode: str) -> None:
    """A conftest.py asks for the plugin, a setting names the app: then its tests have it, in a temporary file."""
    code, said = run(project, f"--import-mode={mode}")
    assert (code, "3 passed" in said) == (0, True), said
    assert not (project / "shop.db").exists()


def test_by_the_command_line(project: Path) -> None:
    """`-p taskrunner.testing` does as well, and what the project's own fixture gives goes before the setting."""
    (project / "conftest.py").write_text(
        "import pytest, shop\n@pytest.fixture\ndef taskrunner_app():\n    return shop.runner\n"
        '@pytest.fixture\ndef anyio_backend():\n    return "asyncio"\n'
    )
    (project / "pyproject.toml").write_text(INI.replace("shop:runner", "nothing:here"))
    code, said = run(project, "-p", "taskrunner.testing", "-k", "work or clock")
    assert (code, "2 passed" in said) == (0, True), said


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("", 'which app? say taskrunner_app = "module:runner" in pytest\'s settings, or define a fixture'),
        ("shop:nobody", "taskrunner_app of pytest's settings: APP='shop:nobody': 'shop' has no 'nobody'"),
    ],
)
def test_an_app_that_is_not_found(project: Path, setting: str, sentence: str) -> None:
    """Without the app's name, or with a wrong one, the test says what to do."""
    (project / "pyproject.toml").write_text(INI.replace("shop:runner", setting))
    code, said = run(project, "-k", "clock")
    assert code == 1
    assert sentence in said


def test_pytest_is_not_imported_without_it() -> None:
    """Who uses the helpers without pytest does not load it."""
    code = "import sys, taskrunner.testing; print('pytest' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "False\n"
