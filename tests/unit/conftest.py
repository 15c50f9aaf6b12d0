"""What unit tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from tests.stores import bare


@pytest.fixture
def plain(db: Path) -> Iterator[apsw.Connection]:
    """A connection to a store's file without an engine: only the schema's own rules hold."""
    connection = bare(db)
    yield connection
    connection.close()
