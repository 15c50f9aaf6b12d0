"""Hostile values at every door of the API: each is taken, or refused in one sentence, and nothing is half-stored.

TASKRUNNER_TEST_SEED gives other values, TASKRUNNER_TEST_INPUTS more of them.
"""

from __future__ import annotations

import enum
import math
import os
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from taskrunner import TaskContext, TaskRunner, TaskRunnerError
from taskrunner.core.settings import KNOBS, resolve
from tests.integration.machine import quick, sql

SEED = int(os.environ.get("TASKRUNNER_TEST_SEED", "1"))
INPUTS = int(os.environ.get("TASKRUNNER_TEST_INPUTS", "2000"))
LONGEST: Final = 1_000
"""Characters of a refusal at most: it is one sentence."""


class Rude:
    """An object that fights back."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __str__(self) -> str:
        raise RuntimeError("no str")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    def __hash__(self) -> int:
        raise RuntimeError("no hash")

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")

    def __len__(self) -> int:
        raise RuntimeError("no length")


class Lying(str):
    """A text that says that it is another."""

    __slots__ = ()

    def __len__(self) -> int:
        return 3

    def __str__(self) -> str:
        return "fine"


class Colour(enum.Enum):
    """A value that is none of JSON's."""

    RED = "red"


def _cycle() -> list[Any]:
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


def _deep(levels: int) -> Any:  # noqa: ANN401 - any JSON
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


TEXTS: Final = (
    "", " ", "a", "\x00", "a\x00b", "\ud800", "a\udfffb", "\x1b[31mred", "\x1b]52;c;aGk=\x07", "\u202eevil",
    "\ufeff", "é" * 200,
    "x" * 201, "x" * 100_000, "'; DROP TABLE tasks; --", "%s%n{}", "{0.__class__}", "../../etc/passwd",
    "nul\n\rline", "🦀" * 60,
    "null", "NaN", "1e999", "-0", "0x10", "90s", "-5s", "1e3s", "99999999999999d", "5x", "s", "1 s", "٣s",
    "default", "job", "on",
    "completed", "reuse", "user", "tool", "{", "[]", "\\u0000", "a" * 4_096, Lying("a\x00b"), Lying("x" * 5_000),
)  # fmt: skip
NUMBERS: Final = (
    0, 1, -1, 3, 9, 10, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63) - 1, 10**400, 10**5_000, 0.0, -0.0, 0.5, 1.5,
    -0.001, 1e-320, 1e308,
    math.nan, math.inf, -math.inf, True, False, Decimal("NaN"), Decimal("1e999999"), 1j,
)  # fmt: skip
MOMENTS: Final = (
    datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(2026, 1, 1),  # noqa: DTZ001 - a naive one is meant
    datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))),
    datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
    date(2026, 1, 1), timedelta(0), timedelta(seconds=-1), timedelta.max, timedelta.min, timedelta(milliseconds=1),
)  # fmt: skip
ODDITIES: Final[tuple[Any, ...]] = (
    None, (), [], {}, set(), frozenset({1}), b"", b"bytes", bytearray(b"x"), memoryview(b"x"), object(),
    object, Rude(), Colour.RED,
    print, int, ..., NotImplemented, range(3), Exception("x"), Path("x"), lambda: None, iter(()), {1: 2},
    {"a": {1, 2}},
    {"": ""}, {"\ud800": 1}, {"a": math.nan}, {"a": 2**70}, [_deep(99)], _deep(101), _deep(5_000), _cycle(),
    {"a": Rude()},
    {None: 1}, {"x": b"\xff"}, ["x" * 2_000_000], {"a": datetime(2026, 1, 1, tzinfo=UTC)}, [[], [[]]],
)  # fmt: skip


