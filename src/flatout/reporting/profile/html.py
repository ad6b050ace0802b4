"""The page of a profile: one self-contained HTML file that works from file://, needs no server.

As in the report of `tune`, text from outside is escaped on its way in, and the page's own policy
allows no other script and no request.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flatout.nouns import units
from flatout.nouns.anatomy import IDLE, WAITS, Kind
from flatout.nouns.finding import Finding
from flatout.nouns.profile import Place, Profile, Profiled
from flatout.reporting import plain
from flatout.reporting.html import beside, page, times, write_page
from flatout.reporting.profile import figures, host, tables, words

FLAMES = ("vendored/d3-flame-graph.js", "profile_flames.js")
SCRIPTS = ("profile_page.js", "profile_timeline.js", "profile_charts.js", "profile_tables.js")
STYLES = ("report.css", "profile.css")


def write_report(profiled: Profiled, path: Path) -> None:
    """Write the page to `path`, whole or not at all. Raises OSError if that fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_page(render(profiled, path.parent), path)


def render(profiled: Profiled, folder: Path) -> str:
    """The page as text. folder: where it will be, for the link to the trace beside it."""
    profile = profiled.profile
    data = page_figures(profile)
    return page(
        "profile.html.j2",
        data,
        styles=STYLES,
        scripts=scripts(data),
        profiled=profiled,
        profile=profile,
        anatomy=profile.anatomy,
        title=words.headline(profile),
        lead=words.verdict(profiled),
        answer="no" if words.worth_doing(profiled) else "yes",
        command=plain.command_line(profile.command),
        figures=key_figures(profile),
        parts=parts(profile),
        has=known_columns(profile),
        overlapped=list(words.overlapped(profile)),
        findings=[finding(problem, profiled) for problem in profiled.findings],
        timeline=figures.timeline_sums(profile),
        memory=memory_words(profile),
        tables={table.id: table for table in tables.tables(profile)},
        waits=tables.waits(profile),
        ceilings=tables.ceilings(profile),
        host=host.section(profile),
        traces=traces(profile, folder),
        environment=surroundings(profiled),
        drawn={name for name, figure in data.items() if figure},
    )


def page_figures(profile: Profile) -> dict[str, Any]:
    """The data for the page's scripts."""
    return {
        "words": {str(kind): words.kind(kind) for kind in Kind},
        "timeline": figures.timeline(profile),
        "memory": figures.memory(profile),
        "flames": host.flames(profile),
    }


def scripts(data: dict[str, Any]) -> tuple[str, ...]:
    """Names of the page's scripts; the one for flame graphs only if there is one."""
    first, *others = SCRIPTS
    return (first, *(FLAMES if data["flames"] else ()), *others)


def key_figures(profile: Profile) -> list[tuple[str, str, str]]:
    """Name, figure and remark of each key figure."""
    anatomy = profile.anatomy
    device = words.device(anatomy)
    rows = [("Time per step", units.milliseconds(anatomy.step_ms), _over(profile))]
    if anatomy.device != "cpu":
        idle_text = f"{units.milliseconds(anatomy.part(*IDLE))} idle"
        unseen = anatomy.part(Kind.UNRECORDED)
        if unseen:
            idle_text += f", {units.milliseconds(unseen)} not recorded"
        rows.append((f"{device} busy", units.share(1 - anatomy.share(*WAITS)), idle_text))
    if anatomy.flops:
        rate = words.flops_per_s(anatomy.flops, anatomy.step_ms)
        mfu = f"MFU {units.share(anatomy.mfu)} of the measured ceiling" if anatomy.mfu else ""
        rows.append(("Reached", rate, mfu))
    if profile.seen is not None and profile.seen.samples:
        rate = units.rate(profile.seen.samples / anatomy.step_ms * 1000)
        rows.append(("Throughput", rate, f"{profile.seen.samples:.0f} samples per step"))
    if anatomy.cores_busy is not None:
        of = f" of {anatomy.cores}" if anatomy.cores else ""
        rows.append(("CPU cores busy", f"{anatomy.cores_busy:.1f}{of}", "this process"))
    return rows


def parts(profile: Profile) -> list[dict[str, Any]]:
    """The rows of the anatomy; their widths add up to 100."""
    anatomy = profile.anatomy
    return [
        {
            "kind": str(part.kind),
            "wait": part.kind in WAITS,
            "name": words.kind(part.kind),
            "meaning": words.MEANINGS[part.kind],
            "ms": units.milliseconds(part.ms),
            "share": part.ms / anatomy.step_ms if anatomy.step_ms else 0.0,
            "launches": f"{part.launches:,.0f}" if part.launches else "",
            "flops": words.flops_per_s(part.flops, part.ms) if part.flops else "",
            "bytes": words.bytes_per_s(part.bytes, part.ms) if part.bytes else "",
            "ceiling": part.ceiling,
        }
        for part in sorted(anatomy.parts, key=lambda part: -part.ms)
        if part.ms > 0
    ]


