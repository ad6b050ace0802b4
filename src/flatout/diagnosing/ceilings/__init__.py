"""Checks of measured ceilings.

Beside the Machine, as it was under load, stands what it gave:

    CHECK = Check(code="HW024", severity=Severity.WARNING, since="0.2.0")

    def check(benched: Benched, machine: Machine) -> Iterator[Diagnosis]

A shortfall is reported once for each device, with the cause that the driver names; only where it
names none is the shortfall itself the finding. What was not measured, or has no data sheet, is not
claimed.
"""
