"""The kinds of faults: what each does, what a whole run of it has to reach, and where it is."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from taskrunner.chaos.disk import trace
from taskrunner.chaos.disk.full_disk import can_mount

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

WHOLE: Final = 20.0
"""Minutes of a whole run on two cores: the floors are for one, and a shorter run has its part of them."""


@dataclass(frozen=True, slots=True)
class Need:
    """What not every machine has, and a kind of fault cannot do without."""

    name: str
    is_there: Callable[[], bool]
    remedy: str
    """How to get it."""


HYPOTHESIS: Final = Need(
    "hypothesis", lambda: find_spec("hypothesis") is not None, "pip install 'durable-taskrunner[chaos]'"
)


STRACE: Final = Need("strace", trace.works, "apt-get install strace")
SMALL_DISK: Final = Need("a small file system of its own", can_mount, "as root, where mounting is allowed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of fault. Its module has `run(order: Order) -> Tally`; it is imported in a process of its own."""

    name: str
    what: str
    module: str
    floors: Mapping[str, int]
    """How often what has to happen in a whole run."""
    seconds: float
    """How long a whole run of it takes, about: the longest begin first."""
    needs: tuple[Need, ...] = ()

    def lacks(self) -> str:
        """What it needs and is not there, in a sentence; empty: nothing."""
        missing = [f"{need.name}, which is not there ({need.remedy})" for need in self.needs if not need.is_there()]
        return f"{self.name} needs {' and '.join(missing)}" if missing else ""


_ALL = (
    Kind(
        name="kills",
        what="supervisors, children and clients killed with SIGKILL at any moment",
        module="taskrunner.chaos.kills.rounds",
        floors={
            "kills": 3_000,
            "kills of fresh processes": 500,
            "kills of children and their groups": 300,
            "kills that hit a running body": 2_000,
            "steps replayed": 3_000,
            "steps run again, not yet recorded": 300,
            "deaths between record and answer": 150,
        },
        seconds=600,
    ),
    Kind(
        name="zombies",
        what="supervisors stopped for longer than their lease, which then go on",
        module="taskrunner.chaos.kills.zombies",
        floors={"zombies": 500, "writes of zombies that were refused": 100},
        seconds=400,
    ),
    Kind(
        name="mutants",
        what="bugs planted in our own code, which another kind has to find within a minute",
        module="taskrunner.chaos.mutants",
        floors={"bugs found": 34, "controls that found nothing": 1},
        seconds=500,
    ),
    Kind(
        name="model",
        what="calls of every kind in sequences that chance has thought up, against a plain model of what they must do",
        module="taskrunner.chaos.model.kind",
        floors={
            "steps": 100_000,
            "writes of stale attempts that were refused": 6_000,
            "losses": 3_000,
            "quarantines": 40,
            "suspects tried": 300,
            "retries by hand": 500,
            "rows removed by retention": 600,
            "transactions of several calls": 2_500,
        },
        seconds=200,
        needs=(HYPOTHESIS,),
    ),
    Kind(
        name="power",
        what="the power cut at every write, on disks that keep some of what was not synced, and on disks that lie",
        module="taskrunner.chaos.disk.power",
        floors={
            "images": 50_000,
            "cut with some of it": 5_000,
            "cut with torn writes": 5_000,
            "cut with another order": 5_000,
            "cut with garbage": 5_000,
            "cut with a removal undone": 20,
            "images with durability normal": 4_000,
            "unsynced tails seen to be lost": 1_000,
            "lies about the WAL that were found": 300,
            "lies about the database that were found": 300,
        },
        seconds=200,
    ),
    Kind(
        name="poison",
        what="tasks that kill, block, fill or flood their process, beside innocent ones",
        module="taskrunner.chaos.poison.rounds",
        floors={
            "pills": 150,
            "pills in children": 90,
            "pills in supervisors": 40,
            "deaths": 120,
            "losses of innocents": 60,
            "supervisors that were started again": 30,
        },
        seconds=150,
    ),
    Kind(
        name="simulation",
        what="supervisors in virtual time: killed at any turn of the loop, stopped, and their clock set",
        module="taskrunner.chaos.simulation.run",
        floors={
            "simulated hours": 200,
            "kills": 4_000,
            "kills before a commit": 1_200,
            "kills after a commit": 1_500,
            "kills at a turn": 900,
            "stops of a process": 4_000,
            "burials of who was stopped": 1_500,
            "jumps of the clock": 1_000,
            "reboots": 40,
            "locks of a stranger": 800,
            "writes of zombies that were refused": 300,
        },
        seconds=500,
    ),
    Kind(
        name="errors",
        what="operations of the disk that fail, one in each run, and strangers that hold the lock, under every call",
        module="taskrunner.chaos.disk.errors",
        floors={
            "errors injected": 5_000,
            "errors: no room to write": 500,
            "errors: a write fails": 500,
            "errors: a sync fails": 500,
            "errors: a read fails": 500,
            "errors: in a call of a client": 600,
            "errors: inside of a job": 500,
            "errors: opening": 100,
            "errors: closing": 100,
            "calls that met a lock": 100,
        },
        seconds=400,
    ),
    Kind(
        name="full-disk",
        what="a small file system that is filled up and freed again under a supervisor and a client",
        module="taskrunner.chaos.disk.full",
        floors={"fills": 200, "calls refused by a full disk": 100, "jobs completed": 800},
        seconds=150,
        needs=(SMALL_DISK,),
    ),
    Kind(
        name="power-strace",
        what="the power cut under `taskrunner run` and a client as they are, whose writes strace has recorded",
        module="taskrunner.chaos.disk.power_strace",
        floors={
            "images of unmodified processes": 2_000,
            "acknowledgements of unmodified processes": 15,
            "lies about their WAL that were found": 50,
        },
        seconds=60,
        needs=(STRACE,),
    ),
)

KINDS: Final[Mapping[str, Kind]] = MappingProxyType({kind.name: kind for kind in _ALL})
"""All kinds by name."""
