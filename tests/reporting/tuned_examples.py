"""Tuned objects made by hand, as `flatout tune` would leave them. All numbers are invented."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from flatout.nouns.identity import GpuIdentity, Identity
from flatout.nouns.plan import Plan, PlannedBoost
from flatout.nouns.trial import Guard, Measurement, Trial, Verdict
from flatout.nouns.tuned import Confirmation, Tuned

MACHINE = Identity(
    system="Linux",
    cpu="Intel Xeon Platinum 8481C",
    cores=8,
    memory_bytes=64 * 1024**3,
    gpus=(GpuIdentity("NVIDIA L4", 24 * 1024**3, "550.90.07"),),
    python="3.11.7",
    torch="2.13.0",
)
GIB = 1024**3


def measured(step_ms: float, peak_bytes: int | None = 3 * GIB, **more: Any) -> Measurement:
    steps = tuple(step_ms * (1 + 0.03 * math.sin(i * 2.1) + 0.08 * (i == 7)) for i in range(24))
    losses = tuple(2.3 * math.exp(-i / 18) + 0.4 + 0.09 * math.sin(i * 1.7) for i in range(27))
    facts = {"losses": losses, "steps_ms": steps, "wait_share": 0.12, "peak_bytes": peak_bytes}
    return Measurement(step_ms=step_ms, samples_per_s=32_000 / step_ms, **{**facts, **more})


def nearly(run: Measurement, by: float) -> Measurement:
    losses = tuple(
        None if loss is None else loss * (1 + by * math.sin(i * 3.3))
        for i, loss in enumerate(run.losses)
    )
    return dataclasses.replace(run, losses=losses)


SAME = Guard(
    passed=True,
    reason="gradient error 0.9% of batch noise; loss within 0.3 sigma",
    gradient_error=0.011,
    batch_noise=1.22,
    own_noise=0.35,
    loss_sigma=-0.27,
)
STATISTICAL = Guard(
    passed=True,
    reason="the program draws other random numbers in each run; loss within 0.6 sigma",
    loss_sigma=0.58,
    gradient_compared=False,
)
DIFFERENT = Guard(
    passed=False,
    reason="loss 4.8 sigma above the untouched program's (allowed 3.0)",
    gradient_error=0.31,
    batch_noise=1.22,
    loss_sigma=4.8,
)


def trial(tried: str | None, verdict: Verdict, step_ms: float | None = None, **more: Any) -> Trial:
    run = nearly(measured(step_ms), 0.01) if step_ms is not None else None
    facts = {"measured": run, "boosts": (tried,) if tried else (), "wall_s": 21.4}
    return Trial(tried=tried, verdict=verdict, **{**facts, **more})


KEPT = (
    PlannedBoost("bf16-autocast", {}, 1.92, "rounding"),
    PlannedBoost("channels-last", {}, 1.46, "exact"),
    PlannedBoost("loader-workers", {"num_workers": 6}, 1.21, "exact"),
    PlannedBoost("fused-optimizer", {}, 1.04, "exact"),
)
AGAIN = "as written, again: its own noise"
LOG = ".flatout/runs/20261120-231409/trial-07.log"
OUT_OF_MEMORY = """Traceback (most recent call last):
  File "examples/images/train.py", line 88, in <module>
    main()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.20 GiB (GPU 0; 23.7 GiB in all)"""


def good() -> Tuned:
    """Everything went well: four boosts kept, the rest dropped for every reason there is."""
    trials = (
        trial(None, Verdict.KEPT, measured=measured(1514.0, 5 * GIB), reason="as written"),
        trial(None, Verdict.KEPT, 1509.0, gain=1.003, reason=AGAIN),
        trial("bf16-autocast", Verdict.KEPT, 786.0, gain=1.92, guard=SAME),
        trial(
            "channels-last",
            Verdict.KEPT,
            538.0,
            gain=1.46,
            guard=SAME,
            boosts=("bf16-autocast", "channels-last"),
        ),
        trial("loader-workers", Verdict.SLOWER, 512.0, gain=1.05, params={"num_workers": 2}),
        trial("loader-workers", Verdict.KEPT, 445.0, gain=1.21, params={"num_workers": 6}),
        trial("fused-optimizer", Verdict.KEPT, 428.0, gain=1.04, guard=SAME),
        trial("compile", Verdict.SLOWER, 489.0, gain=0.91, params={"mode": "default"}, guard=SAME),
        trial(
            "compile",
            Verdict.FAILED,
            params={"mode": "max-autotune"},
            reason=OUT_OF_MEMORY,
            log=LOG,
        ),
        trial(
            "fp16-autocast",
            Verdict.DIFFERENT,
            401.0,
            gain=1.06,
            guard=DIFFERENT,
            reason=DIFFERENT.reason,
        ),
        trial("gc-pause", Verdict.SLOWER, 427.0, gain=1.003, guard=SAME, retried=True),
        trial("cuda-graphs", Verdict.SKIPPED, reason="input shapes change from step to step"),
        trial("cpu-bf16", Verdict.SKIPPED, reason="the model is on the GPU"),
        trial("cpu-threads", Verdict.SKIPPED, reason="the model is on the GPU"),
    )
    plan = Plan(
        KEPT,
        ("examples/images/train.py", "--epochs", "3"),
        "ab" * 32,
        MACHINE,
        3.67,
        (3.52, 3.79),
        5,
        "2026-11-20T23:14:09Z",
    )
    return Tuned(
        command=("examples/images/train.py", "--epochs", "3"),
        machine=MACHINE,
        baseline=measured(1514.0, 5 * GIB),
        best=nearly(measured(412.0, int(2.9 * GIB), wait_share=0.01), 0.02),
        trials=trials,
        confirmation=Confirmation(
            pairs=5,
            ratios=(3.61, 3.67, 3.52, 3.79, 3.70),
            speedup=3.67,
            interval=(3.52, 3.79),
            untouched_ms=(1511.0, 1514.0, 1498.0, 1541.0, 1520.0),
            plan_ms=(418.0, 412.0, 425.0, 406.0, 411.0),
            guard=SAME,
        ),
        plan=plan,
        noise=0.021,
        wall_s=274.0,
        deterministic=True,
        redirected=("checkpoints/epoch-0.pt", "runs/events.out.tfevents.1763680449"),
        plan_path="flatout.toml",
        report_path=".flatout/runs/20261120-231409/report.html",
        run_folder=".flatout/runs/20261120-231409",
    )


def nothing() -> Tuned:
    """An already well-written program: all within the noise."""
    return dataclasses.replace(
        good(),
        best=None,
        plan=None,
        plan_path=None,
        confirmation=None,
        baseline=measured(41.3),
        trials=(
            trial(None, Verdict.KEPT, measured=measured(41.3), reason="as written"),
            trial(None, Verdict.KEPT, 41.1, gain=1.005, reason=AGAIN),
            trial("compile", Verdict.SLOWER, 45.4, gain=0.91, guard=SAME),
            trial("channels-last", Verdict.SLOWER, 40.9, gain=1.01, guard=SAME),
            trial("gc-pause", Verdict.SLOWER, 41.5, gain=0.995, guard=SAME),
            trial("bf16-autocast", Verdict.SKIPPED, reason="the script has its own autocast"),
        ),
        redirected=(),
    )


def refuted() -> Tuned:
    """A candidate that did not hold in the A/B runs."""
    won = good()
    assert won.confirmation is not None
    confirmation = dataclasses.replace(
        won.confirmation, ratios=(1.02, 0.99, 1.01), pairs=3, speedup=1.01, interval=(0.99, 1.02)
    )
    return dataclasses.replace(won, best=None, plan=None, plan_path=None, confirmation=confirmation)


def small() -> Tuned:
    """A gain within one run that is too small for A/B runs to tell."""
    won = refuted()
    assert won.confirmation is not None
    kept = (PlannedBoost("fused-optimizer", {}, 1.03, "exact"),)
    ratios = (1.02, 0.97, 1.09)
    confirmation = dataclasses.replace(
        won.confirmation, ratios=ratios, speedup=1.02, interval=(0.97, 1.09)
    )
    return dataclasses.replace(
        won, best=measured(40.1), plan=Plan(kept, speedup=1.03), confirmation=confirmation
    )


def unlike() -> Tuned:
    """Faster in the A/B runs, but the guard said no."""
    won = good()
    assert won.confirmation is not None
    confirmation = dataclasses.replace(won.confirmation, guard=DIFFERENT)
    return dataclasses.replace(won, best=None, plan=None, plan_path=None, confirmation=confirmation)


def unproven() -> Tuned:
    """Something was kept, and then the A/B runs failed."""
    return dataclasses.replace(
        refuted(), confirmation=None, notes=("not confirmed: out of memory",)
    )


def statistical() -> Tuned:
    """Random numbers differ: the losses alone could be compared."""
    won = good()
    assert won.confirmation is not None
    confirmation = dataclasses.replace(won.confirmation, guard=STATISTICAL)
    return dataclasses.replace(won, confirmation=confirmation, deterministic=False)


def interrupted() -> Tuned:
    """Ctrl-C before the A/B runs."""
    won = good()
    assert won.plan is not None
    plan = dataclasses.replace(
        won.plan, boosts=KEPT[:2], speedup=None, speedup_interval=None, pairs=None
    )
    return dataclasses.replace(
        won, best=None, confirmation=None, plan=plan, trials=won.trials[:5], interrupted=True
    )


XSS = "<script>alert(1)</script>"
HOSTILE = (
    f"{XSS}<img src=x onerror=alert(2)><!-- </title> \u2028 "
    "{{ 7*7 }} '\"&amp; \x1b[31mred\x1b[0m \udc80"
)


def hostile() -> Tuned:
    """Everything that comes from outside is an attack, and next to nothing was measured."""
    one = Measurement(
        step_ms=3.2,
        samples_per_s=None,
        steps_ms=(3.2,),
        losses=(None,),
        peak_bytes=None,
    )
    guard = dataclasses.replace(SAME, reason=HOSTILE, gradient_error=None, loss_sigma=None)
    return Tuned(
        command=("train.py", HOSTILE, "javascript:alert(3)"),
        machine=Identity(HOSTILE, HOSTILE, None, None, (GpuIdentity(HOSTILE),), HOSTILE, HOSTILE),
        baseline=one,
        best=dataclasses.replace(one, step_ms=2.9),
        trials=(
            trial(HOSTILE, Verdict.KEPT, 3.0, gain=1.1, reason=HOSTILE, log=HOSTILE, guard=guard),
            trial(
                XSS,
                Verdict.FAILED,
                reason=f"Traceback:\n  {HOSTILE}\nBoom: {XSS}",
                params={XSS: HOSTILE},
                engaged={XSS: XSS},
                log=f"/tmp/{XSS}.log",
            ),
            trial("cpu-bf16", Verdict.SKIPPED, reason=HOSTILE),
        ),
        confirmation=Confirmation(1, (1.1,), 1.1, (1.1, 1.1), (3.2,), (2.9,), guard),
        plan=Plan(
            (PlannedBoost(HOSTILE, {XSS: HOSTILE}, 1.1, XSS),), pays_after_steps=1, compile_s=9.1
        ),
        noise=math.nan,
        wall_s=1.0,
        redirected=(HOSTILE, f"/home/{XSS}"),
        leaked=(HOSTILE,),
        faults=(HOSTILE,),
        notes=(HOSTILE,),
        interrupted=True,
        plan_path=f"{XSS}.toml",
        report_path=f"{XSS}.html",
    )


def faulty() -> Tuned:
    """Files leaked, faults happened."""
    return dataclasses.replace(
        good(),
        leaked=tuple(f"out/result-{i}.csv" for i in range(8)),
        faults=("watch.wait: RuntimeError: no iterator",) * 7,
        notes=("torch.compile found no C++ compiler",),
    )


def crowded() -> Tuned:
    """Many boosts of every fate, one that compiles, and all that may be said beside them."""
    won = good()
    names = [f"boost-number-{number}" for number in range(30)]
    kept = tuple(
        PlannedBoost(name, {"size": 1}, 1.1, "rounding" if at % 2 else "exact")
        for at, name in enumerate(names[:10])
    )
    fates = [Verdict.SLOWER, Verdict.DIFFERENT, Verdict.FAILED, Verdict.SKIPPED, Verdict.SKIPPED]
    trials = [
        trial(name, fates[at % 5], reason="why", why_untried="no_time" if at % 5 == 3 else None)
        for at, name in enumerate(names[10:])
    ]
    note = "neighbouring blocks of the program as written differed by 31%: small gains cannot be"
    return dataclasses.replace(
        won,
        trials=(*won.trials[:2], *trials),
        plan=Plan(kept, won.command, pays_after_steps=12_400, compile_s=41.0),
        redrawn=tuple(names[10:14]),
        interrupted=True,
        leaked=tuple(f"out/result-{i}.csv" for i in range(8)),
        faults=tuple(f"watch.wait: RuntimeError: no iterator {i}" for i in range(7)),
        notes=tuple(f"{note} measured on this machine now; note {i}" for i in range(4)),
    )


ALL = {
    "good": good,
    "nothing": nothing,
    "refuted": refuted,
    "small": small,
    "unlike": unlike,
    "unproven": unproven,
    "statistical": statistical,
    "interrupted": interrupted,
    "hostile": hostile,
    "faulty": faulty,
    "crowded": crowded,
}


def with_notes(*notes: str) -> Tuned:
    """The good case with something to say."""
    return dataclasses.replace(good(), notes=notes)
