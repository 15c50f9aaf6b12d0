"""What a run of faults has found: counts of what was reached, and a sentence for each promise that was broken."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

import msgspec

Breach: TypeAlias = Literal["lost", "doubled", "corrupt", "zombie", "stuck", "wrong"]
"""How a promise is broken: something that was acknowledged is gone; something happened twice; the store is damaged;
somebody wrote who had lost the right to; something does not come to its end; anything else that must not be."""

SHOWN: Final = 10
"""Of the problems of each kind of fault, so many are printed."""


def share(number: int, part: float) -> int:
    """A part of a whole run's `number`: at least one."""
    return max(1, round(number * part))


class Problem(msgspec.Struct, frozen=True):
    """One promise that was broken."""

    breach: Breach
    text: str


class Order(msgspec.Struct, frozen=True):
    """What a kind of fault is asked to do."""

    kind: str
    module: str
    """Where its `run(order)` is."""
    seed: int
    """All that is random comes from it."""
    part: float
    """How much, as a part of a whole run (1.0)."""
    folder: str
    """An empty folder, for its stores."""
    plant: str = ""
    """The bug that it is to plant, to show that it finds it (`plants`); empty: none."""

    def share(self, number: int) -> int:
        """So many are this order's part of a whole run's `number`: at least one."""
        return share(number, self.part)


class Tally(msgspec.Struct):
    """What one kind of fault has done. Its process hands it over as JSON."""

    kind: str
    faults: int = 0
    """How many faults there were."""
    reached: dict[str, int] = {}
    """How often what happened, by name: what never happened was not tested."""
    outcomes: dict[str, int] = {}
    """How the calls that met a fault have ended, for who made them: `ok`, `failed`, or `unknown`."""
    problems: list[Problem] = []
    notes: list[str] = []
    """What else is to be told."""
    seconds: float = 0.0
    has_died: bool = False
    """Whether its process did not come to its end: then it has found nothing, and something is wrong with itself."""

    def count(self, what: str, number: int = 1) -> None:
        """Note that something has happened."""
        if number:
            self.reached[what] = self.reached.get(what, 0) + number

    def ended(self, how: Literal["ok", "failed", "unknown"], number: int = 1) -> None:
        """Note how a call has ended."""
        self.outcomes[how] = self.outcomes.get(how, 0) + number

    def broken(self, breach: Breach, text: str) -> None:
        """Note that a promise was broken; the text has to say with which seed."""
        self.problems.append(Problem(breach, text))


class Line(msgspec.Struct, frozen=True):
    """One thing that was to be reached."""

    kind: str
    what: str
    reached: int
    floor: int
    seconds: float

    @property
    def missed(self) -> bool:
        """Whether it was not reached often enough: what did not happen proves nothing."""
        return self.reached < self.floor


class Report(msgspec.Struct):
    """What a whole run has found."""

    seed: int
    minutes: float
    lines: list[Line]
    tallies: list[Tally]
    seconds: float
    left_out: list[str] = []
    """The kinds of which something is not there that they need, a sentence for each."""

    @property
    def faults(self) -> int:
        """How many faults there were."""
        return sum(tally.faults for tally in self.tallies)

    @property
    def breaches(self) -> dict[Breach, int]:
        """How many promises were broken, by the way in which they were."""
        found = [problem.breach for tally in self.tallies for problem in tally.problems]
        return {breach: found.count(breach) for breach in get_args(Breach)}

    @property
    def is_good(self) -> bool:
        """Whether nothing was broken, and everything was reached."""
        return not any(self.breaches.values()) and not any(line.missed for line in self.lines)

    def sentence(self) -> str:
        """All of it in one number."""
        by = self.breaches
        said = f"{self.faults:,} faults {'met' if any(by.values()) else 'survived'}, "
        said += f"{by['lost']} lost, {by['doubled']} doubled, {by['corrupt']} corrupt, "
        said += f"{by['zombie']} writes of zombies accepted"
        said += "".join(f", {by[breach]} {breach}" for breach in ("stuck", "wrong") if by[breach])
        if missed := sum(line.missed for line in self.lines):
            said += f"; {missed} of {len(self.lines)} floors not reached"
        if self.left_out:
            said += f"; left out: {', '.join(sentence.partition(' needs ')[0] for sentence in self.left_out)}"
        return f"{said} (seed {self.seed}, {self.seconds / 60:.1f} min)"

    def complaints(self) -> list[str]:
        """What was broken, in sentences, with the command that does it again."""
        told: list[str] = []
        for tally in self.tallies:
            again = f"taskrunner chaos --kind {tally.kind} --seed {self.seed} --minutes {self.minutes:g}"
            for problem in tally.problems[:SHOWN]:
                told += f"{tally.kind}: {problem.breach}: {problem.text}".splitlines()
            if left := len(tally.problems) - SHOWN:
                told += [f"{tally.kind}: and {left} more"] if left > 0 else []
            told += [f"{tally.kind}: to do it again: {again}"] if tally.problems else []
        return told
