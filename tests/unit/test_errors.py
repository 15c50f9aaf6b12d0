"""Errors are called what users import."""

from __future__ import annotations

import traceback

import pytest

import taskrunner
from taskrunner.core.errors import class_of_name, error_type_of

PUBLIC = [
    kind
    for kind in (getattr(taskrunner, name) for name in taskrunner.__all__)
    if isinstance(kind, type) and kind.__mro__[-2] is BaseException
]


@pytest.mark.parametrize("kind", PUBLIC, ids=lambda kind: kind.__name__)
def test_a_traceback_calls_an_error_what_users_import(kind: type[BaseException]) -> None:
    """`taskrunner.TaskFailed`, wherever it is defined: in Python's own tracebacks as in a stored error."""
    error = kind.__new__(kind)
    name = f"taskrunner.{kind.__name__}"
    assert traceback.format_exception_only(error)[0].startswith(name)
    assert error_type_of(error) == name
    assert class_of_name(name) is kind


def test_an_error_of_a_users_own_keeps_its_module() -> None:
    """Also if it is derived from one of ours."""

    class OwnError(taskrunner.Fail):
        pass

    assert OwnError.__module__ == __name__
    assert len(PUBLIC) > 20
