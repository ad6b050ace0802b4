"""ROCm, against AMD's compatibility matrix."""

from __future__ import annotations

from flatout.knowledge.compat import rocm


def test_rocm() -> None:
    assert rocm.supported_gfx("6.3.1") == ("gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1100")
    assert rocm.supported_gfx("3.0") is None
    assert "Instinct MI300X" in rocm.gpus_of("gfx942:sramecc+:xnack-")
    assert rocm.gpus_of("gfx1") == ()


def test_newer_gpus_are_supported_by_newer_releases_alone() -> None:
    assert "gfx1201" in (rocm.supported_gfx("6.4.3") or ())
    assert "gfx950" not in (rocm.supported_gfx("6.4.3") or ())
    assert "gfx950" in (rocm.supported_gfx("7.0.0") or ())
    assert "gfx1103" not in (rocm.supported_gfx("7.2.1") or ())
    assert rocm.supported_gfx("7.14.0") is None
