"""What `workers/` holds for a deployment: systemd takes the unit, and the image's recipe says what it must."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from taskrunner.core.settings import KNOBS
from tests.acceptance.pages import ROOT, blocks
from tests.integration.commands import Folder, wait_until

UNIT = ROOT / "workers" / "taskrunner.service"
DOCKERFILE = ROOT / "workers" / "Dockerfile"
DEPLOYING = ROOT / "docs" / "deploying.md"
CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def unit() -> dict[str, str]:
    """The unit's assignments; none is given twice."""
    lines = re.findall(r"^(\w+)=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(dict(lines)) == len(lines)
    return dict(lines)


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, in order."""
    return re.findall(r"^([A-Z]+) (.*)$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)


def default(name: str) -> float:
    """A setting's default, in seconds."""
    return next(float(str(knob.default)) for knob in KNOBS if knob.name == name)


def test_the_unit_says_what_it_must() -> None:
    """It waits for READY, feeds a watchdog, stops after the grace, starts again, and keeps its store closed."""
    keys = unit()
    assert (keys["Type"], keys["NotifyAccess"], keys["Restart"]) == ("notify", "main", "on-failure")
    assert keys["KillMode"] == "mixed"
    assert float(keys["TimeoutStopSec"]) > default("grace") + 2
    assert float(keys["WatchdogSec"]) > default("lease")
    assert keys["StateDirectory"] == "taskrunner"
    assert keys["Environment"] == "TASKRUNNER_DB=/var/lib/taskrunner/tasks.db"
    assert (keys["StateDirectoryMode"], keys["UMask"], keys["NoNewPrivileges"]) == ("0700", "0077", "yes")
    assert keys["ProtectSystem"] == "strict"


def test_the_unit_starts_a_supervisor_of_the_checkout() -> None:
    """Its command is `taskrunner run APP`, and the app is there."""
    program, command, app = shlex.split(unit()["ExecStart"])
    assert (Path(program).name, command) == ("taskrunner", "run")
    assert (ROOT / f"{app.partition(':')[0].replace('.', '/')}.py").exists()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this machine has no systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify` finds nothing to say, but for the paths, which are those of another machine."""
    text = UNIT.read_text(encoding="utf-8").replace("/opt/taskrunner/.venv/bin/taskrunner", sys.executable)
    copy = tmp_path / UNIT.name
    copy.write_text(text.replace("/opt/taskrunner", str(ROOT)), encoding="utf-8")
    command = [shutil.which("systemd-analyze") or "", "verify", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (ours, done.returncode) == ([], 0), done.stderr


def test_the_image_says_what_it_must() -> None:
    """Slim, no root, the store in a volume, health asked of the store, and the supervisor itself as process 1."""
    found = dict(instructions())
    assert re.fullmatch(r"python:3\.1[1-9]-slim", found["FROM"])
    assert found["USER"] == "taskrunner"
    assert found["ENV"].startswith(f"TASKRUNNER_DB={found['VOLUME']}/")
    assert found["HEALTHCHECK"].endswith("CMD taskrunner health || exit 1")
    assert found["ENTRYPOINT"] == '["taskrunner", "run"]'
    assert found["STOPSIGNAL"] == "SIGTERM"
    order = [name for name, _rest in instructions()]
    assert order.index("USER") > order.index("RUN")


def test_the_image_is_made_of_what_is_there() -> None:
    """Every file that is copied exists, and is not left out of what Docker is sent."""
    sent = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    for name, rest in instructions():
        if name == "COPY":
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists()
                assert f"!{source}" in sent


@pytest.mark.skipif(shutil.which("unshare") is None, reason="this machine has no unshare")
def test_process_1_obeys_sigterm(tmp_path: Path) -> None:
    """As process 1 of a container, without an init before it, a supervisor drains at SIGTERM and ends with 0."""
    if subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let us unshare a pid namespace")
    folder = Folder.make(tmp_path)
    folder.ok("enqueue", "wait_for", "file=gate")
    supervisor = subprocess.Popen(
        [*CONTAINER, sys.executable, "-m", "taskrunner", "run", "app:runner"],
        cwd=folder.path,
        env=folder.env,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(folder.has_begun)
        (row,) = folder.json("doctor")["supervisors"]
        assert row["pid"] == 1
        inside = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text(encoding="ascii")
        (folder.path / "gate").touch()
        os.kill(int(inside), signal.SIGTERM)
        assert supervisor.wait(10) == 0
    finally:
        supervisor.kill()
        supervisor.wait()
    assert folder.json("list")[0]["status"] == "completed"


def test_what_the_page_shows_is_in_the_files() -> None:
    """docs/deploying.md quotes the unit and the Dockerfile line by line."""
    files = UNIT.read_text(encoding="utf-8") + DOCKERFILE.read_text(encoding="utf-8")
    shown = [block for block in blocks(DEPLOYING) if block.kind in {"ini", "dockerfile"}]
    assert len(shown) == 2
    for block in shown:
        for line in block.text.splitlines():
            assert line in files.splitlines(), f"line {block.line}: {line}"
