"""An engine whose database another process has open: a child's statements travel to its supervisor's one writer.

A write is data, so nothing above the seam is made a second time: in the child `RemoteEngine` stands where the real
engine stands elsewhere, and asks; in the supervisor a `Desk` for each child has the real one answer. An error comes
back as what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio
import msgspec

from taskrunner.core.errors import InvalidInput, StoreBusy, StoreError, StoreUnknown
from taskrunner.core.loop import LoopRef, Reply, detach
from taskrunner.storage.bells import Bells, folder_of
from taskrunner.storage.changes import Changes, News
from taskrunner.storage.engine import (
    Answer,
    Outcome,
    Question,
    Refused,
    Rejected,
    Rows,
    Statement,
    Unit,
    Unreadable,
    Value,
)

if TYPE_CHECKING:
    from taskrunner.storage.engine import Engine

LOOK_ELSEWHERE = 3_600.0
"""Seconds of one wait for news, which goes on for as long as the child listens."""


class Frame(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    """What is sent from process to process; each kind has its name as a tag."""


# ── what a child asks ─────────────────────────────────────────────────────────────────────────────────────────────────


class Read(Frame, frozen=True):
    """Run one SELECT."""

    id: int
    statement: Statement


class Ask(Frame, frozen=True):
    """Run one SELECT of the user's."""

    id: int
    question: Question


class Unask(Frame, frozen=True):
    """Nobody waits for the answer any more."""

    id: int


class Write(Frame, frozen=True):
    """Commit a unit."""

    id: int
    unit: Unit


class Listen(Frame, frozen=True):
    """Tell of commits that may concern one of the topics, from now on."""

    id: int
    topics: tuple[str, ...]


class Unlisten(Frame, frozen=True):
    """Tell no more."""

    id: int


# ── what it is answered ───────────────────────────────────────────────────────────────────────────────────────────────


class Done(Frame, frozen=True):
    """The rows of each statement; of a question first the one row of its columns' names."""

    id: int
    rows: list[list[tuple[Value, ...]]]


class Failed(Frame, frozen=True):
    """Why nothing was read or written."""

    id: int
    kind: str
    details: tuple[int | str, ...]


class Heard(Frame, frozen=True):
    """There is news for a listener."""

    id: int


Asked: TypeAlias = Read | Ask | Unask | Write | Listen | Unlisten
Answered: TypeAlias = Done | Failed | Heard

_WITH_NAME = {"Rejected": Rejected, "Unreadable": Unreadable}
_WITH_TEXT = {"StoreBusy": StoreBusy, "StoreUnknown": StoreUnknown, "StoreError": StoreError}


def failed(number: int, error: Exception) -> Failed:
    """An error as it travels: its kind, and what it is made of."""
    kind = type(error).__name__
    if isinstance(error, Refused):
        return Failed(number, "Refused", (error.index, error.name, error.expected, error.got))
    if isinstance(error, Rejected):
        return Failed(number, kind, (error.name, error.reason))
    if isinstance(error, InvalidInput):
        return Failed(number, "InvalidInput", (str(error), error.path))
    if kind in _WITH_TEXT:
        return Failed(number, kind, (str(error),))
    return Failed(number, "StoreError", (f"{kind}: {error}",))


def rebuilt(answer: Failed) -> StoreError | InvalidInput:
    """The error that travelled."""
    details: Any = answer.details
    if answer.kind == "Refused":
        return Refused(*details)
    if answer.kind == "InvalidInput":
        return InvalidInput(details[0], path=details[1])
    kind: Callable[..., StoreError] = _WITH_NAME.get(answer.kind) or _WITH_TEXT.get(answer.kind, StoreError)
    return kind(*details)


