"""Secrets stay out of what people see (G10): canaries in every place where one may be, sought in all that comes out."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskrunner import InvalidInput, StepFailed, TaskContext, TaskFailed, TaskRunner
from taskrunner.core.redaction import HIDDEN, Redaction
from tests.integration.commands import Folder, wait_until
from tests.integration.machine import Heard, alive, quick

CANARY: Final = 'k4n4"ry-5e\\cret'
"""With what a repr, and JSON, write otherwise."""

TOKEN: Final = "tok-8d1f00c4"  # noqa: S105 - a canary

APP: Final = """
import anyio
from taskrunner import TaskContext, TaskRunner

runner = TaskRunner(redact=REDACT)


async def login(password: str) -> dict[str, str]:
    return {"user": "ann", "token": "TOKEN"}


async def fails(password: str) -> None:
    raise ValueError(f"the service said: {password} is wrong")


@runner.task(max_retries=0)
async def leak(ctx: TaskContext, password: str, topic: str, file: str) -> dict[str, str]:
    ctx.log.info("begun with " + password, header={"Authorization": password}, seen=[password], topic=topic)
    session = await ctx.step("login", login, password)
    await ctx.progress(0.5, f"as {password}, by {session['token']}")
    ctx.log.warning("logged in", token=session["token"], echo=session["token"])
    try:
        await ctx.step("use", fails, password)
    except Exception:
        ctx.log.exception("it failed")
    while not await anyio.Path(file).exists():
        await anyio.sleep(0.02)
    if topic == "good":
        return {"echo": session["token"], "token": session["token"]}
    raise RuntimeError(f"no use of {password!r}, {session['token']}")
