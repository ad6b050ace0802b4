"""Queries in PromQL for the figures that the Prometheus outlet serves, as a dashboard asks them.

`$host` and `$job` are the dashboard's variables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain

from flatout.nouns.alert import Alert
from flatout.nouns.job_sample import JobSample, RankSample
from flatout.nouns.machine_sample import DiskSample, GpuSample, MachineSample
from flatout.reporting.monitor.outlets import figures
from flatout.reporting.monitor.outlets.figures import GPU, HOST, JOB, Figure

(INFO,) = (figure for figure in figures.FIGURES if figure.name == "flatout.train.info")


def selected(figure: Figure, *more: str) -> str:
    """The figure's series for what is chosen at the top."""
    matchers = [f'{label(HOST)}=~"$host"']
    if figure.noun in (JobSample, RankSample):
        matchers.append(f'{label(JOB)}=~"$job"')
    elif figure.noun is Alert:  # those about a machine name no job
        matchers.append(f'{label(JOB)}=~"$job|"')
    elif figure.name.startswith("hw."):  # others measure fans and power as well
        matchers.append('hw_type="gpu"')
    return f"{figure.prometheus}{{{', '.join([*matchers, *more])}}}"


def named(figure: Figure) -> str:
    """The figure's series; those of a job with what the user typed to start it."""
    return _with_program(figure, selected(figure))


def _with_program(figure: Figure, series: str) -> str:
    if figure.noun not in (JobSample, RankSample):
        return series
    labels = f"{label(HOST)}, {label(JOB)}"
    info = f"max by ({labels}, program) ({selected(INFO)})"
    return f"{series} * on ({labels}) group_left (program) {info}"


def coded(figure: Figure, by: str, words: Iterable[str]) -> str:
    """A number for each word that the label may have, in place of series that come and go."""
    each = [selected(figure, f'{by}="{word}"') for word in words]
    series = (f"{one} * {number}" for number, one in enumerate(each, 1))
    joined = f"max without ({by}) ({' or '.join(series)})"
    return _with_program(figure, joined)


def legend(figure: Figure, word: str = "", hidden: tuple[str, ...] = ()) -> str:
    """What tells its series apart."""
    who = {
        MachineSample: (HOST,),
        GpuSample: (HOST, GPU),
        DiskSample: (HOST, "system.filesystem.mountpoint"),
        JobSample: ("program", JOB),
        RankSample: ("program", JOB, "rank"),
        Alert: ("code", HOST, JOB, "subject"),
    }[figure.noun]
    labels = [dict(part.labels).keys() for part in figure.parts]
    differ = chain(*labels) if len(figure.parts) > 1 else ()
    each = (part.each for part in figure.parts if part.each)
    names = [name for name in dict.fromkeys((*who, *differ, *each)) if name not in hidden]
    before = {GPU: "GPU ", "rank": "rank "}
    words = [f"{before.get(name, '')}{{{{{label(name)}}}}}" for name in names]
    return " ".join((*words, word)).strip()


def label(name: str) -> str:
    """The name of a label there."""
    return re.sub(r"[^a-zA-Z0-9]+", "_", name)
