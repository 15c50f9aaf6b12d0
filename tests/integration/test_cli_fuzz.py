"""Hostile command lines: no traceback, no hang, nothing half-stored (A5)."""

from __future__ import annotations

import os
import random
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.commands import Folder, here, sql, strict_json

SEED = int(os.environ.get("FUZZ_SEED", "3"))
INPUTS = int(os.environ.get("FUZZ_INPUTS", "1000"))
PROCESSES = 8

CODES = {0, 1, 2, 3, 4, 124}
MOST_SECONDS = 1.0

TEXTS = [
    "", " ", "-", "--", "---", "=", "==", "a=b=c", "\x00", "\n", "\t\r\n", "\x1b[2J\x1b]0;x\x07", "\u202eabc",
    "\ufeff", "Zoë 🎉", "\ud800", "x" * 5_000, "[bold]x[/bold]", "<script>", "${HOME}", "$(id)", "`id`",
    "'; DROP TABLE tasks; --", '"', "\\", "%s%n%d", "{}", "{0}", "[]", "null", "true", "NaN", "-Infinity", "1e400",
    "-0.0", "0x10", "9" * 400, "-1", "0", "9223372036854775808", "1.5", "1_000", "٣", "1h", "-1h", "5x",
    "9999999999d", "inf", "nan", "2030-01-31T09:00Z", "2030-02-31T09:00Z", "9999-12-31T23:59:59-23:59",
    "0001-01-01T00:00+23:59", "tomorrow", "/dev/null", "/proc/self/mem", "../../etc/passwd", "file:x?mode=memory",
    ":memory:", "postgresql://x", "pending", "failed", "asleep", "[" * 300, '{"a":' * 150, '{"name": "x"}',
    '{"name": NaN}', '{"a": 1, "a": 2}', '{"\\ud800": 1}', "name=x", "name=[1,{}]", "=x", "name=" + "9" * 5_000,
    "--db", "--json", "--help", "--version", "--debug", "@file", "*", "~", "app:runner", "nope:x",
]  # fmt: skip

OPTIONS = {
    "enqueue": ["--input", "--priority", "--queue", "--delay", "--run-at", "--unique-key", "--on-conflict",
                "--idempotency-key", "--session-id", "--max-retries", "--timeout", "--json"],
    "list": ["--status", "--type", "--queue", "--session", "--parent", "--since", "--until", "--limit", "--after",
             "--json"],
    "show": ["--json"],
    "cancel": ["--status", "--type", "--queue", "--session", "--since", "--until", "--reason", "--dry-run", "--json"],
    "retry": ["--status", "--type", "--queue", "--parent", "--since", "--until", "--dry-run", "--json"],
    "tail": ["--json"],
    "stats": ["--exact", "--json"],
    "config": ["--lease", "--heartbeat", "--concurrency", "--queues", "--grace", "--durability", "--max-payload",
               "--json"],
    "doctor": ["--json"],
    "health": ["--max-wait", "--json"],
    "pause": [],
    "resume": [],
    "completion": [],
}  # fmt: skip
"""What each command takes. (`run` and `demo` go on for long; `--wait` waits: they have tests of their own.)"""

FITTING = {
    "--priority": "0 9", "--delay": "1h 0.1", "--run-at": "2030-01-31T09:00Z", "--on-conflict": "reuse replace reject",
    "--status": "pending failed cancelled", "--since": "1h 0", "--until": "0 2030-01-31T09:00Z", "--limit": "1 100000",
    "--max-retries": "0 5", "--timeout": "1m", "--input": '{"name":"x"} {}', "--type": "greet", "--lease": "60",
    "--heartbeat": "1", "--concurrency": "1", "--grace": "0", "--durability": "normal", "--max-payload": "2MiB",
}  # fmt: skip
"""Values that an option takes, so that what stands beside them is looked at as well."""

ONLY_SWITCHES = {"--json", "--dry-run", "--exact"}


