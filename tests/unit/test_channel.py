"""The wire between a supervisor and a child: messages whole and in order, errors that come back as what they were."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from taskrunner.core.errors import InvalidInput, StoreBusy, StoreError, StoreUnknown
from taskrunner.runtime import channel
from taskrunner.runtime.channel import FROM_CHILD, TO_CHILD, Alarm, Channel, FromChild, Interrupt, ToChild
from taskrunner.storage.engine import Refused, Rejected, Statement, Unit, Unreadable
from taskrunner.storage.remote import failed, rebuilt
from tests.stores import new_task, remote_store


@asynccontextmanager
async def wire() -> AsyncIterator[tuple[Channel[FromChild], Channel[ToChild]]]:
    """A supervisor's end and a child's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        here: Channel[FromChild] = Channel(ours, FROM_CHILD)
        there: Channel[ToChild] = Channel(theirs, TO_CHILD)
        async with anyio.create_task_group() as group:
            group.start_soon(here.pump)
            group.start_soon(there.pump)
            yield here, there
            group.cancel_scope.cancel()


async def test_messages_come_whole_and_in_order() -> None:
    """A thousand small ones, and one of 20 MB in their midst that no system call takes at once."""
    async with wire() as (here, there):
        sent = [Alarm("loop.blocked", {"number": number}) for number in range(1_000)]
        sent[500] = Alarm("loop.blocked", {"text": "x" * 20_000_000})
        for message in sent:
            there.put(message)
        got: list[FromChild] = []
        while len(got) < len(sent):
            got += await here.receive()
        assert got == sent


async def test_a_thread_may_say_something_while_the_loop_is_blocked() -> None:
    """What is put by a thread arrives without a turn of its own event loop, and mixes with nothing."""
    async with wire() as (here, there):
        for number in range(100):
            here.put(Interrupt(str(number), 1, "cancel"))
        thread = threading.Thread(target=here.put_now, args=(Interrupt("now", 1, "timeout"),))
        thread.start()
        thread.join()
        got: list[ToChild] = []
        while len(got) < 101:
            got += await there.receive()
        assert got[-1] == Interrupt("now", 1, "timeout")


async def test_what_a_full_wire_does_not_take_follows_by_itself() -> None:
    """What a thread puts while the other end is full arrives as soon as that one reads: nothing else has to be put."""
    async with wire() as (here, there):
        here.put(Interrupt("first", 1, "cancel"))
        assert await there.receive() == [Interrupt("first", 1, "cancel")]
        long = Interrupt("x" * 4_000_000, 1, "timeout")
        thread = threading.Thread(target=here.put_now, args=(long,))
        thread.start()
        thread.join()
        with anyio.fail_after(5):
            assert await there.receive() == [long]


async def test_an_answer_that_is_too_long_is_told_of(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that asks for more than a message can hold gets an error, and the supervisor goes on."""
    async with remote_store(db) as store:
        long = await store.tasks.enqueue(new_task(input="1" * 5_000))
        monkeypatch.setattr(channel, "_LONGEST", 4_000)
        with anyio.fail_after(5), pytest.raises(StoreError, match=r"Done of \d+ bytes: 4000 at most"):
            await store.tasks.get(long)
        assert await store.tasks.counts() == {"pending": 1}


async def test_the_end_of_the_other_one_is_noticed() -> None:
    """What was said before it is still heard; what is put after it goes nowhere."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            there: Channel[ToChild] = Channel(theirs, TO_CHILD)
            there.put(Alarm("loop.blocked", {}))
            await there.drained()
        here: Channel[FromChild] = Channel(ours, FROM_CHILD)
        assert await here.receive() == [Alarm("loop.blocked", {})]
        assert await here.receive() == []
        here.put_now(Interrupt("t", 1, "stop"))


@pytest.mark.parametrize(
    "error",
    [
        Refused(2, "complete", 1, 0),
        Rejected("enqueue", "FOREIGN KEY constraint failed"),
        Unreadable("task", "a row holds text that is not UTF-8"),
        StoreBusy("locked"),
        StoreUnknown("who knows"),
        StoreError("closed"),
        InvalidInput("no", path="a.b"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_back_as_what_it_was(error: Exception) -> None:
    """Of the same class, with the same text and the same fields."""
    back = rebuilt(failed(1, error))
    assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))


async def test_what_no_message_can_hold_is_refused_as_no_row_can(db: Path) -> None:
    """An integer of more than 64 bits and half a surrogate pair: the unit's own fault, and nobody else's."""
    async with remote_store(db) as store:
        with pytest.raises(Rejected, match="OverflowError"):
            await store.engine.write(Unit((Statement("task", {"id": 1 << 70}),)))
        with pytest.raises(InvalidInput, match="lone surrogates"):
            await store.engine.read(Statement("task", {"id": "\ud800"}))
        with store.engine.listen(("task:\ud800",)) as news:
            assert not await news.wait(0.01)
        with pytest.raises(StoreError, match="no lease of its own"):
            store.engine.beat(1.0, lambda: Unit(()), lambda _outcome: None)
        await store.tasks.enqueue(new_task())
        assert await store.tasks.counts() == {"pending": 1}


async def test_news_travel(db: Path) -> None:
    """Who listens on one end hears of a commit on the other, and only of its topics."""
    async with remote_store(db) as store:
        with store.engine.listen(("work",)) as work, store.engine.listen(("cancel",)) as cancel:
            await store.tasks.enqueue(new_task())
            assert await work.wait(5)
            assert not await cancel.wait(0.05)
