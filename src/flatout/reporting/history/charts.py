"""The charts of a run's history; the title of each says what it shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from flatout.nouns import units
from flatout.nouns.ranks import Scaling
from flatout.reporting.chart import Axis, Chart, Curve, CurveChart, line
from flatout.reporting.history.series import RunMoment, RunSeries

Figure = Callable[[RunMoment], float | None]
TIME = Axis("time", "minutes")


def charts(series: RunSeries, trial: Scaling | None = None) -> dict[str, Chart]:
    """All charts that the numbers allow, by id. trial: the trial of ranks before the run."""
    candidates = (
        _losses(series),
        _steps(series),
        _wait(series),
        _memory(series),
        *_gpus(series),
        _scaling(trial) if trial is not None else None,
    )
    return {chart.id: chart for chart in candidates if chart is not None}


def step_ms(moment: RunMoment) -> float | None:
    """Median step time, in milliseconds."""
    return None if moment.job.step_s is None else 1000 * moment.job.step_s


def gpu_mean(name: str) -> Figure:
    """The mean of a figure over the job's GPUs."""

    def mean(moment: RunMoment) -> float | None:
        values = [getattr(gpu, name) for gpu in moment.gpus]
        known = [float(value) for value in values if value is not None]
        return sum(known) / len(known) if known else None

    return mean


def _losses(series: RunSeries) -> CurveChart | None:
    if len(series.losses) < 2:
        return None
    (first_step, first), (last_step, last) = series.losses[0], series.losses[-1]
    steps = [step for step, _ in series.losses]
    curve = line("loss", steps, [loss for _, loss in series.losses], "plan")
    title = f"The loss goes from {first:.4g} (step {first_step:,}) to {last:.4g} ({last_step:,})"
    note = "The loss that the program computed, of one rank, at the steps at which it was read."
    return CurveChart("losses", title, note, Axis("step"), Axis("loss"), [curve])


def _steps(series: RunSeries) -> CurveChart | None:
    usual = series.usual(step_ms)
    if usual is None:
        return None
    slowest = max(series.values(step_ms))
    title = f"A step takes {units.milliseconds(usual)}, at most {units.milliseconds(slowest)}"
    note = "Each point is the median of the steps of ten seconds."
    curve = _over_time(series, "step time", step_ms, "plan")
    axis = Axis("time per step", "ms", zero=True)
    return CurveChart("steps", title, note, TIME, axis, [curve])


def _wait(series: RunSeries) -> CurveChart | None:
    def wait(moment: RunMoment) -> float | None:
        return None if moment.job.wait_share is None else 100 * moment.job.wait_share

    usual = series.usual(wait)
    if usual is None:
        return None
    title = f"{units.share(usual / 100)} of the time it waits for its loader"
    note = "The share of a step's time that passes before the loader gives its batch."
    axis = Axis("waiting for data", "%", zero=True)
    return CurveChart("wait", title, note, TIME, axis, [_over_time(series, "wait", wait, "plan")])


def _memory(series: RunSeries) -> CurveChart | None:
    def host(moment: RunMoment) -> float | None:
        return None if moment.job.memory_bytes is None else moment.job.memory_bytes / 2**30

    def device(moment: RunMoment) -> float | None:
        used = moment.job.gpu_memory_bytes
        return None if used is None else used / 2**30

    curves = [
        _over_time(series, name, figure, colour)
        for name, figure, colour in (("host", host, "untouched"), ("GPU", device, "plan"))
        if series.values(figure)
    ]
    if not curves:
        return None
    peak = max(series.values(device) or series.values(host))
    kind = "GPU" if series.values(device) else "host"
    title = f"It needs at most {units.size(peak * 2**30)} of {kind} memory"
    note = "Memory of the program with all that it started."
    axis = Axis("memory", "GiB", zero=True)
    return CurveChart("memory", title, note, TIME, axis, curves)


def _gpus(series: RunSeries) -> list[CurveChart | None]:
    return [
        _gpu_chart(series, "utilization", 100, "%", "The GPUs are {} busy", units.share),
        _gpu_chart(series, "power_w", 1, "W", "A GPU draws {}", lambda v: f"{v:.0f} W"),
        _gpu_chart(series, "temperature_c", 1, "°C", "A GPU has {}", lambda v: f"{v:.0f} °C"),
    ]


def _gpu_chart(
    series: RunSeries,
    name: str,
    factor: float,
    unit: str,
    words: str,
    shown: Callable[[float | None], str],
) -> CurveChart | None:
    mean = gpu_mean(name)
    usual = series.usual(mean)
    if usual is None:
        return None

    def figure(moment: RunMoment) -> float | None:
        value = mean(moment)
        return None if value is None else factor * value

    label = name.removesuffix("_w").removesuffix("_c").replace("_", " ")
    curve = _over_time(series, label, figure, "plan")
    note = "The mean of the GPUs that the job uses, as their driver reports it."
    axis = Axis(label, unit, zero=True)
    return CurveChart(f"gpu-{label}", words.format(shown(usual)), note, TIME, axis, [curve])


def _scaling(trial: Scaling) -> CurveChart | None:
    """Speed-up against ranks: measured with its interval, and the ideal."""
    rows = [row for row in trial.rows if row.speedup is not None and row.interval is not None]
    if not rows:
        return None
    sizes = [1, *(row.size for row in rows)]
    measured = line("measured", sizes, [1.0, *(row.speedup for row in rows)], "plan")
    bounds = [(1.0, 1.0), *(row.interval for row in rows if row.interval is not None)]
    at_best = line("at best", sizes, sizes, "untouched")
    best = max(rows, key=lambda row: row.speedup or 0.0)
    title = f"{best.size} ranks are {units.ratio(best.speedup)} as fast as one process"
    note = (
        "Of the trial before the run, against one process as written; the bars are intervals of "
        "95 %. At best: twice as fast on two ranks."
    )
    ranks, speedup = Axis("ranks", zero=True, ticks=sizes), Axis("speed-up", "×", zero=True)
    curves = [at_best, replace(measured, bounds=bounds)]
    return CurveChart("scaling", title, note, ranks, speedup, curves)


def _over_time(series: RunSeries, name: str, figure: Figure, colour: str) -> Curve:
    minutes = [round(moment.minutes, 3) for moment in series.moments]
    return line(name, minutes, [figure(moment) for moment in series.moments], colour)
