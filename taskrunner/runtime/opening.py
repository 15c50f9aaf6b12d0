"""A runner's store: closed, or open in one event loop, however often it was entered."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio

from taskrunner.core.bridge import Bridge
from taskrunner.core.clock import Clock
from taskrunner.core.errors import NotOpen
from taskrunner.core.loop import FORKED, LoopRef
from taskrunner.core.redaction import Redaction
from taskrunner.core.settings import Settings, read_pyproject, resolve
from taskrunner.runtime import origin
from taskrunner.storage.store import Store


class Opening:
    """What can be opened and closed. `code` are the settings that the program gives; None: not given."""

    def __init__(self, redaction: Redaction, /, **code: object) -> None:
        self.redaction = redaction
        """What is hidden of the values of its tasks."""
        self._code = code
        self._override: dict[str, object] = {}
        self._clock = Clock()
        self._store: Store | None = None
        self._settings: Settings | None = None
        self._closing: AsyncExitStack | None = None
        self._opened = 0
        self._loop: LoopRef | None = None
        self._is_child = False
        self._door = anyio.Lock()
        self._door_of: object = None

    @contextmanager
    def override(self, *, db: str | Path | None = None, **settings: object) -> Iterator[Self]:
        """Other settings than the code's own, for tests and for programs that start this one; for the next opening."""
        before = self._override
        given = {key: value for key, value in {"db": db, **settings}.items() if value is not None}
        self._override = {**before, **given}
        try:
            yield self
        finally:
            self._override = before

    @contextmanager
    def clocked(self, clock: Clock) -> Iterator[Self]:
        """Another clock for time and chance, for tests and simulations; for the next opening."""
        before, self._clock = self._clock, clock
        try:
            yield self
        finally:
            self._clock = before

    # ── open ─────────────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def is_open(self) -> bool:
        """Whether the store is open."""
        return self._store is not None

    @property
    def store(self) -> Store:
        """The open store, for handles and doors.

        Raises:
            NotOpen: the runner is not open, or was opened by the process that this one was forked from.
        """
        if self._store is None or self._loop is None:
            raise NotOpen
        if self._loop.forked:
            raise NotOpen(FORKED)
        return self._store

    @property
    def settings(self) -> Settings:
        """The settings as they are in force now, or would be at the next opening.

        Raises:
            InvalidInput: a setting is wrong, or two contradict each other.
        """
        return self._settings or resolve(None, self._override, self._code, os.environ, read_pyproject())

    async def __aenter__(self) -> Self:
        """Open the store as a client: enqueue, look, wait for results. Every opening has its closing.

        Raises:
            StoreError: it cannot be opened; the sentence says why.
            InvalidInput: a setting is wrong, or two contradict each other.
            NotOpen: it is open in another event loop, or was opened by the process that this one was forked from.
        """
        if self._loop is not None and self._loop.forked:
            raise NotOpen(FORKED)
        here = LoopRef()
        if self._loop is not None and self._loop.token != here.token:
            message = "this runner is open in another event loop: use it there, or open another TaskRunner here"
            raise NotOpen(message)
        if self._door_of != here.token:  # a lock belongs to one kind of event loop
            self._door, self._door_of = anyio.Lock(), here.token
        self._loop = here
        async with self._door:
            if self._opened == 0:
                await self._open(here)
            self._opened += 1
        return self

    async def _open(self, here: LoopRef) -> None:
        origin.refuse_while_importing()
        self._loop = here
        try:
            settings = self.settings
            async with AsyncExitStack() as stack:
                store = await stack.enter_async_context(Store.open(settings, self._clock))
                await store.redactions.add(self.redaction.keys)
                self._store = store
                self._closing = stack.pop_all()
            self._settings = settings
        except BaseException:
            self._loop = None
            raise

    def _be_open(self, store: Store, settings: Settings) -> None:
        """Be open in a child process, for as long as it lives, on the store that asks its supervisor."""
        self._store, self._settings, self._loop = store, settings, LoopRef()
        self._is_child, self._opened = True, 1

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None, /
    ) -> None:
        """Close the store with the last closing. In a forked child it stays as it is: it is the parent's."""
        if self._loop is not None and self._loop.forked:
            return
        with anyio.CancelScope(shield=True):
            async with self._door:
                self._opened -= 1
                if self._opened == 0 and self._closing is not None:
                    closing, self._closing = self._closing, None
                    self._store = self._settings = self._loop = None
                    await closing.aclose()

    @property
    def sync(self) -> Bridge:
        """Awaits from plain code: `runner.sync(research.enqueue("x"))`, or `with runner.sync as wait:` for several.

        In a thread of a program whose event loop has this runner open, it awaits there; else in a loop of its own.
        """
        loop = self._loop if self.is_open else None
        return Bridge(opening=lambda: self) if loop is None else Bridge(loop)
