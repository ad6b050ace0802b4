"""`flatout bench --expect h100`: is it that GPU, and is it as fast as it should be?"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from flatout.diagnosing.diagnose import problems
from flatout.knowledge import gpus
from flatout.nouns.ceiling import Benched
from flatout.nouns.errors import UserError
from flatout.nouns.finding import Finding


def check_known(expected: str) -> None:
    """Raise UserError if the data sheets lack this GPU."""
    if gpus.find(expected) is not None:
        return
    near = gpus.nearest(expected)
    cure = f"did you mean {' or '.join(near[:3])}?" if near else "name it as sold: h100, rtx-4090"
    raise UserError(f"there is no data sheet of a GPU {expected!r}", cure)


def judged(benched: Benched, findings: Sequence[Finding]) -> Benched:
    """The results with the findings; --expect passes if nothing is wrong and all was measured."""
    passed = None
    if benched.expected is not None:
        passed = not problems(findings) and bool(benched.devices) and not benched.interrupted
    return dataclasses.replace(benched, findings=tuple(findings), passed=passed)
