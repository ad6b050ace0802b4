"""Jobs and their parts for the tests of COMM."""

from __future__ import annotations

from diagnosing.job import made
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Collective, Profile


def exchanging(collective: Collective, **changes: object) -> Profile:
    return made.ddp_profile(
        {Kind.COMMUNICATION: collective.exposed_ms}, collectives=(collective,), **changes
    )
