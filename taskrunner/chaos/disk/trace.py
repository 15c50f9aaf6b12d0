"""What unmodified processes asked of the disk: `strace`'s record of them, as the operations of `faulty_disk`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from taskrunner.chaos.disk.faulty_disk import Record

CALLS: Final = "openat,pwrite64,write,fsync,fdatasync,ftruncate,unlink,unlinkat"
STRACE: Final = ("strace", "-f", "-qq", "-y", "-xx", "-s", "1000000", "-e", f"trace={CALLS}")

_LINE = re.compile(r"(\d+) +(?:<\.\.\. )?(\w+)(?: resumed>|\()(.*)")
_ENDED = re.compile(r"\) += (-?\d+)")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_DESCRIPTOR = re.compile(r"(\d+)<((?:\\x[0-9a-f]{2})*)>")


def works() -> bool:
    """Whether there is a `strace` that may look at a process."""
    try:
        done = subprocess.run([*STRACE, "-o", os.devnull, sys.executable, "-c", ""], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


def records(log: Path, db: Path, acks: str) -> Iterator[Record]:
    """The operations on the files of the store `db` in their order, and ("ack", text) of what was written to `acks`.

    A write counts when it was asked for, a sync when it has returned: so nothing counts as durable too early.
    """
    names: set[str] = set()
    gone: set[str] = set()
    with log.open(encoding="ascii", errors="replace") as lines:
        for call, rest in _calls(lines):
            path = _path(call, rest)
            if call in {"fsync", "fdatasync"} and path == db.parent:  # what was removed is gone for good
                yield from (("sync", name) for name in sorted(gone))
                gone.clear()
            elif call == "write" and path.name == acks and (text := _TEXT.search(rest)):
                yield from (("ack", told) for told in _bytes(text[1]).decode().splitlines())
            elif path in {db, Path(f"{db}-wal"), Path(f"{db}-journal")}:
                for record in _record(call, rest, path.name):
                    if record[0] == "delete":
                        names.discard(path.name)
                        gone.add(path.name)
                    if record[0] != "create" or path.name not in names:
                        yield record
                    if record[0] == "create":
                        names.add(path.name)


def _calls(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Each call that has not failed, with its arguments: a write where it has begun, all others where they end."""
    begun: dict[str, str] = {}
    for line in lines:
        found = _LINE.match(line)
        if found is None:
            continue
        thread, call, rest = found.groups()
        writes = call in {"pwrite64", "write"}
        if rest.endswith("<unfinished ...>"):
            begun[thread] = rest
            if writes:
                yield call, rest
            continue
        if thread in begun:
            rest = begun.pop(thread) + rest
            if writes:
                continue
        ended = _ENDED.search(rest)
        if ended is None or int(ended[1]) >= 0:
            yield call, rest


def _path(call: str, rest: str) -> Path:
    """The file that a call is about."""
    found = (_TEXT.search(rest), 1) if call in {"openat", "unlink", "unlinkat"} else (_DESCRIPTOR.match(rest), 2)
    match, group = found
    return Path(_bytes(match[group]).decode()) if match else Path()


def _record(call: str, rest: str, name: str) -> Iterator[Record]:
    text = _TEXT.search(rest)
    if call == "openat" and "O_CREAT" in rest:
        yield "create", name
    elif call in {"unlink", "unlinkat"}:
        yield "delete", name, False
    elif call == "pwrite64" and text:
        yield "write", name, int(re.split(r"[,) ]+", rest[text.end() :])[2]), _bytes(text[1])
    elif call in {"fsync", "fdatasync"}:
        yield "sync", name
    elif call == "ftruncate":
        yield "truncate", name, int(re.split(r"[,) ]+", rest)[1])


def _bytes(escaped: str) -> bytes:
    return bytes.fromhex(escaped.replace("\\x", ""))
