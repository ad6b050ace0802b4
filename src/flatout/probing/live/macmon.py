"""macmon, if installed: it reports facts about Apple's GPU that otherwise only root may ask.

`macmon pipe` prints one line of JSON a second: https://github.com/vladkens/macmon
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

STALE_S = 5.0
"""Seconds after which figures are too old to use."""
RESTART_S = 60.0
END_S = 1.0
MOST_LETTERS = 1 << 20


class Macmon:
    """The program, read in a thread. command: None if it is not installed."""

    def __init__(self, command: Sequence[str] | None) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._began_s: float | None = None
        self._lines: deque[dict[str, float]] = deque(maxlen=1)
        """The newest figures, until they are taken."""
        self._taken: tuple[float, dict[str, float]] | None = None

    def figures(self, now_s: float) -> dict[str, float]:
        """The newest figures, by the names in the function `figures`; empty if none or too old.

        now_s: of a clock that only goes forward. The program is started by the first call, and
        again a minute later if it has ended by itself.
        """
        self._keep_running(now_s)
        if self._lines:
            self._taken = now_s, self._lines.pop()
        if self._taken is None or now_s - self._taken[0] > STALE_S:
            return {}
        return self._taken[1]

    def close(self) -> None:
        """End the program; it is not started again."""
        self._command = None
        self._end()

    def _end(self) -> None:
        """End the program, without waiting long if it cannot be ended."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
        if self._thread is not None:
            self._thread.join(END_S)
            if not self._thread.is_alive() and process.stdout is not None:
                process.stdout.close()

    def _keep_running(self, now_s: float) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        if self._command is None or (
            self._began_s is not None and now_s - self._began_s < RESTART_S
        ):
            return
        self._end()
        self._began_s = now_s
        try:
            self._process = subprocess.Popen(
                list(self._command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=sys.platform != "win32",  # Ctrl-C must not reach it
            )
        except (OSError, ValueError):
            return
        self._thread = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._thread.start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with suppress(OSError, ValueError):
            while line := process.stdout.readline(MOST_LETTERS):
                found = figures(line)
                if found:
                    self._lines.append(found)


def figures(line: str | bytes) -> dict[str, float]:
    """The line's utilization, scaled (older versions' utilization times clock) and fan, 0 to 1,
    and clock_mhz, power_w, temperature_c.
    """
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(document, dict):
        return {}
    pair = document.get("gpu_usage")
    old = pair if isinstance(pair, list) and len(pair) == 2 else [None, None]
    temperature = document.get("temp")
    found = {
        "utilization": _share(document.get("gpu_active_ratio")),
        "scaled": _share(document.get("gpu_scaled_ratio", old[1])),
        "clock_mhz": _number(document.get("gpu_freq_mhz", old[0])),
        "power_w": _number(document.get("gpu_power")),
        # It writes 0 if it knows no sensor.
        "temperature_c": _number(
            temperature.get("gpu_temp_avg") if isinstance(temperature, Mapping) else None
        )
        or None,
        "fan": _fan(document.get("fans")),
    }
    return {name: value for name, value in found.items() if value is not None}


def _fan(fans: Any) -> float | None:
    """The fastest fan's share of its maximum speed."""
    shares = []
    for fan in fans if isinstance(fans, list) else ():
        if isinstance(fan, Mapping):
            now, most = _number(fan.get("rpm")), _number(fan.get("max_rpm"))
            if now is not None and most:
                shares.append(min(1.0, now / most))
    return max(shares, default=None)


def _share(value: Any) -> float | None:
    number = _number(value)
    return None if number is None else min(1.0, number)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    number = float(value) if abs(value) < 1e15 else math.inf
    return number if math.isfinite(number) and number >= 0 else None
