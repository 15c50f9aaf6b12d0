"""`crash_sweep`: a user's own task, killed for real at each commit of its life."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from taskrunner import InvalidInput, TaskRunner, TaskRunnerError, Tasks, UnknownTask
from taskrunner.storage.sqlite_writer import Writer
from taskrunner.testing import Sweep, crash_sweep, temp_runner
from tests.integration import sweep_app, sweep_threads_app
from tests.integration.sweep_app import runner

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(90)


def places(sweep: Sweep, moment: str) -> Sequence[str]:
    """What the commits wrote at which a process was killed, in the order of the kills."""
    return [run.killed.partition("(")[2][:-1] for run in sweep.runs if run.killed.startswith(moment)]


async def commits_of(bound: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:  # noqa: ANN401 - a bound task
    """How many commits the store itself makes for a task, by the writer's own count."""
    made = 0
    mark = Writer._mark

    def marking(writer: Writer, *args: Any) -> None:  # noqa: ANN401 - as the writer does
        nonlocal made
        made += 1
        mark(writer, *args)

    with runner.override(db=tmp_path / "counted.db", durability="normal"):
        async with runner:
            await runner.enqueue(bound)
        monkeypatch.setattr(Writer, "_mark", marking)
        async with runner:
            await runner.drain()
        monkeypatch.undo()
    return made + 1  # the writer's mark is taken out at the end, by a commit that leaves none


