"""Supervisors: registered, beating, buried; and what the store as a whole says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskrunner.core.clock import Clock
from taskrunner.core.errors import InvalidInput, StoreError, TaskNotFound
from taskrunner.core.model import TaskType
from taskrunner.storage.engine import Rejected, Statement, Unit
from taskrunner.storage.health import Health
from taskrunner.storage.listing import Filter, Place
from taskrunner.storage.owners import NANOSECONDS
from taskrunner.storage.store import Store
from tests.stores import StillClock, claim, end, new_task, register, sql

BOOT = Clock().boot_id()


async def bury(store: Store, *dead: str, at: float = 0.0, me: str = "") -> list[tuple[str, str]]:
    """Bury the dead, and those whose lease had run out at this moment of the monotonic clock."""
    return await store.owners.bury([(owner, "killed") for owner in dead], boot_id=BOOT, me=me, monotonic=at)


async def test_a_supervisor_lives_until_its_lease_runs_out(store: Store, clock: StillClock) -> None:
    """To the nanosecond, by the monotonic clock of this boot; a supervisor never buries itself."""
    await register(store, "one", lease=30.0)
    await register(store, "two", lease=10.0)
    (one, two) = sorted(await store.owners.living(), key=lambda row: row.id)
    assert (one.expires_at, two.expires_at) == (1_030 * NANOSECONDS, 1_010 * NANOSECONDS)
    assert await bury(store, at=1_009.999) == []
    assert await bury(store, at=1_010.0, me="two") == []
    assert await bury(store, at=1_010.0) == [("two", "its lease ran out")]
    assert await bury(store, at=1_010.0) == []
    assert [row.id for row in await store.owners.living()] == ["one"]
    ended = {row.id: row.ended_how for row in await store.owners.all()}
    assert ended == {"one": None, "two": "its lease ran out"}


async def test_the_lease_of_another_boot_is_not_judged(store: Store, db: Path) -> None:
    """Its clock says nothing here; that it is dead is known from the boot itself."""
    await register(store, "one", lease=1.0)
    sql(db, "UPDATE supervisors SET boot_id = 'another'")
    assert await bury(store, at=1e6) == []
    assert await bury(store, "one") == [("one", "killed")]


async def test_the_dead_are_buried_once(store: Store) -> None:
    """Who comes second is told of nobody, and the first reason stays."""
    await register(store, "one")
    assert await bury(store, "one", "nobody") == [("one", "killed")]
    assert await bury(store, "one") == []
    await store.owners.retire("one")
    assert (await store.owners.all())[0].ended_how == "killed"


async def test_a_row_that_nobody_can_read_hides_nobody(store: Store, db: Path) -> None:
    """Its text is no UTF-8, or no time: the others are seen and buried as ever, and it has an end, too (G9)."""
    for owner in ("one", "two", "three", "bad"):
        await register(store, owner, lease=10.0)
    sql(
        db,
        "UPDATE supervisors SET host = CAST(x'ff' AS TEXT) WHERE id = 'one'",
        "UPDATE supervisors SET started_at = 'never' WHERE id = 'two'",
        "UPDATE supervisors SET id = CAST(x'ff' AS TEXT) WHERE id = 'bad'",
    )
    assert [row.id for row in await store.owners.all()] == ["three"]
    assert [row.id for row in await store.owners.living()] == ["three"]
    ended = await bury(store, at=1e6)
    assert sorted(owner for owner, _how in ended) == ["one", "three", "two", "xFF"]
    assert sql(db, "SELECT count(*) FROM supervisors WHERE ended_at IS NULL") == [[0]]


async def test_a_buried_supervisor_does_not_beat(store: Store) -> None:
    """Its beat is refused: so it learns that it was taken for dead."""
    await register(store, "one")
    beat = Unit((Statement("beat", {"id": "one", "now": "", "expires_at": 1}, expect_rows=1),))
    await store.engine.write(beat)
    await store.owners.retire("one")
    with pytest.raises(Exception, match="beat"):
        await store.engine.write(beat)


async def test_a_supervisor_is_registered_once(store: Store) -> None:
    """Its id is fresh: a second one of the same id is a fault, and changes nothing."""
    await register(store, "one", lease=30.0)
    with pytest.raises(Rejected):
        await register(store, "one", lease=99.0, types=[TaskType(name="job")])
    assert [row.expires_at for row in await store.owners.living()] == [1_030 * NANOSECONDS]
    assert sql(store.path, "SELECT * FROM task_types") == []


async def test_ended_supervisors_are_forgotten_after_a_month(store: Store, db: Path, clock: StillClock) -> None:
    """But not while a task still names one as its owner."""
    for owner in ("gone", "holding", "alive"):
        await register(store, owner)
    await store.tasks.enqueue(new_task())
    await claim(store, "holding")
    await bury(store, "gone", "holding")
    clock.advance(31 * 86_400)
    long_ago = "'2025-01-01T00:00:00.000000Z'"
    sql(db, f"UPDATE supervisors SET ended_at = {long_ago} WHERE ended_at IS NOT NULL")  # noqa: S608 - its own text
    await register(store, "new")
    assert {row.id for row in await store.owners.all()} == {"holding", "alive", "new"}


async def test_what_the_store_says_of_itself(store: Store, clock: StillClock) -> None:
    """The counts that `doctor` and `stats` show, and that the file is sound."""
    await store.tasks.enqueue_many([new_task(queue=queue) for queue in "aab"] + [new_task("back", queue="c")])
    await store.tasks.enqueue(new_task(queue="a", delay=9.0))
    await register(store, "one")
    (back,) = await claim(store, "one", queues=["c"])
    await store.tasks.end(back.fence, store.tasks.release(back.fence, "worker:back"))
    (done, *_running) = await claim(store, "one", 2, ["a"])
    await end(store, done)
    health = Health(store.engine)
    assert await health.due() == {"b": 1}
    assert await health.waiting() == {"worker:back": 1}
    assert await health.running() == {"one": 1}
    assert await store.tasks.counts() == {"pending": 3, "running": 1, "completed": 1}
    assert (await health.damage(store.path), await health.structure(store.path)) == ([], [])
    assert await health.schema_version() == 1


async def test_lists_go_back_in_pages(store: Store) -> None:
    """Newest first, by status, session, parent, type and queue; every task once over all pages."""
    session = await store.messages.create_session(title="", model=None, system_prompt=None)
    ids = await store.tasks.enqueue_many(
        [
            new_task(
                f"t{number % 2}",
                queue=f"q{number % 3}",
                session_id=session.id if number % 5 else None,
                parent_task_id="p",
            )
            for number in range(60)
        ]
    )
    newest = ids[::-1]
    expected: dict[str, list[str]] = {
        "status": newest,
        "session_id": [task_id for task_id in newest if ids.index(task_id) % 5],
        "parent_task_id": newest,
        "type": [task_id for task_id in newest if ids.index(task_id) % 2],
        "queue": [task_id for task_id in newest if ids.index(task_id) % 3 == 1],
    }
    given = {"status": "pending", "session_id": session.id, "parent_task_id": "p", "type": "t1", "queue": "q1"}
    for name, wanted in expected.items():
        chosen = Filter(**{name: given[name]})  # type: ignore[arg-type]
        found: list[str] = []
        bare: list[str] = []
        after: Place | None = None
        while page := await store.listing.page(chosen, limit=7, after=after):
            assert len(page) <= 7
            bare += [each[0] for each in await store.listing.ids(chosen, limit=7, after=after)]
            found += [each.id for each in page]
            after = page[-1].place
        assert found == bare == wanted, name
    every = [each.id for each in await store.listing.page(Filter(**given), limit=100)]  # type: ignore[arg-type]
    assert every == [task_id for task_id in newest if all(task_id in wanted for wanted in expected.values())]


async def test_a_text_that_cannot_be_is_looked_for(store: Store) -> None:
    """An id with a lone surrogate is refused in one sentence, and nobody else is the worse for it."""
    for call in (store.tasks.get, store.tasks.status, store.messages.session, store.journal.steps):
        with pytest.raises(InvalidInput, match="a text with lone surrogates cannot be looked for"):
            await call("\ud800")
    with pytest.raises(TaskNotFound):
        await store.tasks.get("\x00")


async def test_a_row_that_is_no_text_is_looked_at(store: Store, db: Path) -> None:
    """It is told as unreadable; what does not touch it is told as ever (G9)."""
    good, bad = await store.tasks.enqueue_many([new_task(), new_task()])
    sql(db, f"UPDATE tasks SET queue = CAST(x'ff' AS TEXT) WHERE id = '{bad}'")  # noqa: S608 - a test's own text
    with pytest.raises(StoreError, match=f"task {bad}: its row is unreadable .a row holds text that is not UTF-8"):
        await store.tasks.get(bad)
    assert (await store.tasks.get(good)).id == good