"""


def hidden(text: str) -> bool:
    """Whether no canary stands in a text, however it is written."""
    forms = (CANARY, repr(CANARY)[1:-1], CANARY.replace("\\", "\\\\"), CANARY.replace("\\", "\\\\").replace('"', '\\"'))
    return not any(form in text for form in (*forms, forms[-1].replace("\\", "\\\\"), TOKEN))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("processes", ["0", "1"])
@pytest.mark.parametrize("redact", ['["password", "*token", "authorization"]', "lambda seen: '(hidden)'"])
def test_no_canary_comes_out(tmp_path: Path, redact: str, processes: str) -> None:
    """Neither the log of `run` (in this process and in children), nor any command shows one, in text or in JSON."""
    folder = Folder.make(tmp_path)
    (tmp_path / "app.py").write_text(APP.replace("REDACT", redact).replace("TOKEN", TOKEN), encoding="utf-8")
    ids = {}
    for topic in ("good", "bad"):
        pairs = ("password=" + CANARY, "topic=" + topic, "file=" + str(tmp_path / "go"))
        ids[topic] = folder.ok("enqueue", "leak", *pairs, "--max-retries", "0", "--unique-key", topic + CANARY).strip()
    with folder.started("run", "app:runner", "--processes", processes, "--until-idle", "--lease", "60") as supervisor:
        wait_until(lambda: len(folder.json("list", "--status", "running")) == 2, within=20)
        for process in (supervisor.pid, *children_of(supervisor.pid)):
            assert hidden(Path(f"/proc/{process}/cmdline").read_text())
            assert hidden(Path(f"/proc/{process}/environ").read_text())
        for process in children_of(supervisor.pid):
            assert not [file for file in files_of(process) if "agent.db" in file]
        outs = [folder.ok("list"), folder.ok("show", ids["bad"])]
        (tmp_path / "go").touch()
        outs.append(supervisor.communicate(timeout=30)[0])
    assert outs[-1].count('"task.failed"') == 1, outs[-1]
    for task_id in ids.values():
        for command in ("show", "tail"):
            outs += [folder.run(command, task_id, *more).stdout for more in ((), ("--json",))]
    for words in ("list", "stats", "doctor", "doctor --invariants", "config", "retry --dry-run"):
        outs += [told.stdout + told.stderr for more in ([], ["--json"]) for told in [folder.run(*words.split(), *more)]]
    for out in outs:
        assert hidden(out), out
    assert "leak" in outs[0]
    assert "no use of" in outs[1] + folder.ok("show", ids["bad"]) or "(hidden)" in folder.ok("show", ids["bad"])


def files_of(pid: int) -> list[str]:
    """What a process has open."""
    return [str(descriptor.readlink()) for descriptor in Path(f"/proc/{pid}/fd").iterdir() if descriptor.is_symlink()]


def children_of(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_events_and_errors_are_covered_and_values_are_not(db: Path) -> None:
    """A listener and who awaits the result hear no canary; the program itself gets its values as they are."""
    runner = quick(db, redact=["password"])
    heard = Heard(runner)

    @runner.task(max_retries=0)
    async def leak(ctx: TaskContext, login: dict[str, str]) -> str:
        assert await ctx.step("keep", dict, login) == login
        with pytest.raises(StepFailed) as caught:
            await ctx.step("say", fail, login)
        assert CANARY not in str(caught.value)
        raise ValueError(login["password"])

    async def fail(login: dict[str, str]) -> None:
        raise LookupError(f"{login}")

    async with runner.working():
        handle = await leak.enqueue({"user": "ann", "password": CANARY})
        with pytest.raises(TaskFailed) as failed:
            await handle.result(timeout=10)
        assert hidden(f"{failed.value} {heard.events}")
        assert HIDDEN in str(failed.value)
        info = await handle.info()
        assert info.task.input == {"login": {"user": "ann", "password": CANARY}}
        assert hidden(f"{info.attempts} {[step.error for step in info.steps]}")
        assert CANARY.replace('"', '\\"') in str(info.steps[0].value).replace("\\\\", "\\")
    [event] = heard.of("task.failed")
    assert HIDDEN in event["error"]


@pytest.mark.parametrize("redact", ["password", b"x", 5, [5], [""], ["a\n"], {"a": 1}])
def test_what_names_no_keys_is_refused(redact: Any) -> None:  # noqa: ANN401 - odd ones
    """One word would be taken for its letters: a list is wanted, or a function."""
    with pytest.raises(InvalidInput, match=r"^redact"):
        TaskRunner(redact=redact)


async def test_an_async_function_is_refused() -> None:
    """Nobody would await it."""

    async def seen(value: object) -> object:
        return value

    with pytest.raises(InvalidInput, match=r"redact=.*plain function"):
        TaskRunner(redact=seen)


def test_a_function_that_raises_shows_nothing() -> None:
    """What cannot be looked through is hidden."""
    redaction = Redaction(function=lambda _value: 1 / 0)
    assert (redaction.value({"a": 1}), redaction.text("a")) == (HIDDEN, HIDDEN)


def test_keys_are_compared_as_people_write_them() -> None:
    """Case and hyphens do not matter, `*` stands for anything; short values are hidden under their key only."""
    redaction = Redaction(["api_key", "*secret*"]).apart({"API-Key": "sesame-open", "MySecret": {"pin": 12}, "n": "12"})
    assert redaction.value({"Api-Key": "x", "a": [{"mysecrets": 1}], "n": "12", "say": "sesame-open!"}) == {
        "Api-Key": HIDDEN,
        "a": [{"mysecrets": HIDDEN}],
        "n": "12",
        "say": f"{HIDDEN}!",
    }
    assert redaction.under("my_secret", 7) == HIDDEN
    assert redaction.value({"api_key": None}) == {"api_key": None}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.just("key"), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(document=JSON, secret=st.text(min_size=6), wrap=st.sampled_from([str, repr, lambda text: f"<{text}>"]))
def test_a_secret_is_found_in_any_document(document: Any, secret: str, wrap: Callable[[str], str]) -> None:  # noqa: ANN401 - any JSON
    """Whatever stands around it: no text of the task tells the value of a key that is hidden."""
    redaction = Redaction(["key"]).apart({"around": document, "key": secret})
    assert secret not in redaction.text(f"a {wrap(secret)} b").replace(HIDDEN, "")
    seen = redaction.value({"around": document, "key": secret, "list": [secret]})
    assert (seen["key"], seen["list"]) == (HIDDEN, [HIDDEN])
    assert Redaction().value(document) is document


def test_a_console_shows_no_canary(tmp_path: Path) -> None:
    """The same log on a terminal."""
    import pty

    folder = Folder.make(tmp_path)
    app = APP.replace("REDACT", '["password", "*token", "authorization"]').replace("TOKEN", TOKEN)
    (tmp_path / "app.py").write_text(app, encoding="utf-8")
    (tmp_path / "go").touch()
    folder.ok(
        "enqueue", "leak", "--max-retries", "0", "password=" + CANARY, "topic=bad", "file=" + str(tmp_path / "go")
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(sys.executable, [sys.executable, "-m", "taskrunner", "run", "app:runner", "--until-idle"], folder.env)  # noqa: S606
    shown, begun = b"", time.monotonic()
    while alive(pid) or time.monotonic() < begun + 1:
        try:
            shown += os.read(terminal, 65_536)
        except OSError:
            break
    os.close(terminal)
    os.waitpid(pid, 0)
    assert b"it failed" in shown
    assert b"[redacted]" in shown
    assert hidden(shown.decode())
