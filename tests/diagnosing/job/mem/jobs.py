"""Jobs and their parts for the tests of MEM."""

from __future__ import annotations

from diagnosing.job.made_parts import CONV
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Gap

MALLOC = Gap(Kind.WAIT_OTHER, ms=9.0, count=6.0, doing="cudaMalloc", where=CONV)