def lines(chance: random.Random, ids: list[str]) -> Iterator[list[str]]:
    """Command lines without end: commands with what they take, and with what they do not."""
    while True:
        command = chance.choice(list(OPTIONS))
        words: list[str] = []
        if chance.random() < 0.8 and command in {"show", "tail", "cancel", "retry", "enqueue", "pause", "resume"}:
            likely = ["greet"] if command == "enqueue" else ids[-5:]
            words.append(chance.choice(likely if chance.random() < 0.5 else TEXTS))
        if command == "completion":
            words.append(chance.choice(["zsh", "fish", *TEXTS]))
        if command == "tail":
            words += ["--timeout", "0"]
        for _ in range(chance.choice([0, 0, 1, 1, 2, 3])):
            words += option(chance, command)
        if command == "enqueue":
            words += chance.choices(["name=x", *TEXTS], k=chance.choice([0, 0, 1, 2]))
        if chance.random() < 0.1:
            words.insert(chance.randrange(len(words) + 1), chance.choice(TEXTS))
        front = option(chance, chance.choice(list(OPTIONS))) if chance.random() < 0.03 else []
        yield [*front, command, *words]


def option(chance: random.Random, command: str) -> list[str]:
    """An option of a command with a value that may be anything."""
    names = OPTIONS[command] or ["--json"]
    name = chance.choice(names)
    value = chance.choice(FITTING[name].split() if name in FITTING and chance.random() < 0.6 else TEXTS)
    if name in ONLY_SWITCHES:
        return [name]
    return [f"{name}={value}"] if chance.random() < 0.3 else [name, value]


def snapshot(folder: Folder) -> tuple[int, int]:
    """How many tasks there are, and how many are whole: with JSON that is an object, and one state."""
    [[count, whole]] = sql(
        folder.db,
        "SELECT count(*), sum(json_valid(input) AND json_type(input) = 'object' AND"
        " status IN ('pending', 'cancelled') AND attempt = 0) FROM tasks",
    )
    return count, whole


@pytest.mark.timeout(120)
def test_hostile_lines_are_answered_and_nothing_is_half_stored(tmp_path: Path) -> None:
    """A5: whatever is typed, an answer comes with a known code and no traceback; rows are what was acknowledged."""
    chance = random.Random(SEED)
    folder = Folder.make(tmp_path)
    ids = [here(folder, "enqueue", "greet", "name=x").stdout.strip() for _ in range(3)]
    codes: Counter[int] = Counter()
    typed = lines(chance, ids)
    for _ in range(INPUTS):
        words = next(typed)
        before = resource.getrusage(resource.RUSAGE_SELF)
        done = here(folder, *words)
        after = resource.getrusage(resource.RUSAGE_SELF)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        assert used < MOST_SECONDS, words
        judge(words, done.returncode, done.stdout, done.stderr)
        codes[done.returncode] += 1
        if is_new(words, done.returncode, done.stdout):
            ids.append(acknowledged(words, done.stdout))
    known = len(set(ids))
    assert snapshot(folder) == (known, known)
    assert {0, 2, 4} <= set(codes), codes


def test_hostile_lines_of_real_processes(tmp_path: Path) -> None:
    """A5: the same of processes of their own, whose arguments are bytes of no encoding as well."""
    chance = random.Random(SEED)
    folder = Folder.make(tmp_path)
    folder.ok("enqueue", "greet", "name=x")
    typed = (line for line in lines(chance, ["x"]) if not any("\x00" in word or "\ud800" in word for word in line))
    for _ in range(PROCESSES):
        words = [*next(typed), os.fsdecode(b"\xff\xfe")]
        done = folder.run(*words)
        judge(words, done.returncode, done.stdout, done.stderr)


def judge(words: list[str], code: int, out: str, error: str) -> None:
    """An answer has a known code, no traceback, no terminal codes, at most one sentence of error, and strict JSON."""
    debug = any(word.startswith("--debug") for word in words)
    assert code in CODES, (words, code, error)
    assert debug or "Traceback" not in error, (words, error)
    assert "an error in taskrunner" not in error, (words, error)
    assert "\x1b" not in out + error, words
    troubles = [line for line in error.splitlines() if line.startswith("taskrunner: ")]
    assert debug or len(troubles) == error.count("\n"), (words, error)
    is_document = code == 0 and "--json" in words and words[0] not in {"tail", "completion"} and "--help" not in words
    if is_document and out.startswith(("{", "[")):
        strict_json(out)


def is_new(words: list[str], code: int, out: str) -> bool:
    """Whether an enqueue into the store was acknowledged."""
    elsewhere = any(word.startswith("--db") for word in words)
    return code == 0 and "enqueue" in words and bool(out) and not out.startswith("Usage") and not elsewhere


def acknowledged(words: list[str], out: str) -> str:
    """The id that an enqueue has printed."""
    return str(strict_json(out)["id"]) if out.startswith("{") else out.strip()
