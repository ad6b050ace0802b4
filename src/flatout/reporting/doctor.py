"""What `flatout doctor` prints: the machine in a few lines, findings with cures, a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flatout.nouns import units
from flatout.nouns.diagnosed import Diagnosed, Health
from flatout.nouns.finding import Finding, Sentence, Severity
from flatout.nouns.gpu import Gpu
from flatout.nouns.machine import Machine
from flatout.reporting import plain
from flatout.reporting.paragraphs import LABEL, Line, paragraph, show, styled, width_of, wrapped

if TYPE_CHECKING:
    from rich.console import Console

STYLES = {
    Severity.ERROR: "bold red",
    Severity.WARNING: "bold yellow",
    Severity.NOTE: "bold cyan",
    Severity.UNCHECKED: "bold magenta",
}
HEALTH_STYLES = {
    Health.HEALTHY: "bold green",
    Health.IMPAIRED: "bold yellow",
    Health.BROKEN: "bold red",
}

Entry = tuple[str, str, str]
"""Label, text, and the label's style."""


def doctor(diagnosed: Diagnosed, console: Console | None = None) -> None:
    """Print everything; on stdout unless another console is given."""
    from rich.console import Console

    console = console or Console()
    for entry in _machine(diagnosed.machine):
        print_entry(console, entry)
    for finding in diagnosed.findings:
        show(console, Line(""))
        print_finding(console, finding)
    if diagnosed.selftests:
        show(console, Line(""))
        for test in diagnosed.selftests:
            word, style = {
                True: ("PASS", "bold green"),
                False: ("FAIL", "bold red"),
                None: ("skipped", "bold"),
            }[test.passed]
            parts = [part for part in (test.figure, test.message) if part]
            told = f"{test.name}{': ' if parts else ''}{', '.join(parts)}"
            print_entry(console, (word, told, style))
    show(console, Line(""))
    _verdict(console, diagnosed)


def _machine(machine: Machine) -> Iterator[Entry]:
    system = machine.system
    name = system.distribution_name or system.name or units.UNKNOWN
    places = [
        machine.container.kind,
        f"WSL{machine.container.wsl}" if machine.container.wsl else "",
    ]
    surroundings = ", ".join(place for place in places if place)
    kernel = f", kernel {system.release}" if system.release and system.name == "Linux" else ""
    yield "system", f"{name}{f' in {surroundings}' if surroundings else ''}{kernel}", "bold"
    cpu, memory = machine.cpu, machine.memory
    usable = units.count(cpu.cores, "core")
    total_text = f" of {cpu.logical_cores}" if cpu.logical_cores not in (None, cpu.cores) else ""
    total = units.size(memory.limit_bytes or memory.total_bytes)
    limit = " (limit of the control group)" if memory.limit_bytes else ""
    cores = f"{usable}{total_text}"
    yield "cpu", f"{cpu.name or units.UNKNOWN}, {cores}, {total} memory{limit}", "bold"
    if machine.gpus is None:
        yield "gpu", "could not be read", "bold"
    elif not machine.gpus:
        yield "gpu", "none", "bold"
    for text, count in Counter(_gpu(machine, gpu) for gpu in machine.gpus or ()).items():
        yield "gpu", f"{count} x {text}" if count > 1 else text, "bold"
    yield from _software(machine)
    for source in machine.unread:
        yield "unread", source, "bold magenta"


def _gpu(machine: Machine, gpu: Gpu) -> str:
    parts = [gpu.name or f"{gpu.vendor.upper()} GPU {gpu.pci_id or ''}".strip()]
    if gpu.memory_bytes is not None:
        parts.append(units.size(gpu.memory_bytes))
    driver = machine.driver(gpu.vendor)
    if gpu.driver_sees is False:
        parts.append("on the bus, but no driver sees it")
    elif driver and driver.version:
        cuda = f" (CUDA {driver.cuda})" if driver.cuda else ""
        parts.append(f"driver {driver.version}{cuda}")
    return ", ".join(parts)


def _software(machine: Machine) -> Iterator[Entry]:
    python = machine.interpreter
    if python is None:
        yield "python", "none found", "bold"
        return
    text = f"{python.version or units.UNKNOWN} at {python.executable or units.UNKNOWN}"
    yield "python", f"{text} ({python.error})" if python.error else text, "bold"
    if machine.torch is None:
        yield "torch", "not installed" if machine.torch_missing else units.UNKNOWN, "bold"
    else:
        torch = machine.torch
        build = f"+{torch.build}" if torch.build else ""
        yield "torch", f"{torch.version or units.UNKNOWN}{build}{_says(machine)}", "bold"


def _says(machine: Machine) -> str:
    """What torch itself reports about its devices, if it was asked."""
    torch = machine.torch
    if torch is None or torch.imported is None:
        return ", not imported in time (--deep waits for it)"
    if torch.imported is False:
        return ", cannot be imported"
    if torch.cuda_available and torch.device_count is not None:
        return f", sees {units.count(torch.device_count, 'GPU')}"
    if torch.mps_available:
        return ", sees the Apple GPU (MPS)"
    return ", sees an Intel GPU (XPU)" if torch.xpu_available else ", sees no GPU"


def print_finding(console: Console, finding: Finding) -> None:
    head = (finding.severity.value, f"{finding.code}: {finding.title}", STYLES[finding.severity])
    print_entry(console, head)
    print_entry(console, ("  found", finding.evidence, "dim"))
    print_entry(console, ("  cure", finding.cure.text, "dim"))
    for command in finding.cure.commands:
        # Commands stay on one line so that they can be copied; sentences wrap.
        lines = [plain.one_line(command)]
        if isinstance(command, Sentence):
            lines = wrapped(lines[0], width_of(console) - LABEL, hanging="# ")
        for line in lines:
            show(console, styled(f"{'':{LABEL}}{line}", "cyan"))


def _verdict(console: Console, diagnosed: Diagnosed) -> None:
    kinds = Counter(finding.severity for finding in diagnosed.findings)
    counts = [
        units.count(kinds[kind], kind.value)
        for kind in (Severity.ERROR, Severity.WARNING, Severity.NOTE)
        if kinds[kind]
    ]
    if kinds[Severity.UNCHECKED]:
        counts.append(f"{kinds[Severity.UNCHECKED]} could not be checked")
    failed = sum(test.passed is False for test in diagnosed.selftests)
    if failed:
        counts.append(units.count(failed, "failed test"))
    summary = ", ".join(counts) or "no problems found"
    checks = units.count(diagnosed.checks, "check")
    text = f"{diagnosed.health.value}: {summary} ({checks})"
    print_entry(console, ("verdict", text, HEALTH_STYLES[diagnosed.health]))
    if diagnosed.findings:
        print_entry(console, ("next", f"flatout explain {diagnosed.findings[0].code}", "bold cyan"))


def print_entry(console: Console, entry: Entry) -> None:
    """The label in the first column, the text wrapped beside it."""
    label, text, style = entry
    for line in paragraph(label, text, width_of(console), style):
        show(console, line)
