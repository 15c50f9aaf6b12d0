"""`taskrunner cancel` and `taskrunner retry`: by ids and by filters, what they print, and how they end."""

from __future__ import annotations

import signal
from pathlib import Path

import anyio
import pytest

from taskrunner import TaskRunner
from tests.integration.commands import Folder, here, json_here, sql, wait_until

HOW = "name the tasks by their ids, or choose them by a filter"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder with an app and no store."""
    return Folder.make(tmp_path)


def fill(folder: Folder, **counts: int) -> dict[str, list[str]]:
    """Tasks by status, so many of each; the failed ones had one attempt. Those of odd numbers are of queue `odd`."""
    return anyio.run(_fill, folder, counts)


async def _fill(folder: Folder, counts: dict[str, int]) -> dict[str, list[str]]:
    runner = TaskRunner(folder.db)

    @runner.task(max_retries=0, name="job")
    async def job(fails: bool) -> None:
        if fails:
            raise ValueError("no")

    ids: dict[str, list[str]] = {}
    async with runner:
        for status in ("failed", "completed", "cancelled", "pending"):
            handles = [
                await job.options(queue="odd" if number % 2 else "even").enqueue(fails=status == "failed")
                for number in range(counts.get(status, 0))
            ]
            ids[status] = [handle.id for handle in handles]
            if status == "cancelled":
                for handle in handles:
                    await handle.cancel()
            elif status != "pending":
                await runner.drain()
    return ids


def statuses(folder: Folder) -> dict[str, int]:
    """How many tasks there are of each status."""
    rows = sql(folder.db, "SELECT status, count(*) FROM tasks GROUP BY status")
    return {status: count for status, count in rows}  # noqa: C416 - pairs, whatever their type


def test_cancel_by_ids(folder: Folder) -> None:
    """Each task has its line; the code is 1 when one was too late, and 4 when one is not there."""
    ids = fill(folder, pending=2, completed=1)
    first, second = ids["pending"]
    done = here(folder, "cancel", first, "--reason", "enough\x1b[31m")
    assert (done.returncode, done.stdout) == (0, f"{first}\tcancelled\t\n")
    assert json_here(folder, "show", first)["task"]["error_message"] == "enough\x1b[31m"
    done = here(folder, "cancel", second, ids["completed"][0], second)
    assert (done.returncode, done.stdout) == (
        1,
        f"{second}\tcancelled\t\n{ids['completed'][0]}\ttoo late\tcompleted\n",
    )
    done = here(folder, "cancel", "nobody")
    assert (done.returncode, done.stdout) == (4, "nobody\tnot found\t\n")


def test_cancel_by_a_filter(folder: Folder) -> None:
    """All that a filter means is cancelled, in batches, and counted; what has ended already is not meant."""
    fill(folder, pending=9, completed=2)
    done = here(folder, "cancel", "--queue", "odd")
    assert (done.returncode, done.stdout) == (0, "4 cancelled\n")
    assert here(folder, "cancel", "--type", "nothing").stdout == "no task is meant\n"
    document = json_here(folder, "cancel", "--status", "pending")
    assert document["counts"] == {"cancelled": 5}
    assert {each["answer"] for each in document["tasks"]} == {"cancelled"}
    assert statuses(folder) == {"cancelled": 9, "completed": 2}


def test_retry_by_a_filter_means_failed_ones(folder: Folder) -> None:
    """What somebody has cancelled is retried only when --status says so."""
    fill(folder, failed=3, cancelled=2, completed=1, pending=1)
    assert here(folder, "retry", "--type", "job").stdout == "3 to be run again\n"
    assert statuses(folder) == {"cancelled": 2, "completed": 1, "pending": 4}
    assert here(folder, "retry", "--status", "cancelled", "--since", "1h").stdout == "2 to be run again\n"
    assert here(folder, "retry", "--status", "failed", "--until", "1h").stdout == "no task is meant\n"


def test_retry_by_ids(folder: Folder) -> None:
    """A failed and a cancelled task are run again; one that completed, or waits, is not; a taken key is refused."""
    ids = fill(folder, failed=1, cancelled=1, completed=1)
    done = here(folder, "retry", *ids["failed"], *ids["cancelled"])
    assert (done.returncode, done.stdout.count("\tretried\t")) == (0, 2)
    done = here(folder, "retry", *ids["completed"], *ids["failed"])
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"{ids['completed'][0]}\tnot retried\tit has completed; only failed and cancelled tasks are retried",
        f"{ids['failed'][0]}\tnot retried\tit is pending; only failed and cancelled tasks are retried",
    ]
    first = here(folder, "enqueue", "job", "--unique-key", "k").stdout.strip()
    here(folder, "cancel", first)
    here(folder, "enqueue", "job", "--unique-key", "k")
    done = here(folder, "retry", first)
    assert done.returncode == 1
    assert done.stdout.startswith(f"{first}\tkey taken\tan unfinished task 'job' has unique_key='k' already")


@pytest.mark.parametrize("verb", ["cancel", "retry"])
def test_a_dry_run_does_nothing(folder: Folder, verb: str) -> None:
    """--dry-run lists what would be done, by a filter or by ids, says how many, and changes nothing."""
    ids = fill(folder, failed=2, pending=3, completed=1)
    before = statuses(folder)
    meant = ids["pending"] if verb == "cancel" else ids["failed"]
    done = here(folder, verb, "--type", "job", "--dry-run")
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == meant[::-1]
    assert done.stderr == f"taskrunner: --dry-run: {verb} means {len(meant)} tasks; nothing was done\n"
    document = json_here(folder, verb, meant[0], ids["completed"][0], "--dry-run")
    assert [row["id"] for row in document["tasks"]] == meant[:1]
    left = document["too_late" if verb == "cancel" else "not_retriable"]
    assert [row["id"] for row in left] == ids["completed"]
    assert here(folder, verb, "nobody", "--dry-run").returncode == 4
    assert statuses(folder) == before


@pytest.mark.parametrize("verb", ["cancel", "retry"])
@pytest.mark.parametrize("more", [(), ("--dry-run",), ("x", "--type", "t")])
def test_without_ids_or_a_filter_nothing_is_done(folder: Folder, verb: str, more: tuple[str, ...]) -> None:
    """A forgotten filter does not mean all: neither, or both, is refused in one sentence, and no store is made."""
    done = here(folder, verb, *more)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert HOW in done.stderr
    assert not folder.db.exists()


@pytest.mark.parametrize("args", [("cancel", "x"), ("retry", "--status", "failed"), ("cancel", "x", "--dry-run")])
def test_they_make_no_store(folder: Folder, args: tuple[str, ...]) -> None:
    """A slip in --db ends with 3, and leaves no new file behind."""
    done = here(folder, *args)
    assert (done.returncode, done.stdout) == (3, "")
    assert "there is no such " in done.stderr
    assert not folder.db.exists()


def test_an_odd_row_spoils_no_batch(folder: Folder) -> None:
    """B74: beside a row that the store would refuse to write again, the others are cancelled."""
    ids = fill(folder, pending=4)["pending"]
    odd = f"UPDATE tasks SET output = '1' WHERE id = '{ids[1]}'"  # noqa: S608 - an id of ours
    sql(folder.db, "PRAGMA ignore_check_constraints = ON", odd)
    done = here(folder, "cancel", "--type", "job")
    assert (done.returncode, done.stdout) == (1, "3 cancelled, 1 unreadable, and left alone\n")
    assert statuses(folder) == {"cancelled": 3, "pending": 1}


@pytest.mark.timeout(40)
def test_a_running_task_is_cancelled_and_run_again_from_the_shell(folder: Folder) -> None:
    """`cancel` reaches the supervisor of a running task; `retry` has it run again, from its recorded step."""
    task_id = folder.ok("enqueue", "wait_for", "file=gate").strip()
    with folder.started("run", "app:runner", "--grace", "0.2") as supervisor:
        wait_until(folder.has_begun)
        assert here(folder, "cancel", task_id).stdout == f"{task_id}\tcancelling\t\n"
        wait_until(lambda: json_here(folder, "show", task_id)["task"]["status"] == "cancelled")
        (folder.path / "gate").touch()
        assert here(folder, "retry", task_id).returncode == 0
        done = here(folder, "tail", task_id, "--timeout", "10")
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(10) == 0
    assert done.returncode == 0
    shown = json_here(folder, "show", task_id)
    assert [attempt["outcome"] for attempt in shown["attempts"]] == ["cancelled", "completed"]
    assert [step["attempt"] for step in shown["steps"]] == [1]
    assert [retry["from_status"] for retry in shown["retries"]] == ["cancelled"]
