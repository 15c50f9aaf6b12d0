"""`./run check`: is a known vulnerability in what constraints.txt pins? One question to osv.dev, which keeps the list.

It ends with 1 when there is one. When the service does not answer within seconds, as without a network, it says that
it was skipped, and ends with 0: a check must not depend on somebody else's machine.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import httpx

SERVICE: Final = "https://api.osv.dev/v1/querybatch"
PINS: Final = Path(__file__).resolve().parents[1] / "constraints.txt"
PATIENCE: Final = 10.0
"""Seconds for the whole question."""

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;#]+)", re.MULTILINE)

Pin = tuple[str, str]


def pins(text: str) -> list[Pin]:
    """The packages and versions of a file of constraints."""
    return _PIN.findall(text)


def ask(service: str, wanted: Sequence[Pin]) -> dict[Pin, list[str]]:
    """The known vulnerabilities of each.

    Raises:
        httpx.HTTPError: there is no answer.
        ValueError: it is not the answer to what was asked; so do KeyError, TypeError and AttributeError.
    """
    queries = [{"package": {"name": name, "ecosystem": "PyPI"}, "version": version} for name, version in wanted]
    answer = httpx.post(service, json={"queries": queries}, timeout=PATIENCE / 2).raise_for_status()
    found = [[each["id"] for each in result.get("vulns", ())] for result in answer.json()["results"]]
    return dict(zip(wanted, found, strict=True))


def report(found: dict[Pin, list[str]]) -> Iterator[str]:
    """A line for each package that has one."""
    for (name, version), ids in found.items():
        if ids:
            yield f"audit: {name} {version}: {', '.join(sorted(ids))}: see https://osv.dev/list?q={name}"


def main() -> int:
    """Ask, tell, and return the exit code."""
    wanted = pins(PINS.read_text(encoding="utf-8"))
    try:
        found = ask(os.environ.get("AUDIT_SERVICE", SERVICE), wanted)
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"audit: skipped: osv.dev is not reachable ({type(error).__name__})")  # noqa: T201 - it is a command
        return 0
    lines = [*report(found)] or [f"audit: no known vulnerability in {len(wanted)} pinned packages"]
    print(*lines, sep="\n")  # noqa: T201 - as above
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main())
