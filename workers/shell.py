"""Programs as durable tasks, as a small app of its own.

    taskrunner run workers.shell:runner
    taskrunner --db shell.db enqueue shell.run 'argv=["tar", "-czf", "backup.tgz", "documents"]' cwd=/home/me

The store is `--db`, else TASKRUNNER_DB, else shell.db in the current folder. What the programs may do is what this
process's user may do: give it one of its own.
"""

from __future__ import annotations

import os

from taskrunner import TaskRunner
from taskrunner.workers.shell import tasks

runner = TaskRunner(os.environ.get("TASKRUNNER_DB", "shell.db"))
runner.include(tasks)
