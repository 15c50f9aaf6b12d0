"""What a disk may hold after the power was cut: images made from the recorded operations of a run.

A file's durable content is what its last sync has covered. Of the operations since then any subset may have reached the
disk, in any order, a write may be cut at any sector, and a sector that was being written may hold anything. A name that
was made counts at once here: SQLite syncs the folder before it relies on it. A removal does not count before the folder
is synced, with the removal itself or with the next file of that name.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from taskrunner.chaos.disk.faulty_disk import Record

SECTOR = 512
Image: TypeAlias = dict[str, bytearray]


@dataclass
class CutAt:
    """A moment at which the power may be cut."""

    acked: Any
    """How many calls had returned by then, or whatever the last acknowledgement has noted."""
    durable: Image
    pending: list[Record] = field(default_factory=list)
    removed: Image = field(default_factory=dict)
    """What files held that were removed, where the removal may be undone."""

    def images(self, chance: random.Random, many: int) -> Iterator[tuple[str, Image]]:
        """What the disk may hold: nothing of the pending operations, all, or some of them."""
        yield "nothing of it", self._with([])
        if self.removed:
            left = [record for record in self.pending if record[1] not in self.removed]
            yield "a removal undone", self._with([]) | self.removed
            yield "a removal undone", self._with(left) | self.removed
        if not self.pending:
            return
        yield "all of it", self._with(self.pending)
        pieces = [piece for record in self.pending for piece in _sectors(record)]
        for _ in range(many):
            likely = chance.choice([0.1, 0.5, 0.9, 0.97])
            yield "some of it", self._with([record for record in self.pending if chance.random() < likely])
            yield "torn writes", self._with([piece for piece in pieces if chance.random() < likely])
            shuffled = pieces[:]
            chance.shuffle(shuffled)
            yield "another order", self._with(shuffled[: chance.randrange(1, len(pieces) + 1)])
            yield (
                "garbage",
                self._with([_spoilt(piece, chance) if chance.random() > likely else piece for piece in pieces]),
            )
        yield "the first of it", self._with(self.pending[: chance.randrange(len(self.pending))])

    def whole(self) -> Image:
        """What the disk holds if nothing of it is lost."""
        return self._with(self.pending)

    def take(self, record: Record) -> None:
        """Go on to the moment after this operation."""
        kind, name = record[:2]
        mine = [each for each in self.pending if each[1] == name]
        others = [each for each in self.pending if each[1] != name]
        if kind == "create":
            self.durable.setdefault(name, bytearray())
        elif kind in {"write", "truncate"}:
            self.pending = [*self.pending, record]
        elif kind == "sync":
            self.removed.pop(name, None)
            for each in mine:
                _apply(self.durable, each)
            self.pending = others
        elif kind == "delete":
            was = self.durable.pop(name, None)
            if was is not None and not record[2]:
                self.removed[name] = was
            self.pending = others

    def _with(self, records: list[Record]) -> Image:
        image = {name: bytearray(content) for name, content in self.durable.items()}
        for record in records:
            _apply(image, record)
        return image


def honest(_name: str) -> bool:
    """The syncs of no file are ignored."""
    return False


def cuts(start: dict[str, bytes], log: list[Record], lies: Callable[[str], bool] = honest) -> Iterator[CutAt]:
    """Every moment worth a look: before each sync, each removal and each return of a call, and after it.

    `lies` tells of a file's name whether the disk ignores its syncs. A moment is good until the next one is asked for.
    """
    now = CutAt(0, {name: bytearray(content) for name, content in start.items()})
    for record in log:
        kind = record[0]
        if kind in {"sync", "delete", "ack"}:
            yield replace(now)
        if kind == "ack":
            now.acked = record[1]
            yield replace(now)
        elif kind != "sync" or not lies(record[1]):
            now.take(record)


def distinct(
    moments: Iterable[CutAt], chance: random.Random, many: int
) -> Iterator[tuple[tuple[int, Any, str], Image]]:
    """Each image once for each acknowledgement: its moment's number, what was acknowledged, its kind; and itself."""
    seen = set[bytes]()
    for place, cut in enumerate(moments):
        for kind, image in cut.images(chance, many):
            digest = hashlib.blake2b(repr(cut.acked).encode(), digest_size=16)
            for name, content in sorted(image.items()):
                digest.update(b"%s %d " % (name.encode(), len(content)))
                digest.update(content)
            if digest.digest() not in seen:
                seen.add(digest.digest())
                yield (place, cut.acked, kind), image


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


def _spoilt(record: Record, chance: random.Random) -> Record:
    return (*record[:3], chance.randbytes(len(record[3]))) if record[0] == "write" else record


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
