"""The survey of Python sources as a small app of its own.

    taskrunner run workers.survey:runner
    taskrunner --db survey.db enqueue survey.plan survey=first

The store is `--db`, else TASKRUNNER_DB, else survey.db in the current folder.
"""

from __future__ import annotations

import os

from taskrunner import TaskRunner
from taskrunner.workers.survey import tasks

runner = TaskRunner(os.environ.get("TASKRUNNER_DB", "survey.db"))
runner.include(tasks)
