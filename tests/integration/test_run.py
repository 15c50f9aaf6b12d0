"""`./run`: one command for everything, and one sentence when it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that nothing was run in yet, beside a folder `bin` that stands for the whole PATH."""
    folder = tmp_path / "check out"
    (folder / "bin").mkdir(parents=True)
    for name in ("run", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    for tool in ("dirname", "cat", "cksum", "head"):
        (folder / "bin" / tool).symlink_to(shutil.which(tool) or tool)
    return folder


def fake_python(checkout: Path, name: str, code: str) -> None:
    """Put a shell script in a Python's place."""
    path = checkout / "bin" / name
    path.write_text(f"#!/bin/sh\n{code}\n", encoding="utf-8")
    path.chmod(0o755)


def run(checkout: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `./run` with the checkout's own PATH."""
    environment = {**os.environ, "PATH": str(checkout / "bin"), **env}
    command = ["/bin/sh", str(checkout / "run"), *args]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("args", [(), ("nonsense",)])
def test_wrong_usage(checkout: Path, args: tuple[str, ...]) -> None:
    """Without a command, or with an unknown one, it says what there is, and ends with 2."""
    done = run(checkout, *args)
    assert done.returncode == 2
    assert [line.split()[1] for line in done.stderr.splitlines()] == ["demo", "test", "check", "bench", "chaos"]


def test_help(checkout: Path) -> None:
    """Asked for help, it says what there is, and ends with 0."""
    done = run(checkout, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "./run demo" in done.stdout


def test_no_python(checkout: Path) -> None:
    """Without any Python it names the version that it needs."""
    done = run(checkout, "test")
    assert done.returncode == 1
    assert done.stderr == (
        "run: Python 3.11 or newer is needed, and none is on the PATH: install one, or name it with PYTHON=…\n"
    )


def test_old_python(checkout: Path) -> None:
    """A Python that is too old is passed over for a newer one; without one it is as none."""
    fake_python(checkout, "python3", "exit 1")
    assert "Python 3.11 or newer is needed" in run(checkout, "test").stderr
    fake_python(checkout, "python3.12", 'echo "newer: $*" >&2; case $2 in *venv*) exit 1;; esac')
    assert "run: python3.12 cannot make a virtual environment" in run(checkout, "test").stderr


def test_wrong_python(checkout: Path) -> None:
    """PYTHON names one Python, which has to do."""
    done = run(checkout, "test", PYTHON="python9")
    assert (done.returncode, done.stderr) == (1, "run: PYTHON=python9 is not a Python of version 3.11 or newer\n")


def test_no_venv(checkout: Path) -> None:
    """Debian's Python without its venv package: it names the package."""
    fake_python(checkout, "python3", "case $2 in *venv*) exit 1;; esac")
    done = run(checkout, "check")
    assert done.returncode == 1
    assert done.stderr.startswith("run: python3 cannot make a virtual environment: install its venv module")
    assert done.stderr.endswith("(on Debian: apt install python3-venv)\n")


def test_an_interrupted_installation_is_made_again(checkout: Path) -> None:
    """Only a finished installation counts; then it is not made again until the lists change or the checkout moves."""
    python = 'case $* in *"-m venv"*) mkdir -p "$4/bin"; cp "$0" "$4/bin/python";; *"-m pip"*) [ -e "$OK" ];; esac'
    fake_python(checkout, "python3", f'PATH=/usr/bin:/bin; echo "$*" >>"$LOG"\n{python}')
    log, ok = checkout / "log", checkout / "ok"

    def work(folder: Path) -> tuple[int, int]:
        log.write_text("", encoding="utf-8")
        code = run(folder, "test", LOG=str(log), OK=str(ok)).returncode
        return code, log.read_text(encoding="utf-8").count("-m pip")

    assert work(checkout) == (1, 1)
    ok.touch()
    assert work(checkout) == (0, 1)
    assert work(checkout) == (0, 0)
    with (checkout / "constraints.txt").open("a", encoding="utf-8") as constraints:
        constraints.write("# newer\n")
    assert work(checkout) == (0, 1)
    assert work(checkout) == (0, 0)
    moved = checkout.rename(checkout.with_name("moved"))
    log, ok = moved / "log", moved / "ok"
    assert work(moved) == (0, 1)