def known_columns(profile: Profile) -> dict[str, bool]:
    """Columns of the anatomy, and whether any of their values is known."""
    columns = ("flops", "bytes", "ceiling")
    parts = profile.anatomy.parts
    return {name: any(getattr(part, name) is not None for part in parts) for name in columns}


def finding(problem: Finding, profiled: Profiled) -> dict[str, Any]:
    """One finding with the line of source that it names."""
    profile = profiled.profile
    place: Place | None = words.places(profile).get(problem.where or "")
    is_predicted = words.cured_ms(problem, profile) is not None
    size, gain = "unknown", ""
    if problem.gain is not None:
        size = "large" if words.saved(problem) > profiled.fail_over else "small"
    if problem.gain:
        gain = f"{'at most ' if problem.gain.bounds else ''}{times(problem.gain.ratio)}"
    return {
        "code": problem.code,
        "title": plain.one_line(problem.title),
        "severity": problem.severity.value,
        "size": size,
        "gain": gain,
        "change": words.after(problem, profile, "→").replace("x", "×") if is_predicted else "",
        "reason": plain.one_line(problem.gain.reason) if problem.gain else "",
        "evidence": plain.one_line(problem.evidence),
        "where": plain.one_line(problem.where or ""),
        "function": plain.one_line(place.function) if place else "",
        "source": plain.one_line(place.source) if place else "",
        "line": place.line if place else "",
        "cure": plain.one_line(problem.cure.text),
        "commands": [plain.one_line(line) for line in problem.cure.commands],
        "boost": problem.boost or "",
    }


def memory_words(profile: Profile) -> str:
    """Peak memory, and how much there is."""
    seen = profile.seen
    peak = max((point.bytes for point in profile.memory if point.category == "all"), default=None)
    if seen is not None and seen.memory_peak_bytes is not None:
        peak = max(peak or 0, seen.memory_peak_bytes)
    if peak is None:
        return ""
    total = seen.memory_total_bytes if seen is not None else None
    of = f" of {units.size(total)}" if total else ""
    return f"Peak {units.size(peak)}{of}"


def traces(profile: Profile, folder: Path) -> list[dict[str, str | None]]:
    """The raw traces, with a link if they are beside the page."""
    recordings = [("times", profile.trace)]
    if profile.seen is not None:
        recordings += [("times", profile.seen.trace or None)]
        recordings += [("stacks, shapes and memory", profile.seen.detail_trace or None)]
    paths: dict[str, str] = {}
    for content, path in recordings:
        if path:
            paths.setdefault(path, content)
    return [
        {"what": content, "path": plain.one_line(path), "link": beside(path, folder)}
        for path, content in paths.items()
    ]


def surroundings(profiled: Profiled) -> list[tuple[str, str]]:
    """Where and how this was recorded."""
    profile, job, anatomy = profiled.profile, profiled.profile.job, profiled.profile.anatomy
    facts: list[tuple[str, str | None]] = [
        ("Command", plain.command_line(profile.command) or None),
        ("Device", profile.device_name or words.device(anatomy)),
        ("PyTorch", job.torch if job else None),
        ("Python", job.python if job else None),
        ("Cores available to the process", str(job.cores) if job else None),
        ("Threads of PyTorch", str(job.threads) if job else None),
        ("Processes", str(job.world_size) if job else None),
        ("Recorded", _over(profile)),
        ("Overhead of recording, subtracted", _added(anatomy.recording_ms)),
        ("Garbage collection", _added(profile.seen.gc_s * 1000) if profile.seen else None),
        ("Checks", str(profiled.checks) if profiled.checks else None),
        ("Profiling took", units.duration(profiled.wall_s) if profiled.wall_s else None),
        ("Files of this run", profiled.run_folder),
    ]
    return [(name, plain.one_line(value)) for name, value in facts if value]


def _over(profile: Profile) -> str:
    if not profile.trace_steps:
        return "the whole trace: it marks no steps"
    return f"mean over {units.count(profile.anatomy.steps, 'step')}"


def _added(ms: float) -> str | None:
    return f"{units.milliseconds(ms)} per step" if ms else None
