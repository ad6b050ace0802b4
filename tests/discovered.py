"""Discovery at work in this process, as in a program that flatout has started."""

from __future__ import annotations

import contextlib
import os
import tempfile
import weakref
from collections.abc import Iterator

import torch

from flatout_agent.apply.booster import Booster
from flatout_agent.discover.discovery import Discovery
from flatout_agent.job import Job
from flatout_agent.tell.recorder import Recorder
from flatout_agent.watch import Watcher


@contextlib.contextmanager
def discovered(watcher: Watcher) -> Iterator[tuple[Job, Booster]]:
    """Loaders are handed over within an epoch, as in a live run. No fault may be recorded."""
    with tempfile.TemporaryDirectory() as folder:
        job, recorder = Job(), Recorder(folder)
        job.handovers = weakref.WeakSet()
        booster = Booster(job, (), recorder)
        discovery = Discovery(job, watcher, booster, recorder)
        discovery.install()
        try:
            yield job, booster
        finally:
            booster.undo()
            discovery.remove()
            torch.ones(1, requires_grad=True).sum().backward()  # with that, the last hook goes
            recorder._file.close()
            with open(os.path.join(folder, f"{os.getpid()}.jsonl")) as records:
                text = records.read()
            assert "fault" not in text, text
