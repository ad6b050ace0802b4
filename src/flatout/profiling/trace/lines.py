"""From the calls that a function made to the lines it made them in.

Kineto's stacks name functions, with the line of their `def`. Which line of the body a call
comes from is found in the source: its calls and operators in the order in which Python
evaluates them, beside the events in the order in which they happened.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flatout.profiling.trace.sites import Arm, Site

FRAME = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$")
BUILT_IN = re.compile(r"^<built-in (?:function|method) (\w+)")
OPTIMIZER = re.compile(r"^Optimizer\.(\w+)#")
MODULE = "nn.Module: "
WRITTEN = {"to": ("cuda", "cpu", "type", "float", "half", "bfloat16", "double", "long", "int")}
"""What else an operator may be written as."""


@dataclass(frozen=True)
class Called:
    """One event, as it may be written in the source."""

    names: frozenset[str]
    anything: bool
    """A module, or a function behind a wrapper: the source may say something else."""
    module: bool = False

    def fits(self, site: Site, written: bool, named: frozenset[str]) -> bool:
        """`written`: some site has its name; `named`: the names of all that was called."""
        if written:
            return bool(self.names & site.names)
        if not self.anything or site.names & named:
            return False
        return site.module if self.module else site.call


def called(event: str) -> Called:
    """How this event may be written."""
    if event.startswith(MODULE):
        return Called(frozenset(), anything=True, module=True)
    if found := BUILT_IN.match(event):
        return Called(frozenset({found.group(1)}), anything=False)
    if found := FRAME.match(event):
        return Called(frozenset({found.group("function")}), anything=True)
    if found := OPTIMIZER.match(event):
        return Called(frozenset({found.group(1)}), anything=False)
    name = event.split("::")[-1]
    return Called(frozenset({name, name.rstrip("_"), *WRITTEN.get(name, ())}), anything=False)


def resolve(
    sites: Sequence[Site], events: Sequence[str], inside: Sequence[frozenset[str]] = ()
) -> list[int | None]:
    """The line of each event; None: not found. A loop begins its sites anew.

    `inside`: for each event the names of what it called itself: behind a wrapper stands
    what the source names.
    """
    written: frozenset[str] = frozenset().union(*(site.names for site in sites))
    wanted = [called(event) for event in events]
    wanted = [
        replace(one, names=one.names if one.names & written else one.names | more)
        for one, more in zip(wanted, inside or [frozenset()] * len(wanted), strict=True)
    ]
    written_ones = [bool(one.names & written) for one in wanted]
    named: frozenset[str] = frozenset().union(*(one.names for one in wanted))
    fitting = [
        frozenset(number for number, site in enumerate(sites) if one.fits(site, known, named))
        for one, known in zip(wanted, written_ones, strict=True)
    ]
    taken = _taken(sites, fitting)
    counts = Counter(fitting)
    lines: list[int | None] = []
    at = 0
    for one, fits, after in zip(wanted, fitting, [*wanted[1:], None], strict=True):
        found = _next(at, _on_the_way(sites, fits, taken))
        if "__next__" in one.names:
            found = _loop(sites, after, found)
        elif found is not None and _doubtful(sites, found, fits, taken, counts[fits]):
            lines.append(None)
            at = found + 1
            continue
        lines.append(None if found is None else sites[found].line)
        at = at if found is None else found + 1
    return lines


def _next(at: int, fits: frozenset[int]) -> int | None:
    """The next of these from `at` on, and then from the first again."""
    return min(fits, key=lambda number: (number < at, number), default=None)


def _taken(sites: Sequence[Site], fitting: Sequence[frozenset[int]]) -> frozenset[Arm]:
    """Sides of branches with something that was called and can only be there."""
    found: set[Arm] = set()
    for fits in set(fitting):
        arms = [frozenset(sites[number].arms) for number in fits]
        found |= frozenset.intersection(*arms) if arms else frozenset()
    return frozenset(found)


def _on_the_way(
    sites: Sequence[Site], fits: frozenset[int], taken: frozenset[Arm]
) -> frozenset[int]:
    """Without those on the other sides of branches of which one side is known to be taken."""
    decided = {branch for branch, _ in taken}
    return frozenset(
        number
        for number in fits
        if all(arm in taken or arm[0] not in decided for arm in sites[number].arms)
    )


def _doubtful(
    sites: Sequence[Site], found: int, fits: frozenset[int], taken: frozenset[Arm], calls: int
) -> bool:
    """It may as well have been called on the other side of a branch, or behind one not taken."""
    open_arms = frozenset(sites[found].arms) - taken
    others = [number for number in _on_the_way(sites, fits, taken) if number != found]
    sides = dict(sites[found].arms)
    for number in others:
        if any(sides.get(branch, side) != side for branch, side in sites[number].arms):
            return True
    elsewhere = any(not open_arms <= frozenset(sites[number].arms) for number in others)
    return bool(open_arms) and elsewhere and calls != len(others) + 1


def _loop(sites: Sequence[Site], after: Called | None, found: int | None) -> int | None:
    """Who asks the loader: the innermost `for` whose body makes the call that comes after."""
    best = max((site.loads for site in sites), default=0)
    if not best:
        return found
    asking = [number for number, site in enumerate(sites) if site.loads == best]
    names = after.names if after else frozenset()
    going_on = [
        (len(sites[number].body), number) for number in asking if sites[number].body & names
    ]
    if going_on:
        return min(going_on)[1]
    return found if found in asking else asking[0] if len(asking) == 1 else None
