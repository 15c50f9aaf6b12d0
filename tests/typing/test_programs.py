"""The contract's programs run as they stand, in a folder of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

OUTPUT = {
    "p01_quickstart": "durable queues: past DURABLE QUEUES: PAST\ndurable queues: present DURABLE QUEUES: PRESENT\n",
    "p02_webapp": ("JobView(status='completed', progress=1.0, report=Report(title='tea', pages=3))\nno such report\n"),
    "p14_inputs": "tea of 2026-01-01 0.5\nrefused: query.tags[1]\n",
    "p15_concurrent": "5\n",
}


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run one program in `folder`, where a store that it does not name is `agent.db`."""
    command = [sys.executable, "-W", "error", str(HERE / f"{program}.py")]
    env = {**os.environ, "TASKRUNNER_DB": "agent.db", "PYTHONPATH": str(HERE.parents[1])}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=15, check=False)


def test_every_program_is_run() -> None:
    """No program of the contract goes untried."""
    assert sorted(OUTPUT) == sorted(path.stem for path in HERE.glob("p[0-9][0-9]_*.py"))


@pytest.mark.parametrize("program", OUTPUT)
def test_a_program_runs(program: str, tmp_path: Path) -> None:
    """It prints what it should, once and again on the same store, and leaves one file: the store."""
    for _time in range(2):
        done = run(program, tmp_path)
        assert (done.stdout, done.stderr, done.returncode) == (OUTPUT[program], "", 0)
        assert len(list(tmp_path.iterdir())) == 1
