"""The verdict on a store under fire: what it has to see, and what it must not take for a broken promise."""

from __future__ import annotations

from taskrunner.chaos.kills.evidence import Evidence
from taskrunner.chaos.kills.verdict import overlap
from taskrunner.chaos.kills.witness import Line

ZOMBIE, OTHER = 1, 2


def seen(*lines: tuple[str, int, int]) -> Evidence:
    """What was seen of one task: the kind of each line, its process and its attempt."""
    return Evidence([Line(kind, "task", "", attempt, pid, at, "") for at, (kind, pid, attempt) in enumerate(lines)], {})


def test_a_body_beside_another_is_found() -> None:
    """Two processes are in the body of one task, and neither was killed or stopped."""
    assert len(list(overlap(seen(("enter", ZOMBIE, 1), ("enter", OTHER, 2))))) == 1
    assert not list(overlap(seen(("enter", ZOMBIE, 1), ("leave", ZOMBIE, 1), ("enter", OTHER, 2))))
    assert not list(overlap(seen(("enter", ZOMBIE, 1), ("kill", ZOMBIE, 0), ("enter", OTHER, 2))))


def test_a_zombie_may_enter_what_it_had_claimed_until_it_hears() -> None:
    """Until it hears that it was taken for dead it knows no better; after that it is as any other."""
    stopped = (("pause", ZOMBIE, 0), ("resume", ZOMBIE, 0))
    late = (*stopped, ("enter", ZOMBIE, 1), ("enter", OTHER, 2), ("lost", ZOMBIE, 0))
    assert not list(overlap(seen(*late)))
    assert len(list(overlap(seen(*late, ("enter", ZOMBIE, 3))))) == 1
    assert len(list(overlap(seen(*stopped, ("enter", ZOMBIE, 1), ("enter", OTHER, 2))))) == 1
