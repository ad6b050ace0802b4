"""One vendor's cards in /sys/class/drm, found anew every ten seconds: drivers may be reloaded."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from flatout.probing import reading

EVERY_S = 10.0


class DriverCards:
    """Cards that one of `drivers` drives. vendor: its PCI number ("0x8086")."""

    def __init__(self, root: Path, vendor: str, drivers: Collection[str]) -> None:
        self._root, self._vendor, self._drivers = root, vendor, drivers
        self._found: tuple[Path, ...] = ()
        self._found_s: float | None = None

    def now(self, now_s: float) -> tuple[Path, ...]:
        """Their folders (card0, ...) in order; `now_s` is of a clock that only goes forward."""
        if self._found_s is None or now_s - self._found_s >= EVERY_S:
            self._found_s = now_s
            self._found = self._look()
        return self._found

    def _look(self) -> tuple[Path, ...]:
        entries = reading.entries(self._root / "sys/class/drm") or ()
        cards = [card for card in entries if re.fullmatch(r"card[0-9]{1,6}", card.name)]
        return tuple(card for card in sorted(cards, key=_number) if self._is_driven(card))

    def _is_driven(self, card: Path) -> bool:
        return reading.text(card / "device/vendor") == self._vendor and (
            reading.link_name(card / "device/driver") in self._drivers
        )


def _number(card: Path) -> int:
    return int(card.name.removeprefix("card"))
