"""The audit of `./run check`: what it says of an answer, and that it does without one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from tests import audit


@contextmanager
def service(answer: Any, *, status: int = 200, after: float = 0) -> Iterator[str]:  # noqa: ANN401 - any JSON
    """A server on this machine that answers every question alike; with `"echo"` as many results as were asked for."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
            time.sleep(after)
            given = {"results": [results.get(each["package"]["name"], {}) for each in asked]} if results else answer
            body = given if isinstance(given, bytes) else json.dumps(given).encode()
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: object) -> None:
            """Say nothing."""

    results = answer.get("by_name") if isinstance(answer, dict) else None
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1/querybatch"
        finally:
            server.shutdown()
            thread.join()


def test_a_known_vulnerability_fails_the_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its package and its number are named."""
    found = {"by_name": {"click": {"vulns": [{"id": "GHSA-x"}, {"id": "CVE-1"}]}}}
    with service(found) as url:
        monkeypatch.setenv("AUDIT_SERVICE", url)
        assert audit.main() == 1
    said = capsys.readouterr().out
    assert said.startswith("audit: click ")
    assert ": CVE-1, GHSA-x: see " in said


def test_no_known_vulnerability_passes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It says how many packages it has asked about."""
    with service({"by_name": {"none": {}}}) as url:
        monkeypatch.setenv("AUDIT_SERVICE", url)
        assert audit.main() == 0
    assert capsys.readouterr().out == f"audit: no known vulnerability in {len(pinned())} pinned packages\n"


def pinned() -> list[tuple[str, str]]:
    """What is asked about: every pin of the file."""
    found = audit.pins(audit.PINS.read_text(encoding="utf-8"))
    lines = audit.PINS.read_text(encoding="utf-8").splitlines()
    assert len(found) == len([line for line in lines if line and not line.startswith("#")])
    return found


@pytest.mark.parametrize(
    ("answer", "status", "after"),
    [({}, 200, 0), ([], 200, 0), ({"results": []}, 200, 0), (b"<html>", 200, 0), ({}, 503, 0), ({}, 200, 1)],
)
def test_it_is_skipped_without_an_answer(
    answer: object, status: int, after: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A proxy's page, an error or silence is no answer: it is said to be skipped, soon, and fails nothing."""
    monkeypatch.setattr(audit, "PATIENCE", 0.5)
    with service(answer, status=status, after=after) as url:
        monkeypatch.setenv("AUDIT_SERVICE", url)
        assert audit.main() == 0
    assert capsys.readouterr().out.startswith("audit: skipped: osv.dev is not reachable (")


def test_it_is_skipped_without_a_network(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody listens there."""
    monkeypatch.setenv("AUDIT_SERVICE", "http://127.0.0.1:9/")
    assert audit.main() == 0
    assert capsys.readouterr().out == "audit: skipped: osv.dev is not reachable (ConnectError)\n"
