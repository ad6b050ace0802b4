"""The profile of the untouched program from a trial: nothing of the user's is written over."""

from __future__ import annotations

import contextlib
import time
from threading import Event

from flatout.measuring import ceilings, profiling, profiling_records
from flatout.measuring.trial import Bench
from flatout.nouns.errors import UserError
from flatout.nouns.observer import Observer, Silent
from flatout.nouns.profile import Profile
from flatout_agent import wire


def profile(bench: Bench, name: str, limit_s: float, observer: Observer) -> Profile | None:
    """The profile of one more run of the program, held against this machine's ceilings.

    They are measured before it, once for all tunings and profiles of this machine. None where it
    recorded nothing in `limit_s` seconds: what a profile is asked for here has other sources. The
    process has ended when this returns.
    """
    known = ceilings.for_profiles(bench.command.python, observer.phase)
    observer.phase("profiling the program: where its time goes")
    deadline = time.monotonic() + limit_s
    follower = profiling_records.Follower(bench.folder / name, Silent())
    with bench.program(name, (), None, wire.ProfileOrders(stop=True)) as program:
        follower.follow(lambda: program.alive and time.monotonic() < deadline, Event())
    with contextlib.suppress(UserError, OSError):
        return profiling.analysed(bench.command, follower.processes(), known)
    return None
