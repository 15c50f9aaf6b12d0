"""What a disk may hold after the power was cut: images made from the recorded operations of a run.

A file's durable content is what its last sync has covered. Of the operations since then any subset may have reached the
disk, in any order, and a write may be cut at any sector. A name that was made or removed counts at once here: SQLite
syncs the folder where it matters to it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from taskrunner.chaos.disk.faulty_disk import Record

SECTOR = 512
Image: TypeAlias = dict[str, bytearray]


@dataclass
class CutAt:
    """A moment at which the power may be cut."""

    acked: int
    """How many calls had returned by then."""
    durable: Image
    pending: list[Record] = field(default_factory=list)

    def images(self, chance: random.Random, many: int) -> Iterator[tuple[str, Image]]:
        """What the disk may hold: nothing of the pending operations, all, or some of them."""
        yield "nothing", self._with([])
        if not self.pending:
            return
        yield "all", self._with(self.pending)
        pieces = [piece for record in self.pending for piece in _sectors(record)]
        for _ in range(many):
            likely = chance.choice([0.1, 0.5, 0.9, 0.97])
            yield "some", self._with([record for record in self.pending if chance.random() < likely])
            yield "torn", self._with([piece for piece in pieces if chance.random() < likely])
            shuffled = pieces[:]
            chance.shuffle(shuffled)
            yield "in another order", self._with(shuffled[: chance.randrange(1, len(pieces) + 1)])
        yield "the first ones", self._with(self.pending[: chance.randrange(len(self.pending))])

    def _with(self, records: list[Record]) -> Image:
        image = {name: bytearray(content) for name, content in self.durable.items()}
        for record in records:
            _apply(image, record)
        return image


def cuts(start: dict[str, bytes], log: list[Record]) -> Iterator[CutAt]:
    """Every moment worth a look: before each sync, each removal and each return of a call, and after it."""
    durable: Image = {name: bytearray(content) for name, content in start.items()}
    pending: list[Record] = []
    acked = 0
    for record in log:
        kind, name = record[:2]
        if kind in {"sync", "delete", "ack"}:
            yield CutAt(acked, durable, pending)
        if kind == "create":
            durable.setdefault(name, bytearray())
        elif kind in {"write", "truncate"}:
            pending.append(record)
        elif kind == "sync":
            for each in pending:
                if each[1] == name:
                    _apply(durable, each)
            pending = [each for each in pending if each[1] != name]
        elif kind == "delete":
            durable.pop(name, None)
            pending = [each for each in pending if each[1] != name]
        elif kind == "ack":
            acked = name
            yield CutAt(acked, durable, pending)


def _sectors(record: Record) -> Iterator[Record]:
    if record[0] != "write":
        yield record
        return
    _kind, name, offset, data = record
    start = 0
    while start < len(data):
        end = min(len(data), start + SECTOR - (offset + start) % SECTOR)
        yield "write", name, offset + start, data[start:end]
        start = end


def _apply(image: Image, record: Record) -> None:
    content = image.setdefault(record[1], bytearray())
    if record[0] == "truncate":
        size = record[2]
        del content[size:]
        content.extend(bytes(size - len(content)))
        return
    _kind, _name, offset, data = record
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(data)] = data
