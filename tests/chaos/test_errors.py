"""One operation of the disk fails (`taskrunner chaos --kind errors`): what it has found, and that it finds bugs."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from taskrunner import StoreError, StoreUnknown
from taskrunner.app import _lone_errors
from taskrunner.chaos import campaign
from taskrunner.chaos.kinds import KINDS
from taskrunner.chaos.report import Order


async def test_what_several_parts_have_met_is_one_error() -> None:
    """A claim and the end of a task were in a commit that failed: `drain` raises the one that says more, no group."""

    async def meet(error: StoreError) -> None:
        await anyio.lowlevel.checkpoint()
        raise error

    async def both() -> None:
        with _lone_errors():
            async with anyio.create_task_group() as group:
                group.start_soon(meet, StoreError("the disk failed; this process writes nothing more"))
                group.start_soon(meet, StoreUnknown("the disk failed"))

    with pytest.raises(StoreUnknown, match="the disk failed"):
        await both()


@pytest.mark.timeout(60)
def test_a_failed_sync_that_counts_as_not_done_is_found(tmp_path: Path) -> None:
    """A store that says "nothing was written" of what may be there is found, with the operation that has shown it."""
    kind = KINDS["errors"]
    tally = campaign.one(Order(kind.name, kind.module, 5, 0.03, str(tmp_path / "errors"), "failed"), 50)
    assert [problem for problem in tally.problems if "a sync fails, operation" in problem.text]
