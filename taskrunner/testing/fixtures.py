"""The pytest plugin: the app under test, put on a temporary file. `pytest_plugins = ["taskrunner.testing"]` loads it.

An async fixture needs what runs async tests: anyio's own plugin (`pytest.mark.anyio`), or pytest-asyncio in its mode
"auto". (To pytest: PYTEST_DONT_REWRITE, there is no assert in here.)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from taskrunner.app import TaskRunner
from taskrunner.cli.app_path import find_runner
from taskrunner.cli.endings import Trouble
from taskrunner.testing.crash import Sweep, crash_sweep
from taskrunner.testing.lab import Harness, harness

APP = "taskrunner_app"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say which setting of pytest names the app."""
    parser.addini(APP, "the TaskRunner under test, as `taskrunner run` takes it: module:runner")


@pytest.fixture
def taskrunner_app(request: pytest.FixtureRequest) -> TaskRunner:
    """The runner under test: `taskrunner_app = "module:runner"` of pytest's settings, or a fixture of yours."""
    path = request.config.getini(APP)
    if not path:
        message = f'which app? say {APP} = "module:runner" in pytest\'s settings, or define a fixture {APP}'
        raise pytest.UsageError(message)
    try:
        return find_runner(str(path))
    except Trouble as error:
        message = f"{APP} of pytest's settings: {error}"
        raise pytest.UsageError(message) from None


@pytest.fixture
async def taskrunner_harness(taskrunner_app: TaskRunner) -> AsyncIterator[Harness]:
    """The app on a temporary file, with a clock that stands still until it is moved: `harness`."""
    async with harness(taskrunner_app) as lab:
        yield lab


@pytest.fixture
async def taskrunner_working(taskrunner_app: TaskRunner, tmp_path: Path) -> AsyncIterator[TaskRunner]:
    """The app on a temporary file, at work by the machine's own clock."""
    with taskrunner_app.override(db=tmp_path / "taskrunner.db", processes=0):
        async with taskrunner_app.working() as working:
            yield working


@pytest.fixture
def taskrunner_crash_sweep() -> Callable[..., Coroutine[Any, Any, Sweep]]:
    """`crash_sweep`, where nobody wants to import it."""
    return crash_sweep
