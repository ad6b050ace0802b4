"""torch cannot use the Mac's GPU: MPS is not available.

## What it sees

A Mac with an Apple GPU, and a torch that imports and says that MPS is not available, or was not
built in.

## Why it matters

`device="mps"` fails and the training runs on the processor.

## Cure

Update macOS; if MPS is not built in, install torch's own wheel.

## References

- https://developer.apple.com/metal/pytorch/
- https://github.com/pytorch/pytorch/issues/139425
- https://github.com/pytorch/pytorch/issues/164943
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing.checks import Check, Diagnosis
from flatout.diagnosing.machine.env import software
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(code="ENV039", severity=Severity.ERROR, since="0.2.0", hides=("ENV035",))


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding, with the cure by whether MPS is built in."""
    torch = machine.torch
    gpus = machine.gpus_of("apple")
    if not gpus or torch is None or torch.imported is not True or torch.mps_available is not False:
        return
    if torch.mps_built is None:
        return
    macos = machine.system.distribution_version or "version not known"
    built = "built in" if torch.mps_built else "not built in"
    cure = (
        Cure("Update macOS: this torch needs a newer one.", ("softwareupdate --list",))
        if torch.mps_built
        else Cure("Install torch's own wheel; it has MPS.", software.install_torch(machine))
    )
    yield Diagnosis(
        title=f"{software.label(torch)} cannot use {gpus[0].name or 'the Mac GPU'}: no MPS",
        evidence=f"MPS is {built} and not available; macOS {macos}",
        cure=cure,
    )
