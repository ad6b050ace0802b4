"""Checks of a machine: its devices, drivers, limits, and the Python and torch on it.

They get a Machine:

    CHECK = Check(code="ENV012", severity=Severity.WARNING, since="0.2.0")

    def check(machine: Machine) -> Iterator[Diagnosis]
"""
