"""The machine that thinks up plays: hypothesis chooses the calls, and makes one that fails as short as can be."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import ClassVar, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from taskrunner.chaos.model import calls, meddling
from taskrunner.chaos.model.calls import Op
from taskrunner.chaos.model.play import Play
from taskrunner.core.model import NewTask, TaskType

TYPES: Final = ("a", "b")
QUEUES: Final = ("default", "q")
MANY: Final = 14
"""So many tasks are enough: from then on none is enqueued until some are removed."""

types, queues = st.sampled_from(TYPES), st.sampled_from(QUEUES)
numbers = st.sampled_from([0, 0, 0, 1, 1, 2, 3])
"""Of tasks and owners, the newest first."""
back = st.sampled_from([0] * 8 + [1, 2])
"""How stale an attempt is."""
seconds = st.sampled_from([0.0, 0.5, 30.0, 60.0, 300.0])
some_queues = st.sampled_from([QUEUES, QUEUES, ("q", "default"), ("default",), ("q",), ()])
"""The queues of a claim."""

NEW: Final = st.builds(
    NewTask,
    type=types,
    input=st.sampled_from(['{"n":1}', '{"n":2}']),
    queue=st.sampled_from([None, None, *QUEUES]),
    priority=st.sampled_from([None, None, 0, 5, 9]),
    delay=st.none() | seconds,
    unique_key=st.sampled_from([None, None, "u", "v"]),
    on_conflict=st.sampled_from(["reuse", "replace", "reject"]),
    idempotency_key=st.sampled_from([None, None, None, "i", "j"]),
    max_retries=st.sampled_from([None, 0, 1]),
    max_losses=st.sampled_from([None, 3, 3]),
    timeout=st.sampled_from([None, None, 5.0]),
    session_id=st.sampled_from([None] * 11 + ["nowhere"]),
)
KINDS: Final = st.builds(
    TaskType,
    name=types,
    queue=queues,
    priority=st.sampled_from([5, 1]),
    max_retries=st.sampled_from([None, 0, 2]),
    timeout=st.sampled_from([None, 9.0]),
    max_losses=st.sampled_from([None, 4]),
)

ENQUEUES: Final = st.builds(
    calls.Enqueue,
    st.tuples(NEW),
    child_of=st.sampled_from([None, None, 0, 1, 2]),
    run_in=st.sampled_from([None, None, -60.0, 0.0, 90.0]),
)
BATCHES: Final = st.builds(calls.Enqueue, st.lists(NEW, max_size=4).map(tuple))
CLAIMS: Final = st.builds(
    calls.Claim,
    owner=numbers,
    queues=some_queues,
    slots=st.sampled_from([8, 1, 2, 3, 0]),
    known=st.sampled_from([(), ("a",), ("a", "b")]),
    only=st.sampled_from([None, None, ("default",), ("q", "default")]),
)
TURNS: Final = st.builds(
    calls.Claim,
    owner=numbers,
    queues=some_queues,
    slots=st.sampled_from([8, 1]),
    known=st.sampled_from([(), ("a", "b")]),
    only=st.sampled_from([None, ("default",)]),
    suspect=st.just(True),  # noqa: FBT003 - a strategy's value
)
ENDS: Final = st.one_of(
    st.builds(calls.Complete, numbers, back),
    st.builds(calls.Fail, numbers, back, retry_in=st.none() | seconds),
    st.builds(calls.Release, numbers, back, unknown=st.booleans()),
    st.builds(calls.Cancelled, numbers, back),
)
STEPS: Final = st.builds(
    calls.Step,
    numbers,
    back,
    name=st.sampled_from(["plan", "act"]),
    occurrence=st.integers(0, 1),
    size=st.sampled_from([1, 10, 40_000]),
    fails=st.booleans(),
)
WORDS: Final = st.one_of(
    st.builds(meddling.Open),
    st.builds(calls.Progress, numbers, back, fraction=st.sampled_from([0.0, 0.3, 0.9, 1.0])),
    st.builds(calls.Log, numbers, back, lines=st.integers(1, 3)),
    st.builds(
        calls.Say, numbers, back, chat=numbers, key=st.sampled_from([None, "1", "2"]),
        parent=st.sampled_from([None, None, "nothing"]),
    ),
)  # fmt: skip
LOSSES: Final = st.one_of(
    st.builds(meddling.Bury, numbers, st.sampled_from([(), (), (0,), (1,), (1, 2), (3,)])),
    st.builds(meddling.Retire, numbers),
    st.builds(meddling.Lose, numbers, st.lists(numbers, max_size=3).map(tuple), back),
)
COMERS: Final = st.builds(
    meddling.Register,
    types=st.lists(KINDS, max_size=2, unique_by=lambda kind: kind.name).map(tuple),
    limits=st.lists(st.tuples(queues, st.sampled_from([None, 1, 2])), max_size=2, unique_by=lambda limit: limit[0]).map(
        tuple
    ),
)
CANCELS: Final = st.builds(
    meddling.Cancel, numbers, st.sampled_from(["", "no need", "too late"]), running=st.booleans()
)
PAUSES: Final = st.builds(meddling.Pause, queues, resume=st.sampled_from([True, True, False]))
ages = st.sampled_from([-1.0, -1.0, 0.0, 60.0])
REMOVALS: Final = st.one_of(
    st.builds(meddling.Remove, numbers, ages),
    st.builds(meddling.Survey, st.sampled_from(["completed", "failed", "cancelled"]), ages),
    st.builds(meddling.RemovePart, numbers, st.just("begin"), ages),
    st.builds(meddling.RemovePart, numbers, st.sampled_from(["steps", "log"]), most=st.sampled_from([1, 3, 100])),
    st.builds(meddling.RemovePart, numbers, st.just("end")),
)
GROUP: Final[st.SearchStrategy[Op]] = st.one_of(
    ENQUEUES, BATCHES, CLAIMS, ENDS, STEPS, WORDS, LOSSES, CANCELS, PAUSES, TURNS
)
"""What can be one of several units of one transaction: a call that looks before it writes is not among them."""


def _runs(machine: TaskLife) -> bool:
    return machine.play.world.running() > 0


def _has_ended(machine: TaskLife) -> bool:
    return any(row.has_ended for row in machine.play.world.tasks.values())


class TaskLife(RuleBasedStateMachine):
    """The life of some tasks, of those who run them, and of those who meddle."""

    folder = Path()
    engine = "sqlite"
    seen: ClassVar[Counter[str]] = Counter()
    """What all plays have done."""

    def __init__(self) -> None:
        super().__init__()
        self.play = Play(self.folder, self.engine)

    @initialize()
    def begin(self) -> None:
        """Somebody is there, and has something to do."""
        self.do(meddling.Register())
        self.start(calls.Enqueue((NewTask(type="a", input="{}"), NewTask(type="b", input="{}"))))

    def do(self, *ops: Op) -> None:
        """Make these calls, unless there are many tasks already."""
        if len(self.play.world.tasks) >= MANY:
            ops = tuple(op for op in ops if not isinstance(op, calls.Enqueue))
        if ops:
            self.play.do(*ops)

    # ── what is done ─────────────────────────────────────────────────────────────────────────────────────────────────
    @rule(op=ENQUEUES)
    def enqueue(self, op: Op) -> None:
        """One task."""
        self.do(op)

    @rule(op=BATCHES)
    def enqueue_many(self, op: Op) -> None:
        """Several tasks in one commit."""
        self.do(op)

    @rule(op=CLAIMS)
    def claim(self, op: Op) -> None:
        """An owner asks for what is in line."""
        self.do(op)

    @rule(op=TURNS)
    def claim_suspect(self, op: Op) -> None:
        """It is the suspects' turn."""
        self.do(op)

    @rule(op=ENQUEUES)
    def enqueue_and_claim(self, op: Op) -> None:
        """A task is enqueued and claimed, by an owner who lives, from queues that go on."""
        self.start(op)

    def start(self, op: Op) -> None:
        """The same."""
        self.do(op)
        if all(owner.ended_at is not None for owner in self.play.world.owners.values()):
            self.do(meddling.Register())
        for queue in QUEUES:
            self.do(meddling.Pause(queue, resume=True))
        self.do(calls.Claim(0, QUEUES, 8))

    @precondition(_runs)
    @rule(op=ENDS)
    def end(self, op: Op) -> None:
        """An attempt ends."""
        self.do(op)

    @precondition(_runs)
    @rule(op=STEPS)
    def step(self, op: Op) -> None:
        """A step is recorded."""
        self.do(op)

    @precondition(_runs)
    @rule(op=WORDS)
    def say(self, op: Op) -> None:
        """Progress, a log, a message."""
        self.do(op)

    @rule(op=COMERS)
    def register(self, op: Op) -> None:
        """An owner comes."""
        self.do(op)

    @rule(op=LOSSES)
    def lose(self, op: Op) -> None:
        """An owner goes, or loses a child."""
        self.do(op)

    @precondition(_runs)
    @rule(task=numbers, times=st.sampled_from([1, 2, 3, 5]), also=STEPS, alone=st.booleans())
    def die(self, task: int, times: int, also: Op, *, alone: bool) -> None:
        """A task loses its process again and again, alone or with its supervisor; between two deaths it may do more."""
        task_id = self.play.world.fence(task).task_id
        for number in range(times):
            row = self.play.world.tasks[task_id]
            if row.status == "pending":
                self.do(calls.Claim(0, QUEUES, 14, suspect=row.losses >= 2))
            if number == times - 2:
                self.do(also)
            owner = self.play.world.fence(task_id).owner
            if alone:
                self.do(meddling.Lose(owner, (task_id,)))
            else:
                self.do(meddling.Register(), meddling.Bury(0, (owner,)))
                self.do(calls.Claim(0, (), 14))

    @rule(owner=numbers)
    def beat(self, owner: int) -> None:
        """An owner renews its lease."""
        self.do(meddling.Beat(owner))

    @rule(op=CANCELS)
    def cancel(self, op: Op) -> None:
        """Somebody cancels."""
        self.do(op)

    @precondition(_runs)
    @rule(task=numbers, op=ENDS)
    def cancel_and_end(self, task: int, op: Op) -> None:
        """A running task is cancelled, and then an attempt ends."""
        self.do(meddling.Cancel(task, running=True))
        self.do(op)

    @precondition(_has_ended)
    @rule(task=numbers)
    def retry(self, task: int) -> None:
        """Somebody retries."""
        self.do(meddling.Retry(task))

    @rule(op=PAUSES)
    def pause(self, op: Op) -> None:
        """Somebody pauses a queue, or has it go on."""
        self.do(op)

    @precondition(_has_ended)
    @rule(op=REMOVALS)
    def remove(self, op: Op) -> None:
        """What is old is removed."""
        self.do(op)

    @precondition(_has_ended)
    @rule(task=numbers, most=st.sampled_from([1, 3, 100]), meanwhile=GROUP)
    def remove_in_parts(self, task: int, most: int, meanwhile: Op) -> None:
        """A removal is begun and goes on while something else happens, until nothing is left of the task."""
        task_id = self.play.world.pick_ended(task)
        self.do(meddling.RemovePart(task_id, "begin", age=-1.0))
        self.do(meanwhile)
        self.do(meddling.RemovePart(task_id, "steps", most=most))
        self.do(meddling.RemovePart(task_id, "log", most=most))
        self.do(meddling.RemovePart(task_id, "end"))

    @rule(ops=st.lists(GROUP, min_size=2, max_size=5))
    def together(self, ops: list[Op]) -> None:
        """Several calls in one transaction: it is as if one had come after the other."""
        self.do(*ops)

    @rule(by=st.sampled_from([0.001, 1.0, 1.0, 20.0, 31.0, 61.0, 3_600.0, 2_700_000.0]))
    def wait(self, by: float) -> None:
        """Time passes."""
        self.play.clock.advance(by)

    # ── what is looked at ────────────────────────────────────────────────────────────────────────────────────────────
    @rule(anew=st.sampled_from([False, False, False, False, True]))
    def look(self, *, anew: bool) -> None:
        """What holds in every store holds in this one, and it is the same when it was closed and opened again."""
        if anew:
            self.play.reopen()
        else:
            self.play.invariants()
            self.play.look()

    def teardown(self) -> None:
        """Count, and clear away."""
        self.seen.update(self.play.seen)
        self.seen["plays"] += 1
        self.play.close()


def machine(where: Path, engine: str, seen: Counter[str]) -> type[TaskLife]:
    """The machine for plays in a folder; what they do is added to what was seen."""
    return type("TaskLife", (TaskLife,), {"folder": where, "engine": engine, "seen": seen})
