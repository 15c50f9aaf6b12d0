"""What the verbs of every engine have to do: one suite, run once for each engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from taskrunner.storage.store import Store
from tests.stores import StillClock, open_store, remote_store

ENGINES = {"sqlite": open_store, "from a child": remote_store}
"""The second is the first one, asked from the other end of a wire."""


@pytest.fixture
def clock() -> StillClock:
    """A clock that the test moves."""
    return StillClock()


@pytest.fixture(params=ENGINES)
async def store(db: Path, clock: StillClock, request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """An open store of the engine under test."""
    async with ENGINES[request.param](db, clock=clock) as opened:
        yield opened
