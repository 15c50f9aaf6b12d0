"""Helpers for the tests of those who write tasks: real stores in temporary files, a clock, and every crash there is.

```python
async def test_reminder() -> None:
    async with harness(runner) as lab:
        assert await lab.call(greet.bind("ada")) == "hello, ada"
        handle = await remind.options(delay="3d").enqueue("ada")
        await lab.advance("3d")
        assert await handle.result() == "reminded ada"


async def test_reminder_survives() -> None:
    sweep = await crash_sweep(remind.bind("ada"))
    assert sweep.repeated_steps == []
    assert set(sweep.results) == {"reminded ada"}
```

With `pytest_plugins = ["taskrunner.testing"]` in a conftest.py, or `-p taskrunner.testing`, they are fixtures as well.
(To pytest: PYTEST_DONT_REWRITE, there is no assert in here.)
"""

from __future__ import annotations

from taskrunner.testing.crash import Sweep, SweptRun, crash_sweep
from taskrunner.testing.lab import START, Harness, StillClock, harness, temp_runner

__all__ = ["START", "Harness", "StillClock", "Sweep", "SweptRun", "crash_sweep", "harness", "temp_runner"]

pytest_plugins = ("taskrunner.testing.fixtures",)
"""What pytest loads when this module is its plugin; nothing else here knows of pytest."""
