"""The purpose of work beside the training, and what to do instead."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flatout.diagnosing.job.host import packages
from flatout.diagnosing.job.host.beside import ACCUMULATED, WorkBeside

REPORT = 0.95
"""Share of its time saved by doing it every 50 steps, including the test of the step."""
ADDED = 0.9
"""Share of the time saved if backward adds gradients instead of cloning them."""
IN_PLACE = 0.7
"""Share of the time saved if an average or copy works in place on all tensors at once."""
UNREAD = "neither the loss nor the update of the weights takes what it computes"
ARITHMETIC = re.compile(r"aten\.(_foreach_)?(mul|add|sub|rsub|lerp|div|addcmul)_?")
COPIES = re.compile(
    r"aten\.(_foreach_)?(clone|copy_?|_to_copy|empty\w*|new_empty\w*|set_|detach_?|contiguous)"
)
MADE = re.compile(r"aten\.(_foreach_)?(clone|_to_copy|mul|add|sub|rsub|lerp|div|addcmul|copy)")
"""Operators of averages and copies that make new tensors."""
DECOMPOSES = re.compile(
    r"aten\.(_?linalg_(svd|eig|eigh|eigvals|eigvalsh|qr|lu|lu_factor\w*|inv_ex|det|slogdet|"
    r"cholesky\w*|solve\w*)|svd|qr|geqrf|symeig)"
)
AVERAGED_MODEL = re.compile(r"\.update_parameters\(")
"""The update of torch.optim.swa_utils.AveragedModel."""
SINGULAR = re.compile(r"svd")
SPREADS = re.compile(r"aten\.(hist\w*|sort|topk|quantile|kthvalue|median|nanmedian|bincount)")
"""Operators that look at the distribution of values."""


@dataclass(frozen=True)
class Purpose:
    """The purpose of work beside the training."""

    what: str
    """The beginning of a title: "averaging the weights"."""
    cure: str
    lines: tuple[str, ...]
    spared: float = REPORT
    why: str = UNREAD


GRADIENTS = Purpose(
    "cloning gradients to add them up",
    "Let backward add them up: it adds to .grad as long as nobody clears it. Clear it once, after "
    "the update, and divide the loss by the number of batches.",
    (
        "(loss / batches).backward()  # adds to .grad, without clones",
        "if (step + 1) % batches == 0:",
        "    optimizer.step()",
        "    optimizer.zero_grad()",
    ),
    ADDED,
    why="the update takes the same sum from .grad",
)
AVERAGE_CURE = (
    "Average in place, all weights at once: torch.optim.swa_utils.AveragedModel, or "
    "torch._foreach_lerp_ on lists made once before the loop. Or average every 10 steps, with the "
    "decay to the power of 10."
)
AVERAGE_LINES = (
    "with torch.no_grad():",
    "    torch._foreach_lerp_(averages, weights, 1 - decay)  # lists of tensors, made once",
    "# or: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay)).update_parameters(model)",
)
AVERAGED_MODEL_CURE = (
    "Give AveragedModel a multi_avg_fn, which averages all weights at once, in place; or call "
    "update_parameters every 10 steps, with the decay to the power of 10."
)
AVERAGED_MODEL_LINES = (
    "average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))  # of swa_utils",
)
COPY_CURE = (
    "Copy the weights only in the steps that need the copy (a better score, every N steps), and in "
    "place: torch._foreach_copy_ on lists made once before the loop."
)
COPY_LINES = (
    packages.EVERY_50,
    "    torch._foreach_copy_(copies, weights)  # lists of tensors, made once",
)
HOOK_CURE = (
    "Remove the hooks when what they report has been seen (handle.remove()), or let them return at "
    "once in all but every 50th step."
)
HOOK_LINES = (
    "def hook(module, inputs, output):",
    "    if step % 50:",
    "        return",
)
REPORT_CURE = "Do it every 50 steps, or once an epoch, where it only reports."


def of(work: WorkBeside) -> Purpose | None:
    """The purpose, or None if the work cannot be done better."""
    if work.sources == {ACCUMULATED}:
        return GRADIENTS
    lines = work.group.lines
    report = next((line for line in lines if packages.reports(line.package, line.callee)), None)
    if report is not None:
        use = packages.use(report.package, f"{report.callee}\n{work.text}")
        return Purpose(use.what, use.cure, use.lines)
    decomposing = [name for name in work.operators if DECOMPOSES.match(name)]
    if decomposing:
        singular = any(SINGULAR.search(name) for name in decomposing)
        return _report("computing singular values" if singular else "decomposing matrices", work)
    if AVERAGED_MODEL.search(work.text):
        return _of_averaged_model(work)
    if work.sources == {"weights"} and _moves_weights(work):
        return _of_weights(work)
    return _report(_statistics(work), work)


def _moves_weights(work: WorkBeside) -> bool:
    """Whether it only copies and averages."""
    return all(COPIES.fullmatch(name) or ARITHMETIC.fullmatch(name) for name in work.operators)


def _of_weights(work: WorkBeside) -> Purpose | None:
    way = _way(work)
    if not way and not any(MADE.fullmatch(name) for name in work.operators):
        return None  # in place already
    if any(ARITHMETIC.fullmatch(name) for name in work.operators):
        return Purpose(f"averaging the weights{way}", AVERAGE_CURE, AVERAGE_LINES, IN_PLACE)
    return Purpose(f"copying the weights{way}", COPY_CURE, COPY_LINES)


def _of_averaged_model(work: WorkBeside) -> Purpose | None:
    at_once = any("_foreach_" in name for name in work.operators)
    if at_once or not any(MADE.fullmatch(name) for name in work.operators):
        return None  # all at once, by its multi_avg_fn
    what = "averaging the weights one by one"
    return Purpose(what, AVERAGED_MODEL_CURE, AVERAGED_MODEL_LINES, IN_PLACE)


def _way(work: WorkBeside) -> str:
    """How the weights are reached, if that itself makes copies; else empty."""
    if "deepcopy(" in work.text or any(line.framework == "copy" for line in work.group.lines):
        return " with copy.deepcopy"
    return " through state_dict" if "state_dict(" in work.text else ""


def _statistics(work: WorkBeside) -> str:
    if work.hooked:
        return "computing statistics in forward hooks"
    noun = next((name for name in ("weights", "gradients") if work.sources == {name}), "")
    spread = any(SPREADS.match(name) for name in work.operators)
    what = "distributions" if spread else "statistics"
    return f"computing {what} of {noun}" if noun else "computing what the training does not need"


def _report(what: str, work: WorkBeside | None = None) -> Purpose:
    if work is not None and work.hooked:
        return Purpose(what, HOOK_CURE, HOOK_LINES)
    return Purpose(what, REPORT_CURE, (packages.EVERY_50, "    # what this line reports"))
