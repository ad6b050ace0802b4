"""The agent in a process that has imported torch: seeds, boosts, discovery, the watcher."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import TYPE_CHECKING, NamedTuple

import torch

from flatout_agent import wire
from flatout_agent.apply.booster import Booster
from flatout_agent.attach import tracebacks
from flatout_agent.attach.replacing import Undo
from flatout_agent.boost import Moment
from flatout_agent.discover.discovery import Discovery
from flatout_agent.job import Job
from flatout_agent.tell import pulse
from flatout_agent.tell.recorder import Recorder
from flatout_agent.watch import Watcher, beat
from flatout_agent.watch.beat import Beat

if TYPE_CHECKING:
    from flatout_agent.capture.taker import Taker
    from flatout_agent.ranks.install import RankRuntime
    from flatout_agent.ranks.native import NativeRuntime
    from flatout_agent.watch.run import RunWatch


class Session(NamedTuple):
    """The agent at work in this process."""

    job: Job
    watcher: Watcher
    put_back: Undo
    """End before the program does, between two steps, and remove everything from it."""


def begin(orders: wire.Orders, recorder: Recorder) -> Session:
    """Called right after torch has been imported."""
    job = Job()
    ranks = _ranks(orders, job, recorder)
    booster = Booster(job, orders.boosts, recorder)
    booster.undo_follows = orders.export is not None or orders.until_put_back
    watcher = _watcher(orders, job, booster, recorder)
    _begin_boosts(orders, job, booster)
    taker = _taker(orders, job, recorder)
    discovery = Discovery(job, watcher, booster, recorder)
    watcher.leave = discovery.remove
    discovery.install()
    if ranks is not None:
        job.after_step(ranks.step)
    show_our_frames = tracebacks.install()
    process = os.getpid()

    def ends() -> None:
        if os.getpid() == process:
            if ranks is not None:
                recorder.safely("ranks", lambda: recorder.write(ranks.seen()))
            recorder.safely("end", watcher.program_ends)
            if taker is not None:
                recorder.safely("undo", booster.undo)
                recorder.safely("export", taker.program_ends)

    def put_back() -> None:
        atexit.unregister(ends)
        ends()
        for back in (watcher.put_back, booster.undo, discovery.remove_between_steps):
            recorder.safely("put back", back)
        show_our_frames()

    atexit.register(ends)
    return Session(job, watcher, put_back)


def _begin_boosts(orders: wire.Orders, job: Job, booster: Booster) -> None:
    """Apply the boosts that act from the start on.

    A process that the agent came to later may never train: there they wait for its first step.
    """
    if not orders.until_put_back:
        booster.at(Moment.START, torch)
        return

    def first_step() -> None:
        trains_now()
        job.thread = threading.get_ident()
        booster.at(Moment.START, torch)

    trains_now = job.after_step(first_step)


def _watcher(orders: wire.Orders, job: Job, booster: Booster, recorder: Recorder) -> Watcher:
    """The watcher, according to the orders."""
    watcher: Watcher
    if orders.profile is not None:
        from flatout_agent.watch.profile.watch import ProfileWatch

        if orders.trial is not None:  # profiled with everything it saves kept off the user's files
            seed_everything(orders.trial.seed)
        watcher = ProfileWatch(job, booster, recorder, orders.profile)
    elif orders.memory is not None:
        from flatout_agent.watch.memory import MemoryWatch

        seed_everything(orders.trial.seed if orders.trial is not None else 0)
        watcher = MemoryWatch(job, recorder, orders.memory)
    elif orders.live is not None:
        from flatout_agent.live.run import LiveWatch

        if orders.trial is not None:  # tuned with everything it saves kept off the user's files
            seed_everything(orders.trial.seed)
        watcher = LiveWatch(job, booster, recorder, orders.live, orders.trial is not None)
        _equip(watcher, orders, job, recorder)
    elif orders.trial is None or orders.export is not None:
        from flatout_agent.watch.run import RunWatch

        if orders.trial is not None:  # to its model, with everything it saves kept off the files
            seed_everything(orders.trial.seed)
        watcher = RunWatch(job, booster, recorder)
        _equip(watcher, orders, job, recorder)
    else:
        from flatout_agent.watch.trial import TrialWatch

        seed_everything(orders.trial.seed)
        watcher = TrialWatch(job, booster, recorder, orders.trial)
    return watcher


def _equip(watcher: RunWatch, orders: wire.Orders, job: Job, recorder: Recorder) -> None:
    """Let the watcher feed the pulse; in a process that nobody follows it keeps no history."""
    watcher.beat = _beat(orders, job, recorder)
    if orders.until_put_back:
        watcher.history = None


def _taker(orders: wire.Orders, job: Job, recorder: Recorder) -> Taker | None:
    """The taker of the program's model, if that is ordered."""
    if orders.export is None:
        return None
    from flatout_agent.capture.taker import Taker

    taker = Taker(job, recorder, orders)
    recorder.safely("export", taker.install)
    return taker


def _ranks(orders: wire.Orders, job: Job, recorder: Recorder) -> RankRuntime | NativeRuntime | None:
    """The process as one of several that train together, or None if it trains alone."""
    if orders.ranks is None:
        return None
    ranks: RankRuntime | NativeRuntime
    if orders.ranks.native != wire.OWN_DDP:
        from flatout_agent.ranks import same_numbers

        same_numbers.after_torch(torch, orders.ranks.seed)
    if orders.ranks.size == 1:  # for comparison
        from flatout_agent.watch.native_spotter import NativeSpotter

        recorder.safely("ranks", NativeSpotter(job, recorder).install)
        if orders.ranks.rounding:
            from flatout_agent.ranks import rounding
            from flatout_agent.ranks.refusal import guarding

            rounding.disturb(orders.ranks, guarding(recorder))
        return None
    if orders.ranks.native:
        from flatout_agent.ranks.native import NativeRuntime

        ranks = NativeRuntime(orders.ranks, recorder)
    else:
        from flatout_agent.ranks.install import RankRuntime

        ranks = RankRuntime(orders.ranks, recorder)
    ranks.guarded(ranks.install)
    return ranks


def _beat(orders: wire.Orders, job: Job, recorder: Recorder) -> Beat | None:
    """The feeder of this process's pulse, or None if none is wanted or none can be made."""
    ring = pulse.opened(orders.pulse)
    if ring is not None:
        beat.of_process = recorder.safely("pulse", Beat, ring, job, recorder)
    return beat.of_process


def seed_everything(seed: int) -> None:
    """Seed torch, and NumPy if the program has loaded it (torch has if it is installed)."""
    import random

    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
