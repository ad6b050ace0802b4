"""How one loader is read by the ranks, and why: decided by what reading and exchanging take."""

from __future__ import annotations

import statistics
import weakref
from typing import Any, Literal

import torch

from flatout_agent import wire
from flatout_agent.ranks.group import RankGroup
from flatout_agent.ranks.loading.forms import SAMPLES, BatchForm
from flatout_agent.ranks.loading.tasks import Kind

PROOFS = 3
"""Batches that are looked at before any is shared."""
TIMED = 2
"""Batches, at least, whose reading is timed; of a loader with workers one of each of them."""
MARGIN = 1.2
"""What is saved must be so many times what the exchange takes, to begin with it ..."""
STILL = 1.0
"""... and to go on."""
CHECK_EVERY = 200
"""Batches between two that are read whole, to see that the proof still holds."""
UNDECIDED = "too few batches were read to find out whether it pays"


class LoadingPlan:
    """What is known of one loader. All ranks come to the same, at the same batch."""

    def __init__(self, name: str, workers: int, reason: str = "") -> None:
        """name: the dataset's class; reason: why every rank reads all of it, from the start."""
        self.name, self.workers = name, workers
        self.status: Literal["looking", "shared", "all"] = "all" if reason else "looking"
        self.reason = reason
        self.looks = 0 if reason else max(PROOFS, workers) + max(TIMED, workers)
        """Batches until it is decided."""
        self.form: BatchForm | None = None
        self.collated = True
        """What the ranks read may be collated by each of them."""
        self.uncut = ""
        """Why they send each other samples."""
        self.proofs = 0
        self.rows: int | None = None
        self.whole_s: list[float] = []
        """Waits for whole batches, without those of the first look."""
        self.exchanges_s: list[float] = []
        """The last ones."""
        self._parts = 0
        """Batches that were asked for in parts."""
        self.shared = 0
        """Batches that were put together of parts."""

    def leave(self, reason: str) -> None:
        """From the next batch on every rank reads all of it."""
        if self.status != "all":
            self.status, self.reason = "all", reason

    def look_again(self, reason: str) -> None:
        """What ranks collate does not always fit: look whether they can send each other samples."""
        if not self.collated:
            self.leave(reason)
            return
        self.status, self.collated, self.uncut, self.form = "looking", False, reason, None
        self.proofs, self.whole_s, self.exchanges_s = 0, [], []

    def kind(self, looks: int) -> Kind:
        """How the next batch is read; looks: under way."""
        if self.status == "looking":
            return "prove" if self.proofs + looks < PROOFS else "whole"
        if self.status == "all":
            return "whole"
        self._parts += 1
        if self._parts % CHECK_EVERY == 0:
            return "prove"
        return "samples" if self.form == SAMPLES else "own"

    def waited(self, seconds: float, position: int, group: RankGroup) -> None:
        """A whole batch was waited for; position: how many this iterator gave before."""
        if self.status != "looking" or self.proofs < PROOFS:
            return
        if position < self.workers:
            return  # workers have only just begun
        self.whole_s.append(seconds)
        if len(self.whole_s) >= max(TIMED, self.workers):
            self._decide(group)

    def looked(self, form: BatchForm, uncut: str, rows: int) -> None:
        """A batch was put together so, and it was the one that each rank has read."""
        self.form, self.uncut, self.rows = form, self.uncut or uncut, rows
        self.proofs += 1

    def exchanged(self, seconds: float) -> None:
        """One exchange took so long, from when all ranks had their part."""
        self.exchanges_s = [*self.exchanges_s[-9:], seconds]

    def waited_again(self, seconds: float, group: RankGroup) -> None:
        """A batch was read whole in between, in this process: does sharing still pay?"""
        if self.status == "shared" and not self.workers:
            self._compare(seconds, statistics.fmean(self.exchanges_s), STILL, group)

    def _decide(self, group: RankGroup) -> None:
        # The first exchange has also set up what is exchanged by.
        exchange_s = min(self.exchanges_s[1:], default=1.0)
        self.status = "shared"
        self._compare(statistics.fmean(self.whole_s), exchange_s, MARGIN, group)

    def _compare(self, wait_s: float, exchange_s: float, margin: float, group: RankGroup) -> None:
        """Of all ranks the shortest wait and the longest exchange count."""
        own = torch.tensor([-wait_s, exchange_s], dtype=torch.float64)
        waited, exchange = group.max_(own).tolist()
        if -waited * (1 - 1 / group.size) <= margin * exchange:
            self.leave(
                f"a batch is waited for {-1000 * waited:.2f} ms, "
                f"and sharing it takes {1000 * exchange:.2f} ms"
            )

    def seen(self) -> wire.LoaderSeen:
        """For the record."""
        looking = self.status == "looking"
        return wire.LoaderSeen(
            dataset=self.name,
            shared=self.status == "shared",
            reason=UNDECIDED if looking else self.reason,
            rows=self.rows,
            whole_s=statistics.fmean(self.whole_s) if self.whole_s else None,
            exchange_s=statistics.fmean(self.exchanges_s) if self.exchanges_s else None,
            batches=self.shared,
            samples=self.uncut if self.form == SAMPLES else "",
        )


class Plans:
    """Those of all loaders. Loaders over one dataset with one collate function have one plan."""

    def __init__(self) -> None:
        self.all: list[LoadingPlan] = []
        self._found: dict[tuple[int, int, int], tuple[LoadingPlan, Any, Any]] = {}

    def find(self, loader: Any) -> LoadingPlan | None:
        """The plan of such a loader; None: there is none yet."""
        found = self._found.get(_key(loader))
        if found is None:
            return None
        plan, dataset, collate = found
        return plan if dataset() is loader.dataset and collate() is loader.collate_fn else None

    def add(self, loader: Any, plan: LoadingPlan) -> LoadingPlan:
        """Keep it; not the loader's data."""
        self.all.append(plan)
        references = [_reference(each, loader) for each in (loader.dataset, loader.collate_fn)]
        self._found[_key(loader)] = (plan, references[0], references[1])
        return plan


def _key(loader: Any) -> tuple[int, int, int]:
    return id(loader.dataset), id(loader.collate_fn), loader.num_workers


def _reference(value: Any, loader: Any) -> Any:
    """A weak one; of what allows none (a list), through the loader that holds it."""
    try:
        return weakref.ref(value)
    except TypeError:
        held = weakref.ref(loader)
        name = "dataset" if value is loader.dataset else "collate_fn"
        return lambda: getattr(held(), name, None)
