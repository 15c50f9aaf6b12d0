"""What tests under fire stand on: a store without processes, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from taskrunner import TaskRunner
from taskrunner.chaos.kills.jobs import runner
from taskrunner.chaos.kills.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A store without processes."""
    with World(tmp_path / "world") as world:
        yield world


@pytest.fixture
async def client(world: World) -> AsyncIterator[TaskRunner]:
    """A client of that store in this process."""
    with runner.override(db=world.db):
        async with runner:
            yield runner
