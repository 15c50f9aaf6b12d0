"""The benchmarks run, and print all that they promise. How fast anything is, no test says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

RACES = (
    "enqueue, 1 caller",
    "enqueue, 100 callers",
    "enqueue_many, 100 each",
    "drain, concurrency 64",
    "steps, 1 task",
    "steps, 100 tasks",
)
CLAIMS = tuple(f"claim {limit}, {finished} finished rows" for limit in (1, 50) for finished in ("0", "1,000", "10,000"))
MEMORY = tuple(f"memory after {count} tasks" for count in ("500", "1,000", "2,000"))
STARTS = ("enqueue to start, p50", "enqueue to start, p99")
ELSEWHERE = (
    "enqueue to start elsewhere, p50",
    "enqueue to start elsewhere, p99",
    "cancel to end elsewhere, p50",
    "cancel to end elsewhere, p99",
)
RECOVERIES = tuple(f"recovery, 100 messages, 50 tasks, {how}" for how in ("in process", "with Python's start"))


def bench(*args: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m benchmarks` in the checkout."""
    command = [sys.executable, "-m", "benchmarks", *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.timeout(60)
def test_quick_prints_every_row(tmp_path: Path) -> None:
    """`--quick` shows the machine, each workload at FULL and NORMAL beside the raw loop, the claims from each table."""
    report = tmp_path / "report.json"
    done = bench("--quick", "--json", str(report))
    assert (done.returncode, done.stderr) == (0, "")
    machine, *lines = done.stdout.splitlines()
    assert all(fact in machine for fact in ("cores", "python", "sqlite", "fdatasync p50"))
    for name in (*RACES, *STARTS, *ELSEWHERE, "idle supervisor, process"):
        assert {line.split()[len(name.split())] for line in lines if line.startswith(name)} == {"FULL", "NORMAL"}
    for name in (*CLAIMS, *RECOVERIES, "idle supervisor ", *MEMORY):
        assert [line for line in lines if line.startswith(name)]
    results = json.loads(report.read_text(encoding="utf-8"))["results"]
    assert [result["name"] for result in results if result["beside_what"] == "raw"][::2] == list(RACES)
    assert all(result["ours"] > 0 for result in results)
    targets = [result["target"] for result in results if result["target"]]
    assert sorted(targets) == sorted([0.5] * 4 + [1.3] * 6 + [1.2] * 3 + [1.0] * 5)


def test_only() -> None:
    """`--only` measures what it names, and nothing else."""
    lines = bench("--quick", "--only", "idle").stdout.splitlines()
    assert [line for line in lines if line.startswith("idle supervisor")]
    assert not [line for line in lines if line.startswith(("enqueue", "claim"))]


@pytest.mark.parametrize("args", [("--only", "nonsense"), ("--nonsense",)])
def test_wrong_usage(args: tuple[str, ...]) -> None:
    """What it does not know, it refuses with 2, saying what there is."""
    done = bench(*args)
    assert done.returncode == 2
    assert "usage: benchmarks" in done.stderr