async def test_every_commit_is_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A healthy task gives the same result wherever its process dies: at each commit, before it and after it."""
    sweep = await crash_sweep(sweep_app.adds.bind(1))
    assert set(sweep.results) == {7}
    assert sweep.repeated_steps == []
    assert sweep.kills == len(sweep.results) - 2
    commits = sweep.runs[0].commits
    assert places(sweep, "before")[: len(commits)] == commits
    assert places(sweep, "after")[: len(commits)] == commits
    assert commits[:3] == ["a supervisor begins", "the claim", "step 'one'"]
    assert commits[-3:] == ["the end: completed", "a supervisor ends", "the store is closed"]
    assert abs(len(commits) - await commits_of(sweep_app.adds.bind(1), tmp_path, monkeypatch)) <= 1  # some join


async def test_each_run_is_looked_at() -> None:
    """`check` is called after each run, and may be awaited."""
    looked: list[int] = []

    async def check() -> None:
        looked.append(len(looked))

    sweep = await crash_sweep(sweep_app.plain.bind(4), check=check)
    assert set(sweep.results) == {8}
    assert len(looked) == len(sweep.results) == len(sweep.runs)


async def test_what_a_check_raises_says_where() -> None:
    """A check that fails after a kill leaves with its own error, and a note of the kill."""
    left = [None, None, None]

    def check() -> None:
        left.pop()

    with pytest.raises(IndexError) as caught:
        await crash_sweep(sweep_app.plain.bind(4), check=check)
    assert caught.value.__notes__ == [
        "crash_sweep: this came of the check after the run that was killed before commit 2 (the claim)"
    ]


async def test_messages_are_written_once() -> None:
    """A conversation has each message once; the sweep begins with an empty one of the id that the task names."""
    sweep = await crash_sweep(sweep_app.chat.options(session_id="talk").bind("hi"))
    assert all(result == ["hi", "HI"] for result in sweep.results)
    assert "a message" in sweep.runs[0].commits
    assert "step 'answer', a message" in sweep.runs[0].commits


async def test_retries_take_no_time(tmp_path: Path) -> None:
    """A task that asks to be run again in an hour is swept through all its attempts, by a clock that is put forward."""
    file = tmp_path / "lines"
    counts: list[int] = []

    def check() -> None:
        counts.append(len(file.read_text().splitlines()))
        file.unlink()

    sweep = await crash_sweep(sweep_app.comes_back.bind(str(file)), check=check)
    assert set(sweep.results) == {"2 retries"}
    assert sweep.repeated_steps == []
    assert {run.killed for run, count in zip(sweep.runs, counts, strict=True) if count != 1} == {
        "before commit 3 (step 'once')"  # done, and not recorded: at least once, as is promised
    }


async def test_children_are_worked_on(tmp_path: Path) -> None:
    """What the task enqueues is run to its end, in each run."""
    file = tmp_path / "lines"

    def check() -> None:
        assert file.read_text() == "child\n"
        file.unlink()

    sweep = await crash_sweep(sweep_app.parent.bind(str(file)), check=check)
    assert set(sweep.results) == {"done"}
    assert sweep.repeated_steps == []
    assert sum("the end: completed" in what for what in sweep.runs[0].commits) in {1, 2}


async def test_a_task_that_fails_is_swept_too() -> None:
    """A failure is a result like another, as a text: a saga that gives up must do so after each crash."""
    sweep = await crash_sweep(sweep_app.refuses.bind())
    assert set(sweep.results) == {"failed: taskrunner.Fail: no money"}


async def test_an_effect_outside_of_steps_shows(tmp_path: Path) -> None:
    """A body that writes a line outside of any step writes it again: the results tell."""
    file = tmp_path / "lines"
    sweep = await crash_sweep(sweep_app.leaks.bind(str(file)), check=file.unlink)
    assert sweep.results[0] == 1
    assert set(sweep.results) == {1, 2}


async def test_a_step_named_by_chance_shows() -> None:
    """A body that takes another step each time fails after a crash that its first step has survived."""
    sweep = await crash_sweep(sweep_app.gambles.bind())
    assert sweep.results[0] == 2
    failed = [(run.killed, run.result) for run in sweep.runs if run.result != 2]
    assert failed
    assert all("failed: taskrunner.NonDeterministicStep: step" in str(result) for _killed, result in failed)
    assert failed[0][0].startswith("after commit 3 (step 'step 0.")


async def test_a_step_done_again_under_another_name_shows() -> None:
    """Where no turn gives it away, the step whose function was called again is named."""
    sweep = await crash_sweep(sweep_app.gambles_aside.bind())
    assert sweep.repeated_steps
    assert all(label.startswith("charge[0.") for label in sweep.repeated_steps)


async def test_the_settings_in_force_count() -> None:
    """An override of the test holds in the processes that are killed, but for the store, which is a temporary one."""
    with (
        runner.override(max_payload=5, db="/nowhere/at/all.db"),
        pytest.raises(TaskRunnerError, match=r"'plain' cannot be enqueued: taskrunner.PayloadTooLarge: input: 7 bytes"),
    ):
        await crash_sweep(sweep_app.plain.bind(4))
    assert not Path("production.db").exists()


async def test_a_task_that_kills_its_process() -> None:
    """A task that takes each of its processes along is quarantined, as it would be, and that is its result."""
    sweep = await crash_sweep(sweep_app.kills_itself.bind())
    assert all(str(result).startswith("failed: taskrunner.WorkerLost: quarantined") for result in sweep.results)


async def test_a_task_that_kills_its_process_once() -> None:
    """A death that is no kill of the sweep's is gone on from, as a supervisor that is started again does."""
    sweep = await crash_sweep(sweep_app.dies_once.bind())
    assert set(sweep.results) == {2}
    assert sweep.kills == len(sweep.results) - 2


async def test_an_app_with_threads_is_swept_by_fresh_processes() -> None:
    """An app that starts a thread when it is imported is not forked, and swept all the same."""
    sweep = await crash_sweep(sweep_threads_app.short.bind())
    assert set(sweep.results) == {1}
    assert sweep.kills >= 8


async def test_a_task_that_never_ends() -> None:
    """A run that does not end in its time is told of, with what it did last and what it has printed."""
    with pytest.raises(TimeoutError) as caught:
        await crash_sweep(sweep_app.never_ends.bind(), timeout="1s")
    assert str(caught.value) == (
        "crash_sweep: task 'never_ends' of the run that was not killed has not ended within its timeout of 1 seconds; "
        "its last commit was: the claim; the end of what was printed:\nstill here"
    )


async def test_a_task_that_waits_for_others() -> None:
    """A task that nobody may claim is told of at once."""
    with (
        runner.override(queues=["other"]),
        pytest.raises(TimeoutError, match="though all that is due has run: it waits for its turn"),
    ):
        await crash_sweep(sweep_app.plain.bind(1))


