"""A warm process that forks the programs of a test: imports are done, SQLite was never opened, there are no threads.

A fork takes some milliseconds where a fresh interpreter takes hundreds. It reads one JSON object per line (`argv`,
`env`, `log`), and answers with the pid of the process that runs it.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import sys
import threading
import traceback
from typing import Any

import anyio._backends._asyncio  # noqa: F401 - what a supervisor would import later
import structlog.stdlib  # noqa: F401 - as above

import taskrunner.cli.run  # noqa: F401 - as above
from taskrunner.chaos.kills import jobs


def main() -> None:
    """Fork a process for every line of the input, until its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them here: who asked watches them by pidfd
    gc.freeze()
    for line in sys.stdin:
        assert threading.active_count() == 1
        pid = os.fork()
        if pid == 0:
            os._exit(_be(json.loads(line)))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


def _be(order: dict[str, Any]) -> int:
    """Become that program; never return into the loop above."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.environ.update(order["env"])
        faulthandler.register(signal.SIGUSR1)  # where does it hang?
        return jobs.main(order["argv"])
    except BaseException:  # noqa: BLE001 - it is written down, and this process ends here
        traceback.print_exc()
        sys.stderr.flush()
        return 70


if __name__ == "__main__":
    main()
