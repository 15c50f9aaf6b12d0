"""The wire between a supervisor and a child: a socket pair with frames of msgpack, and what is said over it.

A frame is a length of four bytes and a message. What is put in one turn of the event loop is sent in one piece, for
what costs is the system call: a claim of 64 tasks goes out at once, and so do the answers of a group commit.
"""

from __future__ import annotations

import struct
import threading
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

import anyio
import anyio.lowlevel
import msgspec

from taskrunner.core.loop import LoopRef
from taskrunner.core.model import Task
from taskrunner.runtime.origin import Origin
from taskrunner.storage.engine import Statement
from taskrunner.storage.remote import Answered, Asked, Frame

if TYPE_CHECKING:
    import socket

M = TypeVar("M")

_LENGTH: Final = struct.Struct("<I")
_PIECE: Final = 256 * 1024  # bytes that are received at once
_LONGEST: Final = 0x1FFF_FFFF  # bytes of a message: any four letters of text, as a length, are more

# ── what a supervisor says ────────────────────────────────────────────────────────────────────────────────────────────


class Hello(Frame, frozen=True):
    """Who the child is to be. It waits for this before it does anything."""

    db: bytes
    origin: Origin
    settings: dict[str, Any]
    path: list[bytes]
    """`sys.path`; what stands for files is sent as the file system has it."""
    argv: list[bytes]


class Run(Frame, frozen=True):
    """Run this task."""

    task: Task


class Interrupt(Frame, frozen=True):
    """Ask the body of an attempt to end."""

    task_id: str
    attempt: int
    reason: str


class Ping(Frame, frozen=True):
    """Say something: does your event loop still turn?"""


class Stop(Frame, frozen=True):
    """End: there is nothing more to do."""


# ── what a child says ─────────────────────────────────────────────────────────────────────────────────────────────────


class Ready(Frame, frozen=True):
    """The app is imported; these are its tasks."""

    types: list[str]


class Broken(Frame, frozen=True):
    """The app cannot be imported; this says why."""

    why: str


class End(Frame, frozen=True):
    """A body has ended: how its attempt is to be written, and what is to be written with it. None: it has no say."""

    task_id: str
    attempt: int
    statement: Statement | None
    before: list[Statement]


class Pong(Frame, frozen=True):
    """It does."""


class Alarm(Frame, frozen=True):
    """An event that somebody should see."""

    event: str
    fields: dict[str, Any]


ToChild: TypeAlias = Hello | Run | Interrupt | Ping | Stop | Answered
FromChild: TypeAlias = Ready | Broken | End | Pong | Alarm | Asked

TO_CHILD: Final = msgspec.msgpack.Decoder(ToChild)
FROM_CHILD: Final = msgspec.msgpack.Decoder(FromChild)
_encode = msgspec.msgpack.Encoder().encode


NO_MEMORY: Final = 71
"""The exit code of a child in which taskrunner itself found no memory: nothing there can go on."""


class Channel(Generic[M]):
    """One end of the wire. It belongs to the event loop, but for `put_now`."""

    def __init__(self, end: socket.socket, decoder: msgspec.msgpack.Decoder[M]) -> None:
        end.settimeout(0.0)
        self._end = end
        self._decode = decoder.decode
        self._lock = threading.Lock()
        self._out = bytearray()
        self._in = bytearray()
        self._put = anyio.Event()
        self._loop = LoopRef()

    def put(self, message: Frame) -> None:
        """Send a message soon. To an end that is gone nothing is sent.

        Raises:
            UnicodeEncodeError: a text in it has lone surrogates.
            OverflowError: an integer in it has more than 64 bits.
            TypeError: there is something in it that msgpack has no word for.
            ValueError: it is longer than half a gigabyte.
        """
        self._append(message)
        self._wake()

    def put_now(self, message: Frame) -> None:
        """As `put`, from any thread and without the event loop, which may be blocked."""
        self._append(message)
        if not self._push():  # the other end is full: the rest goes out when the loop turns again
            self._loop.post(self._wake)

    async def pump(self) -> None:
        """Send what is put, until this is cancelled."""
        while True:
            await self._put.wait()
            self._put = anyio.Event()
            while not self._push():
                await anyio.wait_writable(self._end)

    async def receive(self) -> list[M]:
        """The next messages, all that are there; none when the other end is gone."""
        while True:
            try:
                data = self._end.recv(_PIECE)
            except BlockingIOError:
                await anyio.wait_readable(self._end)
                continue
            except OSError:
                return []
            if not data:
                return []
            self._in += data
            if messages := self._messages():
                return messages
            await anyio.lowlevel.checkpoint()

    async def drained(self) -> None:
        """Wait until all that was put has been sent, or nobody is there any more."""
        while not self._push():
            await anyio.wait_writable(self._end)

    def _wake(self) -> None:
        self._put.set()

    def _append(self, message: Frame) -> None:
        frame = _encode(message)
        if len(frame) > _LONGEST:
            told = f"{type(message).__name__} of {len(frame)} bytes: {_LONGEST} at most go to or from a child process"
            raise ValueError(told)
        with self._lock:
            self._out += _LENGTH.pack(len(frame))
            self._out += frame

    def _push(self) -> bool:
        """Send as much as goes; False when there is more."""
        with self._lock:
            while self._out:
                try:
                    sent = self._end.send(self._out)
                except BlockingIOError:
                    return False
                except OSError:  # nobody is there any more, and who receives will notice
                    self._out.clear()
                else:
                    del self._out[:sent]
        return True

    def _messages(self) -> list[M]:
        messages: list[M] = []
        start, end = 0, len(self._in)
        while end - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._in, start)
            if length > _LONGEST:
                message = "a message of so many bytes is none of ours: something else wrote into the connection"
                raise msgspec.DecodeError(message)
            stop = start + _LENGTH.size + length
            if stop > end:
                break
            messages.append(self._decode(self._in[start + _LENGTH.size : stop]))
            start = stop
        del self._in[:start]
        return messages


def receive_first(end: socket.socket) -> Hello | None:
    """The first message to a child, waited for without an event loop; None when its supervisor is gone already."""
    end.settimeout(None)
    head = _exactly(end, _LENGTH.size)
    body = _exactly(end, _LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else b""
    if not body:
        return None
    return msgspec.msgpack.decode(body, type=Hello)


def send_last(end: socket.socket, message: Frame) -> None:
    """Send a message without an event loop."""
    frame = _encode(message)
    end.sendall(_LENGTH.pack(len(frame)) + frame)


def _exactly(end: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = end.recv(count - len(data))
        if not piece:
            return b""
        data += piece
    return bytes(data)