async def test_a_runner_without_a_name() -> None:
    """A runner that lives in a function cannot be imported: one sentence says so."""
    hidden = TaskRunner()

    @hidden.task
    async def inside() -> None: ...

    with pytest.raises(InvalidInput, match="crash_sweep: a child process imports the runner by its name, and this one"):
        await crash_sweep(inside.bind())


async def test_a_task_in_a_function() -> None:
    """A task that is added to a known runner in a function is not there when the module is imported afresh."""

    async def inside() -> None: ...

    task = runner.task(name="inside a test")(inside)
    try:
        with pytest.raises(InvalidInput) as caught:
            await crash_sweep(task.bind())
    finally:
        del runner.definitions["inside a test"]
    assert str(caught.value) == (
        "crash_sweep: 'inside a test' is not among the tasks of tests.integration.sweep_app:runner in a process that "
        "imports it afresh: define it at the top of a module"
    )


async def test_a_task_without_a_runner() -> None:
    """Tasks that nobody includes cannot run."""
    lonely = Tasks()

    @lonely.task
    async def alone() -> None: ...

    with pytest.raises(UnknownTask, match="crash_sweep: task 'alone' is in no runner"):
        await crash_sweep(alone.bind())


@pytest.mark.parametrize("wrong", [None, "adds", sweep_app.adds])
async def test_something_else_than_a_bound_task(wrong: Any) -> None:  # noqa: ANN401 - that is the point
    """The call itself says what it wants."""
    with pytest.raises(InvalidInput, match=r"a bound task is wanted, as task.bind\(…\) gives it"):
        await crash_sweep(wrong)


async def test_a_runner_of_a_test_beside_the_programs_own() -> None:
    """`temp_runner` puts the tasks into a second runner: the one that can be imported is swept."""
    async with temp_runner(sweep_app.elsewhere) as working:
        assert await (await working.enqueue(sweep_app.far.bind())).result(timeout="10s") == 2
    sweep = await crash_sweep(sweep_app.far.bind())
    assert set(sweep.results) == {2}


SCRIPT = """
import asyncio
from taskrunner import TaskContext, TaskRunner
from taskrunner.testing import crash_sweep

runner = TaskRunner()

def two() -> int:
    return 2

@runner.task
async def job(ctx: TaskContext) -> int:
    return await ctx.step("two", two)

if __name__ == "__main__":
    sweep = asyncio.run(crash_sweep(job.bind()))
    print(set(sweep.results), sweep.kills > 8, sweep.repeated_steps)
"""


def test_a_script_sweeps_its_own_task(tmp_path: Path) -> None:
    """A program of one file is imported from that file, without what it does as a program."""
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, cwd=ROOT, env=_env(), check=False)
    assert (done.stdout, done.stderr) == ("{2} True []\n", "")


def test_a_program_without_a_file(tmp_path: Path) -> None:
    """`python -c` cannot be imported, and is told so in one sentence."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=ROOT, env=_env(), check=False
    )
    assert done.stderr.splitlines()[-1].startswith(
        "taskrunner.InvalidInput: crash_sweep: a child process imports the program, and this one is in no file"
    )


def test_an_app_that_cannot_be_imported_twice(tmp_path: Path) -> None:
    """An app whose import fails in another process is named, with the error and its place."""
    app = f"import sys\nif 'killed' in sys.argv[1:]: raise RuntimeError('not here')\n{SCRIPT.partition('if __name')[0]}"
    (tmp_path / "odd.py").write_text(app)
    program = "import sys, asyncio, odd; sys.argv.append('killed'); asyncio.run(odd.crash_sweep(odd.job.bind()))"
    env = {**_env(), "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=False)
    assert done.stderr.splitlines()[-1] == (
        "taskrunner.InvalidInput: crash_sweep: 'odd' cannot be imported in a process of its own: "
        f"RuntimeError: not here ({tmp_path}/odd.py:2)"
    )


def _env() -> dict[str, str]:
    return {"PYTHONPATH": str(ROOT), "PATH": ""}
