"""`python -m taskrunner.chaos.one`: one kind of fault, in a process of its own; an order comes in, a tally goes out."""

from __future__ import annotations

import os
import sys
import time
from importlib import import_module

import msgspec

from taskrunner.chaos.report import Order, Tally


def main() -> None:
    """Do what the order on the standard input says. Nothing but the tally goes to the standard output."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is started here may print
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    began = time.monotonic()
    tally: Tally = import_module(order.module).run(order)
    tally.seconds = round(time.monotonic() - began, 1)
    with out:
        out.write(msgspec.json.encode(tally))


if __name__ == "__main__":
    main()
