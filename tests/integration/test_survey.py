"""The survey of Python sources: what it measures, and that it goes on where it was."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from taskrunner import TaskRunner
from taskrunner.workers.effects import Effect, append, read
from taskrunner.workers.source import find_packages, measure, measure_files
from taskrunner.workers.survey import FILES_PER_STEP, MOST_STEPS, package, plan, report, tasks

SOURCE = '''"""A module."""
# A comment.
import os


class Thing:
    """Two
    lines."""

    def short(self):  # a comment beside code
        return """no
docstring"""

    async def long(self):
        """Words."""

        x = 1
        # another comment
        return x
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with three packages, of which one has a file that is no Python, and with single modules."""
    folder = tmp_path / "lib"
    files: dict[str, str | bytes] = {
        "alpha/__init__.py": "",
        "alpha/one.py": SOURCE,
        "alpha/two.py": SOURCE,
        "alpha/deep/three.py": SOURCE,
        "alpha/test/test_one.py": SOURCE,
        "beta/bad.py": "def f(:\n",
        "beta/latin.py": b"# \xe9\nx = 1\n",
        "beta/zero.py": b"x = 1\0\n",
        "gamma/__init__.py": SOURCE,
        "gamma/__pycache__/x.py": SOURCE,
        "site-packages/foreign.py": SOURCE,
        "single.py": SOURCE,
        "_string.py": SOURCE,
        "other.py": SOURCE,
        "no_source.txt": "",
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


# ── what it measures ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_source_is_measured() -> None:
    """Code, comments and docstrings are told apart line by line, and the longest function is known by its place."""
    found = measure(SOURCE.encode(), "x.py")
    assert (found.files, found.lines, found.functions, found.classes) == (1, 19, 2, 1)
    assert (found.code_lines, found.comment_lines) == (8, 2)
    assert (found.documented, found.documentable, found.docstring_share) == (3, 4, 0.75)
    assert found.longest is not None
    assert (found.longest.name, found.longest.file, found.longest.line, found.longest.lines) == ("long", "x.py", 14, 6)


def test_a_file_that_is_no_python(root: Path) -> None:
    """A file that cannot be parsed, or is not there, is counted and named with the reason; the others are measured."""
    found = measure_files(str(root), ["beta/bad.py", "beta/latin.py", "beta/zero.py", "gone.py", "single.py"])
    assert (found.files, found.functions) == (5, 2)
    assert [reason.partition(":")[0] for reason in found.unreadable] == [
        "beta/bad.py",
        "beta/latin.py",
        "beta/zero.py",
        "gone.py",
    ]


def test_packages_are_found(root: Path) -> None:
    """Packages by their folder, single modules by their initial; what is not the library's own is left out."""
    found = {each.name: each.files for each in find_packages(str(root))}
    assert list(found) == ["alpha", "beta", "gamma", "modules-o", "modules-s"]
    assert found["modules-s"] == ["_string.py", "single.py"]
    assert found["gamma"] == ["gamma/__init__.py"]
    assert "alpha/test/test_one.py" in found["alpha"]
    without = {each.name: each.files for each in find_packages(str(root), tests=False)}
    assert "alpha/test/test_one.py" not in without["alpha"]
    assert [each.name for each in find_packages(str(root), limit=2)] == ["alpha", "beta"]


def test_a_folder_that_is_not_there() -> None:
    """A root that is no folder is an error, not an empty survey."""
    with pytest.raises(NotADirectoryError, match="nowhere"):
        find_packages("/nowhere")


# ── the tasks ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_whole_survey(db: Path, root: Path, tmp_path: Path) -> None:
    """A plan, a task per package, notes in the session, and a report as Markdown and CSV with the same figures."""
    runner = TaskRunner(db)
    runner.include(tasks)
    witness = tmp_path / "effects.log"
    async with runner:
        session = await runner.sessions.create(title="survey")
        planned = await plan.options(session_id=session.id).enqueue("one", root=str(root), witness=str(witness))
        await runner.drain()
        handle = await report.enqueue(planned.id, str(tmp_path / "out"))
        await runner.drain()
        written = await handle.result()
        notes = await session.recent(10)
        children = await runner.tasks.list(type="survey.package")
    assert (written.packages, written.missing, written.totals.files) == (5, 0, 12)
    assert sorted(note.content.partition(":")[0] for note in notes) == [
        "alpha",
        "beta",
        "gamma",
        "modules-o",
        "modules-s",
    ]
    assert {child.session_id for child in children} == {session.id}
    assert {child.progress for child in children} == {1.0}
    with Path(written.csv).open(encoding="utf-8", newline="") as file:
        rows = {row["package"]: row for row in csv.DictReader(file)}
    assert rows["alpha"]["functions"] == "8"
    assert rows["alpha"]["longest_function_place"] == "alpha/deep/three.py:14"
    assert rows["beta"]["unreadable"] == "3"
    page = Path(written.markdown).read_text(encoding="utf-8")
    assert "5 packages, 12 files" in page
    assert "beta/bad.py:1" in page
    assert [path.name for path in (tmp_path / "out").iterdir() if path.suffix == ".tmp"] == []
    events = [(effect.event, effect.step) for effect in read(witness)]
    assert events.count(("start", "parse[0]")) == events.count(("end", "parse[0]")) == 5


async def test_a_second_plan_finds_the_tasks_of_the_first(db: Path, root: Path) -> None:
    """Two plans of one name, and a plan that was cut short and ran again, enqueue each package once."""
    runner = TaskRunner(db)
    runner.include(tasks)
    async with runner:
        plans = [await plan.enqueue("one", root=str(root)) for _ in range(2)]
        other = await plan.enqueue("two", root=str(root))
        await runner.drain()
        first, second, third = [await each.result() for each in [*plans, other]]
        assert first == second
        assert not set(first.packages.values()) & set(third.packages.values())
        assert len(await runner.tasks.list(type="survey.package")) == 10


async def test_a_large_package_has_many_steps(db: Path, tmp_path: Path) -> None:
    """A package is measured a few files at a time, in at most forty steps."""
    (tmp_path / "lib").mkdir()
    names = [f"f{number}.py" for number in range(7)]
    for name in names:
        (tmp_path / "lib" / name).write_text(SOURCE, encoding="utf-8")
    runner = TaskRunner(db)
    runner.include(tasks)
    async with runner:
        small = await package.enqueue("small", str(tmp_path / "lib"), names)
        large = await package.enqueue("large", str(tmp_path / "lib"), names * 100)
        await runner.drain()
        assert len((await small.info()).steps) == -(-len(names) // FILES_PER_STEP)
        assert len((await large.info()).steps) <= MOST_STEPS
        assert (await large.result()).functions == 100 * (await small.result()).functions == 1400


async def test_a_package_without_a_report_is_named(db: Path, root: Path, tmp_path: Path) -> None:
    """A package whose task was cancelled is missing in the report, by name and with the reason."""
    runner = TaskRunner(db)
    runner.include(tasks)
    async with runner:
        planned = await plan.enqueue("one", root=str(root), limit=1)
        only = await package.options(idempotency_key="one: alpha").enqueue("alpha", str(root), [])
        await only.cancel("not today")
        await runner.drain()
        handle = await report.enqueue(planned.id, str(tmp_path / "out"))
        await runner.drain()
        written = await handle.result()
    assert (written.packages, written.missing) == (0, 1)
    assert "- alpha: task" in Path(written.markdown).read_text(encoding="utf-8")


def test_the_deployable_app(tmp_path: Path, root: Path) -> None:
    """`taskrunner run workers.survey:runner` from the checkout works on survey.db, or on what TASKRUNNER_DB names."""
    checkout = Path(__file__).resolve().parents[2]
    (tmp_path / "workers").symlink_to(checkout / "workers")
    command = [sys.executable, "-m", "taskrunner"]

    def run(*args: str) -> None:
        done = subprocess.run([*command, *args], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    run("--db", "survey.db", "enqueue", "survey.plan", "survey=x", f"root={root}")
    run("run", "workers.survey:runner", "--until-idle")
    run("--db", "survey.db", "doctor")


# ── the witness ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_torn_line_is_left_out(tmp_path: Path) -> None:
    """A log whose last line was cut by a crash is read up to it; a log that is not there is empty."""
    path = tmp_path / "effects.log"
    assert read(path) == []
    effects = [Effect(event="start", task="t", step="s[0]"), Effect(event="end", task="t", step="s[0]")]
    append(path, effects)
    append(path, [])
    with path.open("ab") as file:
        file.write(b'{"event": "sta')
    assert read(path) == effects
