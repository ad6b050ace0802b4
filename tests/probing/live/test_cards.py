"""Cards by their driver; those that come later are found, in order of their numbers."""

from __future__ import annotations

from pathlib import Path

from flatout.probing.live.cards import DriverCards
from probing.live.intel_machine import IntelMachine
from probing.planted import plant


def test_cards_of_one_driver(tmp_path: Path) -> None:
    machine = IntelMachine(tmp_path)
    cards = DriverCards(tmp_path, "0x8086", ("xe",))
    assert cards.now(100.0) == ()
    tenth = machine.card(10, "0000:10:00.0", "xe")
    second = machine.card(2, "0000:02:00.0", "xe")
    machine.card(3, "0000:03:00.0", "vfio-pci")
    machine.card(4, "0000:04:00.0", "xe", **{"device/vendor": "0x1002"})
    plant(tmp_path, {"sys/class/drm/card2-DP-1/status": "connected\n"})
    assert cards.now(105.0) == ()  # looked for every ten seconds
    assert cards.now(110.0) == (second, tenth)