class Fuzz:
    """Calls of the API with values out of the bag, and what came of them."""

    def __init__(self, runner: TaskRunner, seed: int) -> None:
        self.runner = runner
        self.chance = random.Random(seed)
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.session: Any = None
        self.task: Any = None
        self.handle: Any = None

    def text(self) -> Any:  # noqa: ANN401 - any value at all
        """Mostly a text, and a text is mostly odd."""
        return self.chance.choice(TEXTS) if self.chance.random() < 0.7 else self.anything()

    def anything(self) -> Any:  # noqa: ANN401 - any value at all
        """Any of them."""
        return self.chance.choice(self.chance.choice((TEXTS, NUMBERS, MOMENTS, ODDITIES)))

    def json(self) -> Any:  # noqa: ANN401 - any value at all
        """Something that may be JSON."""
        match self.chance.randrange(4):
            case 0:
                return (
                    {self.chance.choice(TEXTS): self.anything()}
                    if self.chance.random() < 0.8
                    else {"name": self.anything()}
                )
            case 1:
                return [self.anything() for _ in range(self.chance.randrange(3))]
            case 2:
                return {"name": {"deep": [self.anything()]}}
        return self.anything()

    def some(self, **makers: Callable[[], Any]) -> dict[str, Any]:
        """One or two of these keywords: of more, one would be refused nearly always."""
        return {name: make() for name, make in makers.items() if self.chance.random() < min(0.3, 1.5 / len(makers))}

    def options(self) -> dict[str, Any]:
        """Options of an enqueue, or some that there are not."""
        anything, text = self.anything, self.text
        return self.some(
            priority=anything, queue=text, delay=anything, run_at=anything, session_id=text, unique_key=text,
            on_conflict=text, idempotency_key=text, max_retries=anything, timeout=anything,
        )  # fmt: skip

    async def enqueue_by_name(self) -> object:
        """By a name, with an input and options."""
        name = self.text() if self.chance.random() < 0.5 else "job"
        return await self.runner.enqueue(name, self.json(), **self.options())

    async def enqueue_typed(self) -> object:
        """By its definition."""
        return await self.task.options(**self.options()).enqueue(*[self.anything()], **self.some(count=self.anything))

    async def enqueue_many(self) -> object:
        """Several in one commit, of which one may be wrong."""
        good = [self.task.bind("x") for _ in range(2)]
        return await self.runner.enqueue_many([*good, self.task.options(**self.options()).bind(self.text())])

    async def define(self) -> object:
        """A definition."""
        tasks = TaskRunner(self.runner.store.path)

        async def job(name: str = "x") -> None: ...

        named = self.some(
            name=self.text, queue=self.text, priority=self.anything, timeout=self.anything, max_retries=self.anything,
            retry=self.anything, wait=self.anything, max_losses=self.anything,
        )  # fmt: skip
        return tasks.task(**named)(job)

    async def look(self) -> object:
        """Lists, rows and handles."""
        text, anything = self.text, self.anything
        match self.chance.randrange(5):
            case 0:
                return await self.runner.tasks.get(text())
            case 1:
                return await self.runner.handle(text()).info()
            case 2:
                return await self.runner.sessions.get(text())
            case 3:
                given = self.some(status=text, limit=anything, after=text)
                return await self.runner.sessions.list(**given)
        given = self.some(
            status=text, type=text, queue=text, session_id=text, parent_task_id=text, limit=anything, after=text
        )
        return await self.runner.tasks.list(**given)

    async def handle_verbs(self) -> object:
        """A handle's own."""
        match self.chance.randrange(3):
            case 0:
                return await self.runner.handle(self.text()).cancel(self.text())
            case 1:
                return await self.handle.cancel(self.anything())
        with suppress(TimeoutError):
            waits = [*MOMENTS, *TEXTS[:12], 0, -1, 0.01, 10**400, math.nan, -math.inf, True, Rude(), []]
            await self.handle.result(self.chance.choice([wait for wait in waits if wait is not timedelta.max]))
        return None

    async def talk(self) -> object:
        """Sessions and messages."""
        if self.chance.random() < 0.2:
            return await self.runner.sessions.create(
                **self.some(title=self.text, model=self.text, system_prompt=self.text)
            )
        if self.chance.random() < 0.2:
            return await self.session.recent(self.anything())
        role = "user" if self.chance.random() < 0.7 else self.text()
        given = self.some(
            tool_calls=self.json,
            tool_call_id=self.text,
            parent_msg_id=self.text,
            token_count=self.anything,
            payload=self.json,
        )
        return await self.session.add(role, self.text(), **given)

    async def settings(self) -> object:
        """Settings, by every route."""
        route = self.chance.choice(["flags", "override", "code", "env", "pyproject"])
        knob = self.chance.choice(KNOBS)
        name = knob.name if self.chance.random() < 0.9 else str(self.chance.choice(TEXTS[:30]))
        if route == "env":
            value = self.chance.choice([text for text in TEXTS if "\x00" not in text])
            return resolve(env={f"TASKRUNNER_{name.upper()}": value})
        given: dict[str, Any] = {route: {name: self.anything()}}
        return resolve(**given)

    async def listen(self) -> object:
        """A listener."""
        TaskRunner(self.runner.store.path).on(self.text(), self.anything())
        return None

    async def one(self) -> None:
        """One call, and what is wrong with how it went."""
        calls: list[Callable[[], Awaitable[object]]] = [
    self.enqueue_by_name, self.enqueue_typed, self.enqueue_many, self.define, self.look, self.handle_verbs,
    self.talk,
            self.settings, self.listen,
        ]  # fmt: skip
        call = self.chance.choice(calls)
        name = call.__name__
        began = time.monotonic()
        try:
            await call()
        except (TaskRunnerError, TypeError) as error:
            self.outcomes[f"{name}: refused"] += 1
            self.wrong += [f"{name}: {problem}" for problem in _problems(error)]
        except BaseException as error:  # noqa: BLE001 - that is what is looked for
            self.wrong.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
        else:
            self.outcomes[f"{name}: taken"] += 1
        if (took := time.monotonic() - began) > 1:
            self.wrong.append(f"{name} took {took:.1f} s")


