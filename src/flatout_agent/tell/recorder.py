"""Writes this process's records: one JSON document a line in `<records>/<pid>.jsonl`."""

from __future__ import annotations

import os
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from flatout_agent import wire

T = TypeVar("T")


class Recorder:
    """Only the process that made it writes; a forked loader worker inherits it but stays silent."""

    def __init__(
        self, folder: str, heard: Callable[[wire.Record], None] = lambda record: None
    ) -> None:
        """heard: called with each record if the host is in this process; raises nothing."""
        self.heard = heard
        self.folder = folder
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._faults: set[tuple[str, str]] = set()
        self.faults: Counter[str] = Counter()
        """The number of the agent's own errors, by place."""
        path = os.path.join(folder, f"{self.pid}.jsonl")  # noqa: PTH118
        self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: PTH123, SIM115

    def write(self, record: wire.Record) -> None:
        """Append one record; a full disk or a removed folder is not the program's problem."""
        if os.getpid() != self.pid:
            return
        try:
            with self._lock:
                self._file.write(wire.dump(record) + "\n")
        except (OSError, ValueError):
            pass
        self.heard(record)

    def close(self) -> None:
        """Stop writing."""
        self._file.close()

    def fault(self, where: str, error: BaseException) -> None:
        """Record the agent's own error, once per place and message."""
        self.faults[where] += 1
        text = "".join(traceback.format_exception_only(type(error), error)).strip()
        frames = traceback.extract_tb(error.__traceback__)
        if frames:
            text += f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})"  # noqa: PTH119
        if (where, text) not in self._faults:
            self._faults.add((where, text))
            self.write(wire.Fault(where, text))

    def safely(self, where: str, action: Callable[..., T], *args: Any) -> T | None:
        """Run a piece of the agent inside the user's program: an error is recorded, not raised."""
        try:
            return action(*args)
        except Exception as error:
            self.fault(where, error)
            return None
