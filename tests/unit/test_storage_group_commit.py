"""Many units, one commit: each is written whole or not at all, in order, and everybody is answered."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from taskrunner.core.errors import StoreBusy, StoreError, StoreUnknown
from taskrunner.storage.engine import Outcome, Refused, Rejected, Statement, Unit
from taskrunner.storage.store import Store
from tests.rivals import let_go, write_lock
from tests.stores import NOW, open_store, sql, sqlite_of


def enqueue(name: str, **given: Any) -> Statement:  # noqa: ANN401 - whatever the statement takes, and what it does not
    """A statement that stores one task, unless something in it is wrong."""
    params: dict[str, Any] = dict.fromkeys(("session_id", "parent_task_id", "timeout", "unique_key", "idempotency_key"))
    params |= {"id": name, "type": name, "input": "{}", "queue": "q", "priority": 5, "run_at": NOW, "now": NOW}
    params |= {"max_retries": 1, "max_losses": 5, "default_retries": 1, "default_losses": 5}
    expect = given.pop("expect", 1)
    return Statement("enqueue", {**params, **given}, expect_rows=expect)


NOBODY = Statement("fence", {"task": "nobody", "owner": "", "attempt": 0}, expect_rows=1)

BAD: dict[str, tuple[type[StoreError], str, list[Statement]]] = {
    "a guard that fails": (Refused, "fence", [NOBODY, enqueue("never")]),
    "a guard after a write": (Refused, "fence", [enqueue("never"), NOBODY]),
    "one statement that changes nothing": (Refused, "fence", [NOBODY]),
    "one statement that changes too much": (Refused, "expected 2 rows and got 1", [enqueue("never", expect=2)]),
    "a constraint": (Rejected, "FOREIGN KEY", [enqueue("never", session_id="nobody")]),
    "a constraint after a write": (Rejected, "CHECK", [enqueue("never"), enqueue("never 2", priority=11)]),
    "a trigger": (Rejected, "not replaced", [enqueue("never"), enqueue("never")]),
    "a lone surrogate": (Rejected, "surrogates not allowed", [enqueue("never", type="\ud800")]),
    "a lone surrogate after a write": (Rejected, "surrogates", [enqueue("never"), enqueue("never 2", type="\ud800")]),
    "a number of 65 bits": (Rejected, "OverflowError", [enqueue("never", priority=2**64)]),
    "a value of no kind": (Rejected, "TypeError", [enqueue("never", type=object())]),
    "no such statement": (Rejected, "KeyError", [enqueue("never"), Statement("nothing", {})]),
    "a parameter that is missing": (Rejected, "KeyError", [enqueue("never"), Statement("beat", {})]),
}


async def names(store: Store) -> list[str]:
    """The types of all tasks in their order."""
    return [row[0] for row in sql(store.path, "SELECT type FROM tasks ORDER BY seq")]


@pytest.mark.parametrize("bad", BAD)
async def test_a_bad_unit_undoes_itself_alone(db: Path, bad: str) -> None:
    """Whatever is wrong with one unit, the others of its commit are written and it is not."""
    kind, why, statements = BAD[bad]
    async with open_store(db) as store:
        units = [Unit((enqueue("before"),)), Unit(tuple(statements)), Unit((enqueue("after"), enqueue("after 2")))]
        outcomes = await asyncio.gather(*map(store.engine.write, units), return_exceptions=True)
        assert type(outcomes[1]) is kind
        assert why in str(outcomes[1])
        assert await names(store) == ["before", "after", "after 2"]
        await store.engine.write(Unit((enqueue("later"),)))


async def test_bad_units_among_hundreds(db: Path) -> None:
    """Of 900 units at once, a third of them bad in every way there is, exactly the good ones are there."""
    async with open_store(db) as store:
        units, good = [], []
        for number in range(900):
            if number % 3:
                good.append(str(number))
                units.append(Unit((enqueue(str(number)),)))
            else:
                _kind, _why, statements = list(BAD.values())[number % len(BAD)]
                units.append(Unit(tuple(statements)))
        outcomes = await asyncio.gather(*map(store.engine.write, units), return_exceptions=True)
        assert [isinstance(outcome, StoreError) for outcome in outcomes] == [number % 3 == 0 for number in range(900)]
        assert await names(store) == good


async def test_a_statement_that_loses_the_transaction(db: Path) -> None:
    """One unit meets a full disk and SQLite undoes the whole transaction: the others are written all the same."""
    async with open_store(db) as store:
        writer = sqlite_of(store)._writer
        assert writer is not None
        pages = int(writer.connection.pragma("page_count"))
        writer.connection.pragma("max_page_count", pages + 60)
        large = "x" * 1_000_000
        units = [Unit((enqueue(f"{number}", input=large if number == 5 else "{}"),)) for number in range(10)]
        outcomes = await asyncio.gather(*map(store.engine.write, units), return_exceptions=True)
        assert isinstance(outcomes[5], StoreBusy)
        written = [str(number) for number, outcome in enumerate(outcomes) if not isinstance(outcome, StoreError)]
        assert written[:5] == ["0", "1", "2", "3", "4"]
        assert await names(store) == written
        writer.connection.pragma("max_page_count", 1_000_000)
        await store.engine.write(Unit((enqueue("after", input=large),)))


async def test_units_are_written_in_order(db: Path) -> None:
    """From one caller in the order of its calls; a crowd larger than one commit too, in a few commits."""
    async with open_store(db) as store:
        writer = sqlite_of(store)._writer
        assert writer is not None
        before = writer._token
        await asyncio.gather(*(store.engine.write(Unit((enqueue(str(number)),))) for number in range(3_000)))
        assert await names(store) == [str(number) for number in range(3_000)]
        assert 3 <= writer._token - before <= 300


async def test_news_comes_after_the_commit(db: Path) -> None:
    """Who listens is woken when the rows are there, and not for what was refused."""
    async with open_store(db) as store:
        with store.engine.listen(["work"]) as news:
            with pytest.raises(Refused):
                await store.engine.write(Unit((NOBODY,), topics=("work",)))
            await news.wait(0.2)
            await store.engine.write(Unit((enqueue("other"),), topics=("else",)))
            assert not await news.wait(0.2)
            await store.engine.write(Unit((enqueue("work"),), topics=("work",)))
            assert await news.wait(0)


async def test_a_cancelled_wait_does_not_take_the_unit_back(db: Path) -> None:
    """What was handed over is written, whether somebody still waits for it or not."""
    async with open_store(db) as store:
        for number in range(50):
            with anyio.move_on_after(0):
                await store.engine.write(Unit((enqueue(str(number)),)))
        await store.engine.write(Unit((enqueue("last"),)))
        assert await names(store) == [*map(str, range(50)), "last"]


# ── closing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_was_submitted_is_written_before_the_store_closes(db: Path) -> None:
    """Closing waits for the queue; afterwards every call is refused at once, in one sentence."""
    async with open_store(db) as store:
        writes = [asyncio.create_task(store.engine.write(Unit((enqueue(str(number)),)))) for number in range(2_000)]
        await asyncio.sleep(0)
        await store.engine.close()
        await asyncio.gather(*writes)
        assert len(await names(store)) == 2_000
        for call in (
            store.engine.write(Unit((enqueue("late"),))),
            store.tasks.counts(),
            store.tasks.claim("me", [], 1),
        ):
            with anyio.fail_after(1), pytest.raises(StoreError, match="the store is closed"):
                await call
        with pytest.raises(StoreError, match="the store is closed"):
            store.engine.submit(Unit((enqueue("late"),)), print)


async def test_threads_that_submit_while_the_store_closes(db: Path) -> None:
    """From any thread, until the last moment: each call is refused, or answered and written."""
    for round_ in range(10):
        told: list[Outcome] = []
        taken = [0] * 4
        async with open_store(db) as store:
            engine, begin = store.engine, threading.Event()

            def submit(
                thread: int, begin: threading.Event = begin, told: list[Outcome] = told, round_: int = round_
            ) -> None:
                begin.wait()
                for number in range(100_000):
                    try:
                        engine.submit(Unit((enqueue(f"{round_} {thread} {number}"),)), told.append)  # noqa: B023
                    except StoreError:
                        return
                    taken[thread] += 1  # noqa: B023

            threads = [threading.Thread(target=submit, args=(thread,)) for thread in range(4)]
            for each in threads:
                each.start()
            begin.set()
            await asyncio.sleep(0.002)
        for each in threads:
            each.join()
        assert len(told) == sum(taken)
        assert not [outcome for outcome in told if isinstance(outcome, StoreError)]
        assert sql(db, f"SELECT count(*) FROM tasks WHERE type GLOB '{round_} *'") == [[sum(taken)]]  # noqa: S608


# ── faults of our own ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_nobody_waits_for_a_writer_that_failed(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in the writer itself is told to everybody who waits, as unknown, and the writer goes on."""
    async with open_store(db) as store:
        with monkeypatch.context() as patch:
            patch.setattr(sqlite_of(store)._writer, "commit", lambda *_units: 1 / 0)
            writes = [store.engine.write(Unit((enqueue(str(number)),))) for number in range(10)]
            with anyio.fail_after(5):
                outcomes = await asyncio.gather(*writes, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [StoreUnknown] * 10
            assert "ZeroDivisionError" in str(outcomes[0])
        await store.engine.write(Unit((enqueue("after"),)))
        assert await names(store) == ["after"]


async def test_a_callback_that_raises_harms_nobody(db: Path) -> None:
    """Callbacks and heart beats run in the writer's thread: their own errors stay theirs."""
    async with open_store(db) as store:
        beats: list[int] = []

        def raises(_outcome: Outcome) -> None:
            beats.append(1)
            raise ValueError

        def make() -> Unit:
            beats.append(0)
            raise ValueError

        store.engine.submit(Unit((enqueue("1"),)), raises)
        stop_beating = store.engine.beat(0.01, make, raises)
        await store.engine.write(Unit((enqueue("2"),)))
        await asyncio.sleep(0.1)
        stop_beating()
        await store.engine.write(Unit((enqueue("3"),)))
        assert beats.count(0) >= 2
        assert await names(store) == ["1", "2", "3"]


# ── the heart ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Heart:
    """A heart that beats by storing tasks."""

    def __init__(self, store: Store, interval: float) -> None:
        self.moments: list[float] = []
        self.outcomes: list[Outcome] = []
        self.stop = store.engine.beat(interval, self.make, self.outcomes.append)

    def make(self) -> Unit:
        """One beat."""
        self.moments.append(time.monotonic())
        return Unit((enqueue(f"beat {len(self.moments)}"),))

    def longest_pause(self) -> float:
        """Seconds between two beats at most."""
        return max(after - before for before, after in zip(self.moments, self.moments[1:], strict=False))


async def test_it_beats_while_the_writer_is_busy_and_the_loop_is_blocked(db: Path) -> None:
    """The beat is first in line, and no user code can hold it up."""
    async with open_store(db, durability="normal") as store:
        heart = Heart(store, 0.05)
        busy = time.monotonic() + 0.6
        while time.monotonic() < busy:
            await asyncio.gather(*(store.engine.write(Unit((NOBODY,))) for _ in range(500)), return_exceptions=True)
        beaten = len(heart.moments)
        assert beaten >= 1
        time.sleep(0.6)  # the loop is blocked
        assert len(heart.moments) >= beaten + 1
        assert heart.longest_pause() < 1.5
        heart.stop()
        await store.engine.write(Unit((enqueue("last"),)))
        beaten = len(heart.moments)
        await asyncio.sleep(0.2)
        assert len(heart.moments) == beaten == len(heart.outcomes)
        assert not [outcome for outcome in heart.outcomes if isinstance(outcome, StoreError)]


async def test_a_store_that_another_program_has_locked(db: Path) -> None:
    """After the busy timeout each call says that nothing was written, and nothing was; later all goes on (B57)."""
    async with open_store(db, lease=4, heartbeat=1, busy_timeout=0.3) as store:
        await store.engine.write(Unit((enqueue("before"),)))
        with write_lock(db) as rival:
            heart = Heart(store, 0.1)
            began = time.monotonic()
            writes = [store.engine.write(Unit((enqueue(f"locked {number}"),))) for number in range(100)]
            outcomes = await asyncio.gather(*writes, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {StoreBusy}
            assert "another program held the write lock for too long; nothing was written" in str(outcomes[0])
            assert 0.2 < time.monotonic() - began < 3
            assert await store.tasks.counts() == {"pending": 1}  # looking goes on
            await asyncio.sleep(0.4)
            assert isinstance(heart.outcomes[0], StoreBusy)
            waiting = asyncio.create_task(store.engine.write(Unit((enqueue("in time"),))))
            await asyncio.sleep(0.1)
            let_go(rival)
            await waiting
        await asyncio.sleep(0.8)  # a beat is tried again after half a second
        assert not isinstance(heart.outcomes[-1], StoreError)
        heart.stop()
        await store.engine.write(Unit((enqueue("after"),)))
        assert [name for name in await names(store) if "beat" not in name] == ["before", "in time", "after"]
