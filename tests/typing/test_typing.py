"""Types are part of the contract: what users write is inferred, and what must not work is refused before it runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

pytestmark = pytest.mark.timeout(180)  # a first run of the type checker reads every dependency


def mypy(*files: Path) -> subprocess.CompletedProcess[str]:
    """Run the type checker as a user of the package does, strictly."""
    command = [sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", *map(str, files)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_programs_of_the_contract_type_check() -> None:
    """The contract's programs pass under `mypy --strict`, and each ignore in them is needed."""
    files = [*sorted(HERE.glob("p[0-9][0-9]_*.py")), HERE / "types_that_hold.py"]
    assert len(files) == 5
    done = mypy(*files)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_program_is_refused(tmp_path: Path) -> None:
    """Without its ignores, `types_that_hold` has an error in each of their lines, and in no other."""
    lines = (HERE / "types_that_hold.py").read_text(encoding="utf-8").splitlines()
    wrong = tmp_path / "wrong.py"
    wrong.write_text("\n".join(line.partition("# type: ignore")[0] for line in lines), encoding="utf-8")
    found = {int(line.split(":")[1]) for line in mypy(wrong).stdout.splitlines() if ": error:" in line}
    assert found == {number for number, line in enumerate(lines, start=1) if "# type: ignore" in line}
