"""Kinds of faults for the tests of the command: one works, one breaks something, one dies, and one hangs."""

from __future__ import annotations

import os
import signal
import sys
import time

from taskrunner.chaos.report import Order, Tally


def run(order: Order) -> Tally:
    """Do what the kind's name says."""
    tally = Tally(order.kind, faults=order.share(100))
    tally.count("strokes", order.share(100))
    if order.kind == "breaks":
        tally.broken("lost", "something is gone")
    if order.kind == "dies":
        sys.stderr.write("its last words\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    if order.kind == "hangs":
        time.sleep(600)
    print("a word that is no tally")  # noqa: T201 - what it prints must not spoil it
    return tally
