"""Checks of a training job.

They get a Profile:

    CHECK = Check(code="SYNC001", severity=Severity.WARNING, since="0.2.0")

    def check(profile: Profile) -> Iterator[Diagnosis]

A diagnosis has the line of the user's code (`where`), the boost that cures it without an edit,
and what a step would save, with the arithmetic in words (`saves_ms`, `reason`). Nothing is claimed
about facts that the profile lacks (None, empty).
"""
