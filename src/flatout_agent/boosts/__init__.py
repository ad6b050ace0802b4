"""Boosts: one reversible speed-up that needs no edit, one per file.

The file's name (underscores for hyphens) is the boost's id. A boost module has

    BOOST = Boost(...)                         # what it may change, when it is applied, parameters
    def applies(facts, params) -> str | None   # why it does not apply to this job, or None
    def promise(facts, params) -> float        # likely speed-up (1.3 is 30 % faster), for order
    def apply(job, target, params) -> Applied  # do it; raise Declined(reason) if it cannot be done
    def by_hand(facts, params) -> str          # plain PyTorch lines that do the same

and may have `environment(facts, params) -> dict[str, str]`: variables that must be set before the
process starts. `acts_on(args, kwargs) -> bool` says whether it does anything in a call of the model
with these inputs, where that differs from call to call: the Guard waits for one. `applies`,
`promise`, `by_hand` and `environment` are pure and never import torch:
the host calls them too. `apply` runs in the user's process, where torch is loaded, and may import
torch inside the function. If `undo` leaves something for another `apply` in the same program (a
tuning switches on and off again and again), `forget(job)` frees it. The module docstring is the
boost's documentation page, with the headings
What it does / Why it is faster / When it does nothing / What it may change / How it is undone /
References.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from flatout_agent.attach.chain import is_compiled
from flatout_agent.boost import Applied, Boost, Declined, whole_speedup

if TYPE_CHECKING:
    from flatout_agent.job import Job
    from flatout_agent.wire import JobFacts, LoaderFacts, Params


HIDDEN = 3.0
"""An accelerator that waits for the program would wait for much of what faster kernels save: for so
many times what it waits now ..."""
SHOWS = 0.25
"""... but this share of its work is counted in any case. Where the program waits for it, as at a
loss that is read, all of it shows."""


LEAST_LOADING, MOST_LOADING = 0.05, 0.9
"""The share of a step that loading must take for a cache to gain, and the most that is put down to
it."""
COMPILED = "the model is compiled"
NO_SHARE = 0.02
"""Kinds of operations that take a smaller share of the step are ignored."""


class BoostModule(Protocol):
    """The interface of a boost's file."""

    BOOST: Boost
    __doc__: str | None

    @staticmethod
    def applies(facts: JobFacts, params: Params) -> str | None: ...
    @staticmethod
    def promise(facts: JobFacts, params: Params) -> float: ...
    @staticmethod
    def apply(job: Job, target: Any, params: Params) -> Applied: ...
    @staticmethod
    def by_hand(facts: JobFacts, params: Params) -> str: ...


def names() -> list[str]:
    """The ids of all boosts, sorted: the folder is the table."""
    return sorted(item.name.replace("_", "-") for item in pkgutil.iter_modules(__path__))


def load(boost_id: str) -> BoostModule:
    """The boost's module. Raises KeyError for an id that has no file."""
    name = boost_id.replace("-", "_")
    if not boost_id.replace("-", "").isalnum():
        raise KeyError(boost_id)
    try:
        module = importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        raise KeyError(boost_id) from None
    return cast(BoostModule, module)


def speedup(facts: JobFacts, **factors: float) -> float | None:
    """Likely speed-up if these kinds of operations become this many times as fast.

    Kinds are those of `JobFacts.shares`. None if it was not measured where the step's time goes.
    """
    if not facts.shares:
        return None
    return whole_speedup(*((facts.shares.get(kind, 0.0), by) for kind, by in factors.items()))


def multiplies(facts: JobFacts) -> bool:
    """Whether matrices are multiplied by a layer or, if measured, by any call."""
    layers = any(model.matmul or model.conv2d for model in facts.models)
    kinds = ("products", "sparse", "convolutions")
    return layers or sum(facts.shares.get(kind, 0.0) for kind in kinds) > NO_SHARE


def speedup_of_work(facts: JobFacts, factor: float) -> float:
    """Likely speed-up if everything but the waiting for data becomes `factor` times as fast.

    An accelerator that waits for the program gains less from that.
    """
    works = working_share(facts)
    hidden = (HIDDEN - 1.0) * (_launching(facts) or 0.0)
    return whole_speedup((max(works - hidden, SHOWS * works), factor))


def working_share(facts: JobFacts) -> float:
    """Share of the step in which neither data nor, on an accelerator, work is waited for."""
    return max(0.0, 1.0 - (facts.wait_share or 0.0) - (_launching(facts) or 0.0))


def speedup_of_launches(facts: JobFacts, factor: float) -> float | None:
    """Likely speed-up if the program launches an accelerator's work `factor` times as fast.

    It is limited to the time that the accelerator waits. None if that was not measured.
    """
    launching = _launching(facts)
    return None if launching is None else min(factor, whole_speedup((launching, math.inf)))


def _launching(facts: JobFacts) -> float | None:
    """Share of the step in which an accelerator waits for work that the program could launch."""
    if facts.idle_share is None:
        return None
    return max(0.0, facts.idle_share - (facts.wait_share or 0.0))


def speedup_of_wait(facts: JobFacts, factor: float) -> float:
    """Likely speed-up if the waiting for data is divided by `factor`.

    1.05 if the waiting was not measured.
    """
    return 1.05 if facts.wait_share is None else whole_speedup((facts.wait_share, factor))


def loading_share(facts: JobFacts) -> float | None:
    """Share of the step that loading takes, or None if it was not measured.

    Beside a model on the CPU, what loader workers compute is taken from the model.
    """
    if facts.wait_share is None:
        return None
    beside = (facts.workers_share or 0.0) if facts.device == "cpu" else 0.0
    return min(MOST_LOADING, facts.wait_share + beside)


def speedup_of_loading(facts: JobFacts, factor: float) -> float:
    """Likely speed-up if loading becomes `factor` times as fast; 1.05 if it was not measured."""
    share = loading_share(facts)
    return 1.05 if share is None else whole_speedup((share, factor))


def why_no_cache(facts: JobFacts, why_not: Callable[[LoaderFacts], str | None]) -> str | None:
    """Why no loader of this job gains from a cache, or None if at least one may.

    why_not: why a loader does not gain from this one, or None.
    """
    if not facts.loaders:
        return "no DataLoader was seen"
    share = loading_share(facts)
    if share is not None and share <= LEAST_LOADING:
        return f"only {share:.1%} of the step is loading data"
    reasons = [why_not(loader) for loader in facts.loaders]
    return None if None in reasons else reasons[0]


def why_not_eager_on_cpu(facts: JobFacts) -> str | None:
    """Why a boost for models on the CPU that are not compiled does not apply, or None."""
    if facts.device != "cpu":
        return f"the model is on {facts.device}, not on the CPU"
    if facts.models and all(model.compiled for model in facts.models):
        return COMPILED
    return None


def require_cpu(model: Any, compiled: str = "") -> None:
    """Raises Declined if the model's weights are on an accelerator.

    compiled: why it declines a model that the script compiles, if it does.
    """
    device = next((str(parameter.device.type) for parameter in model.parameters()), "cpu")
    if device != "cpu":
        raise Declined(f"the model is on {device}")
    if compiled and is_compiled(model):
        raise Declined(compiled)


def counting(taken: Callable[[], int], some: str, none: str) -> Callable[[], tuple[bool, str]]:
    """For `Applied.engaged`: whether calls were taken since now.

    some: what it says with their number in front; none: what it says without any.
    """
    before = taken()

    def engaged() -> tuple[bool, str]:
        count = taken() - before
        return (True, f"{count} {some}") if count else (False, none)

    return engaged
