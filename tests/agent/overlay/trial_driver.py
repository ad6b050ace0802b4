"""Run a script as a trial does: the overlay first, the import hook, then the script."""

from __future__ import annotations

import json
import os
import runpy
import sys

from flatout_agent import overlay, wire
from flatout_agent.attach import importing


def main() -> None:
    orders = wire.decode(wire.TrialOrders, json.loads(sys.argv[1]))
    redirected = os.open(os.environ["REDIRECTED"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    overlay.install(
        orders, lambda record: os.write(redirected, record.path.encode() + b"\n") and None
    )
    importing.after_import(overlay.modules())
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
