"""Checks of measured ceilings.

They get the measured ceilings and the Machine as it was under load:

    CHECK = Check(code="HW024", severity=Severity.WARNING, since="0.2.0")

    def check(benched: Benched, machine: Machine) -> Iterator[Diagnosis]

A shortfall is reported once for each device, with the cause that the driver names; if it names
none, the shortfall itself is the finding. Nothing is claimed about measurements that are missing or
have no data sheet.
"""
