"""ROCm, against AMD's compatibility matrix."""

from __future__ import annotations

from flatout.knowledge.compat import rocm


def test_rocm() -> None:
    assert rocm.supported_gfx("6.3.1") == ("gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1100")
    assert rocm.supported_gfx("3.0") is None
    assert "Instinct MI300X" in rocm.gpus_of("gfx942:sramecc+:xnack-")
    assert rocm.gpus_of("gfx1") == ()
