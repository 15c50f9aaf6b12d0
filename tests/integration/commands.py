"""The command as users run it: a process of its own, in a folder of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taskrunner.cli import main

APP = """
import anyio
from taskrunner import TaskContext, TaskRunner

runner = TaskRunner()


@runner.task
async def greet(ctx: TaskContext, name: str, times: int = 1) -> dict[str, int]:
    await ctx.progress(0.5, "half way")
    ctx.log.info("greeting", name=name)
    return {name: times}


@runner.task(max_retries=0)
async def broken(text: str) -> None:
    raise ValueError(text)


@runner.task
async def wait_for(ctx: TaskContext, file: str) -> str:
    await ctx.step("first", int, 7)
    ctx.log.info("waiting", file=file)
    while not await anyio.Path(file).exists():
        await anyio.sleep(0.02)
    return "it is there"


def factory() -> TaskRunner:
    return runner


def fails() -> TaskRunner:
    raise RuntimeError("no runner today")


async def coroutine() -> TaskRunner:
    return runner


number = 5
"""


@dataclass(frozen=True)
class Folder:
    """A folder with the app of these tests and, once there is one, its store."""

    path: Path
    env: dict[str, str] = field(default_factory=dict)

    @classmethod
    def make(cls, path: Path) -> Folder:
        """Put the app into the folder."""
        (path / "app.py").write_text(APP, encoding="utf-8")
        ours = {name: value for name, value in os.environ.items() if not name.startswith("TASKRUNNER_")}
        return cls(path, {**ours, "TASKRUNNER_DB": "agent.db"})

    @property
    def db(self) -> Path:
        """Where the store is."""
        return self.path / "agent.db"

    def run(
        self, *args: str, env: Mapping[str, str] | None = None, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run `taskrunner ARGS` to its end."""
        return subprocess.run(
            [sys.executable, "-m", "taskrunner", *args],
            cwd=self.path,
            env={**self.env, **(env or {})},
            input=stdin,
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )

    def ok(self, *args: str, env: Mapping[str, str] | None = None, stdin: str = "") -> str:
        """Run it, see that all went well, and return what it printed."""
        done = self.run(*args, env=env, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *args: str) -> Any:  # noqa: ANN401 - any JSON document
        """Run it with `--json` and return the document, which has to be strict JSON."""
        return strict_json(self.ok(*args, "--json"))

    def has_begun(self) -> bool:
        """Whether a task runs and has recorded a step."""
        rows = self.json("list", "--status", "running")
        return bool(rows) and bool(self.json("show", rows[0]["id"])["steps"])

    @contextmanager
    def started(self, *args: str) -> Iterator[subprocess.Popen[str]]:
        """`taskrunner ARGS` as a process for the length of a block."""
        child = subprocess.Popen(
            [sys.executable, "-m", "taskrunner", *args],
            cwd=self.path,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            yield child
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()


def strict_json(text: str) -> Any:  # noqa: ANN401 - any JSON document
    """Read a document as browsers and databases do: NaN and Infinity are no JSON."""
    return json.loads(text, parse_constant=lambda name: 1 / 0 if name else None)


def wait_until(holds: Callable[[], bool], *, within: float = 10.0) -> None:
    """Wait for something to become so."""
    deadline = time.monotonic() + within
    while not holds():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.05)


def sql(db: Path, *statements: str) -> list[list[Any]]:
    """What another program does to the file: statements, and the rows of the last one."""
    code = (
        "import json, sqlite3, sys\n"
        "db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "rows = [db.execute(text).fetchall() for text in json.load(sys.stdin)]\n"
        "print(json.dumps(rows[-1]))\n"
    )
    command = [sys.executable, "-c", code, str(db)]
    done = subprocess.run(command, input=json.dumps(statements), capture_output=True, text=True, check=True)
    found: list[list[Any]] = json.loads(done.stdout)
    return found


def here(folder: Folder, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run `taskrunner ARGS` in this process, to its end: what `Folder.run` does, without the start of a Python."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n") for _ in range(2)]
    before, path = dict(os.environ), list(sys.path)
    os.environ.clear()
    os.environ.update(folder.env)
    real, sys.stdin = sys.stdin, io.StringIO(stdin)
    try:
        with contextlib.chdir(folder.path), redirect_stdout(streams[0]), redirect_stderr(streams[1]):
            code = main(args)
            for stream in streams:
                stream.flush()
        written = [stream.buffer.getvalue().decode() for stream in streams]
    finally:
        os.environ.clear()
        os.environ.update(before)
        sys.stdin, sys.path[:] = real, path
        sys.modules.pop("app", None)
    return subprocess.CompletedProcess(args, code, *written)


def json_here(folder: Folder, *args: str) -> Any:  # noqa: ANN401 - any JSON document
    """Run it here with `--json`, see that all went well, and return the document, which has to be strict JSON."""
    done = here(folder, *args, "--json")
    assert done.returncode == 0, done.stderr
    return strict_json(done.stdout)