class RemoteEngine:
    """The child's end. `send` hands a question over, on the event loop; `hear` takes the answers."""

    dialect: Literal["sqlite", "postgres"] = "sqlite"

    def __init__(self, path: Path, send: Callable[[Asked], None]) -> None:
        self.path = path
        self.bells = Bells(folder_of(path), Changes(lambda _pace: None))  # the supervisor's ring for its children, too
        self._send = send
        self._loop = LoopRef()
        self._numbers = count(1)
        self._waiting: dict[int, Callable[[Done | Failed], None]] = {}
        self._listening: dict[int, News] = {}
        self._closed = False

    def hear(self, answer: Answered) -> None:
        """Take one answer. What nobody waits for any more is dropped."""
        if isinstance(answer, Heard):
            if (news := self._listening.get(answer.id)) is not None:
                news.wake()
        elif (waiting := self._waiting.pop(answer.id, None)) is not None:
            waiting(answer)

    async def read(self, statement: Statement) -> Rows:
        """Run one SELECT in the supervisor. Raises as the engine there does."""
        try:
            _number, reply = self._put(lambda number: Read(number, statement))
        except UnicodeEncodeError:
            message = "a text with lone surrogates cannot be looked for: the store holds none"
            raise InvalidInput(message) from None
        return _done(await reply.wait())[0]

    async def ask(self, question: Question) -> Answer:
        """Run one SELECT of the user's in the supervisor, and let it go there when this wait is cancelled."""
        number, reply = self._put(lambda number: Ask(number, question))
        try:
            columns, rows = _done(await reply.wait())
        except BaseException:
            if self._waiting.pop(number, None) is not None:
                self._send(Unask(number))
            raise
        return Answer(tuple(map(str, columns[0])), rows)

    def _put(self, ask: Callable[[int], Read | Ask]) -> tuple[int, Reply[Done | Failed]]:
        reply: Reply[Done | Failed] = self._loop.reply()
        number = self._expect(reply.give)
        try:
            self._send(ask(number))
        except BaseException:
            del self._waiting[number]
            raise
        return number, reply

    def write(self, unit: Unit) -> Coroutine[Any, Any, list[Rows]]:
        """Commit a unit in the supervisor; it is durable when this returns. A cancelled wait does not take it back."""
        reply: Reply[Outcome] = self._loop.reply()
        self.write_soon(unit, reply.give)
        return _outcome(reply)

    def write_soon(self, unit: Unit, done: Callable[[Outcome], None]) -> None:
        """Commit a unit and call `done` on the event loop.

        Raises:
            StoreError: the store is closed.
        """

        def give(answer: Done | Failed) -> None:
            error = rebuilt(answer) if isinstance(answer, Failed) else None
            done(StoreError(str(error)) if isinstance(error, InvalidInput) else error or answer.rows)  # type: ignore[union-attr]

        number = self._expect(give)
        try:
            self._send(Write(number, unit))
        except Exception as error:  # noqa: BLE001 - a value that no message can hold, as no row could: the unit's fault
            del self._waiting[number]
            name = unit.statements[-1].name
            self._loop.post(done, Rejected(name, f"{type(error).__name__}: {error}"))

    def submit(self, unit: Unit, done: Callable[[Outcome], None]) -> None:
        """Commit a unit and call `done`, on the event loop; from any thread."""
        self._loop.post(self.write_soon, unit, done)

    def beat(self, interval: float, make: Callable[[], Unit], done: Callable[[Outcome], None]) -> Callable[[], None]:
        """Refuse: a child has no lease of its own.

        Raises:
            StoreError: always.
        """
        message = (
            f"a child process has no lease of its own: its supervisor beats (every {interval:g} s, {make}, {done})"
        )
        raise StoreError(message)

    @contextmanager
    def listen(self, topics: Sequence[str]) -> Iterator[News]:
        """Hear of commits that may concern one of the topics."""
        number = next(self._numbers)
        news = self._listening[number] = News()
        with suppress(UnicodeEncodeError):  # of what the store cannot hold there is no news
            self._send(Listen(number, tuple(topics)))
        try:
            yield news
        finally:
            del self._listening[number]
            self._send(Unlisten(number))

    async def close(self) -> None:
        """Take no more questions. Nothing is open here."""
        self._closed = True

    def _expect(self, give: Callable[[Done | Failed], None]) -> int:
        if self._closed:
            message = "the store is closed"
            raise StoreError(message)
        number = next(self._numbers)
        self._waiting[number] = give
        return number


def _done(answer: Done | Failed) -> list[Rows]:
    if isinstance(answer, Failed):
        raise rebuilt(answer)
    return answer.rows


async def _outcome(reply: Reply[Outcome]) -> list[Rows]:
    outcome = await reply.wait()
    if isinstance(outcome, StoreError):
        raise outcome
    return outcome


class Desk:
    """The supervisor's end, for one child: what it asks is asked of the real engine. It belongs to the event loop."""

    def __init__(self, engine: Engine, send: Callable[[Answered], None]) -> None:
        self._engine = engine
        self._send = send
        self._listening: dict[int, tuple[ExitStack, anyio.CancelScope]] = {}
        self._asked: dict[int, anyio.CancelScope] = {}
        self._closed = False

    def take(self, question: Asked) -> None:
        """Have a question answered, sooner or later."""
        match question:
            case Write(number, unit):
                self._write(number, unit)
            case Read():
                detach(lambda: self._read(question))
            case Ask(number):
                self._asked[number] = anyio.CancelScope()
                detach(lambda: self._ask(question, self._asked[number]))
            case Unask(number):
                if (asked := self._asked.get(number)) is not None:
                    asked.cancel()
            case Listen(number, topics):
                stack, scope = ExitStack(), anyio.CancelScope()
                news = stack.enter_context(self._engine.listen(topics))
                self._listening[number] = (stack, scope)
                detach(lambda: self._tell(number, news, scope))
            case Unlisten(number):
                self._stop(number)

    def close(self) -> None:
        """Answer no more: the child is gone."""
        self._closed = True
        for number in list(self._listening):
            self._stop(number)
        for asked in self._asked.values():
            asked.cancel()

    def _write(self, number: int, unit: Unit) -> None:
        def done(outcome: Outcome) -> None:
            self._answer(failed(number, outcome) if isinstance(outcome, StoreError) else Done(number, outcome))

        try:
            self._engine.write_soon(unit, done)
        except StoreError as error:
            self._answer(failed(number, error))

    async def _read(self, question: Read) -> None:
        try:
            rows = await self._engine.read(question.statement)
        except Exception as error:  # noqa: BLE001 - whatever it is, who asked has to hear of it
            self._answer(failed(question.id, error))
        else:
            self._answer(Done(question.id, [rows]))

    async def _ask(self, question: Ask, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                answer = await self._engine.ask(question.question)
                self._answer(Done(question.id, [[answer.columns], answer.rows]))
        except Exception as error:  # noqa: BLE001 - as above
            self._answer(failed(question.id, error))
        finally:
            del self._asked[question.id]

    async def _tell(self, number: int, news: News, scope: anyio.CancelScope) -> None:
        with scope:
            while True:
                if await news.wait(LOOK_ELSEWHERE):
                    self._answer(Heard(number))

    def _stop(self, number: int) -> None:
        stack, scope = self._listening.pop(number, (None, None))
        if stack is not None and scope is not None:
            stack.close()
            scope.cancel()

    def _answer(self, answer: Answered) -> None:
        if self._closed:
            return
        try:
            self._send(answer)
        except ValueError as error:  # it is too long for one message
            if isinstance(answer, Heard):
                raise
            self._send(failed(answer.id, StoreError(str(error))))