def _problems(error: Exception) -> Iterator[str]:
    text = str(error)
    if not text or "\n" in text or len(text) > LONGEST:
        yield f"no sentence: {type(error).__name__}: {text[:200]!r} ({len(text):,} characters)"
    if any(ord(sign) < 32 or ord(sign) == 127 for sign in text):
        yield f"control characters: {text[:200]!r}"
    if not isinstance(error, TaskRunnerError) and (at := _where(error)):
        yield f"a TypeError out of our own code at {at}: {text[:200]!r}"
    if text != text.encode(errors="replace").decode():
        yield f"no Unicode: {text[:200]!r}"


def _where(error: Exception) -> str:
    """The place below our own doors that raised it, if it was not the door itself."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}")
        trace = trace.tb_next
    return frames[-1] if "/taskrunner/" in frames[-1] and "signature" not in frames[-1] else ""


@pytest.mark.timeout(120)
async def test_hostile_values_at_every_door(db: Path) -> None:
    """A5: no traceback of ours, no hang beyond a second, nothing half-stored, and the store works as before."""
    runner = quick(db)

    @runner.task
    async def job(name: str, count: int = 1) -> str:
        return name * count

    async with runner:
        fuzz = Fuzz(runner, SEED)
        fuzz.task = job
        fuzz.session = await runner.sessions.create(title="talk")
        fuzz.handle = await job.options(delay="30d").enqueue("x")
        for _ in range(INPUTS):
            await fuzz.one()
        print(dict(fuzz.outcomes))  # noqa: T201 - for who looks at a failure
        assert fuzz.wrong == []
        assert (
            min(fuzz.outcomes[f"{name}: refused"] for name in ("enqueue_by_name", "talk", "settings", "look"))
            > INPUTS / 40
        )
        assert sum(count for name, count in fuzz.outcomes.items() if name.endswith("taken")) > INPUTS / 20
        for task in await runner.tasks.list(limit=1_000):  # what was taken can be read
            assert task.type
    for check in (
        "PRAGMA integrity_check",
        "SELECT 'ok' WHERE NOT EXISTS (SELECT 1 FROM tasks WHERE NOT json_valid(input))",
    ):
        assert sql(db, check) == [["ok"]]


PARTS: Final = ("progress", "step", "key", "result", "message", "raise")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("part", PARTS)
async def test_hostile_values_inside_a_task(db: Path, part: str) -> None:
    """A5: progress, step names, keys, values, results, messages, errors: the task ends, and the supervisor goes on."""
    runner = quick(db)
    count = max(10, INPUTS // 100)
    wrong: list[str] = []

    @runner.task(max_retries=0)
    async def hostile(ctx: TaskContext, seed: int) -> Any:  # noqa: ANN401 - any value at all
        fuzz = Fuzz(runner, seed)
        try:
            match part:
                case "progress":
                    await ctx.progress(fuzz.anything(), fuzz.text())
                case "step":
                    name = fuzz.text()
                    await ctx.step(name, fuzz.anything)
                case "key":
                    given = fuzz.some(
                        key=fuzz.text,
                        max_retries=fuzz.anything,
                        timeout=fuzz.anything,
                        wait=fuzz.anything,
                        retry=fuzz.anything,
                    )
                    await ctx.options(**given).step("s", int, 1)
                case "message":
                    assert ctx.session is not None
                    await ctx.session.add("user", fuzz.text(), payload=fuzz.json())
                case "raise":
                    raise fuzz.chance.choice([RuntimeError, ValueError, KeyError])(fuzz.anything())
                case "result":
                    return fuzz.json()
        except (TaskRunnerError, TypeError) as error:
            wrong.extend(_problems(error))
            raise
        return None

    session = ""
    async with runner:
        session = (await runner.sessions.create()).id
    async with runner.working(concurrency=5):
        for number in range(count):
            handle = await hostile.options(session_id=session).enqueue(SEED * 1_000_000 + number)
            with anyio.fail_after(5):
                with suppress(TaskRunnerError, TypeError):
                    await handle.result()
                assert await handle.status() in {"completed", "failed"}
    assert wrong == []
    assert sql(db, "SELECT count(*) FROM tasks WHERE status IN ('completed', 'failed') AND attempt = 1") == [[count]]
    assert sql(db, "PRAGMA integrity_check") == [["ok"]]
