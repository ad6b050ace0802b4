"""Driver, PyTorch, check and restart in one paste."""

from __future__ import annotations

from flatout.installing import answers, description
from installing import grammar


def test_the_driver_first_and_the_restart_last() -> None:
    here = description.read("gpu=rtx5090,driver=550,os=ubuntu24.04,python=3.12")
    made = answers.answer("install", here)
    run = [line for line in made.commands if not line.startswith("#")]
    driver = next(index for index, line in enumerate(run) if "nvidia-driver-" in line)
    torch = next(index for index, line in enumerate(run) if "torch==" in line)
    assert driver < torch < len(run) - 1
    assert run[-1] == "sudo reboot" and made.choice.driver_needed == "580"
    grammar.bash([made.text])


def test_no_driver_where_it_is_new_enough() -> None:
    here = description.read("gpu=rtx4090,driver=580.95.05,os=ubuntu24.04,python=3.12")
    made = answers.answer("install", here)
    assert len(made.commands) == 2
    remarks = [line for line in made.text.splitlines() if line.startswith("# why: ")]
    assert len(remarks) == len(made.choice.why)


def test_variables_only_where_the_build_needs_them() -> None:
    rdna2 = answers.answer("install", description.read("gpu=gfx1031,os=ubuntu22.04,python=3.12"))
    assert "export HSA_OVERRIDE_GFX_VERSION=10.3.0" in rdna2.commands
    for gpu in ("gfx1030", "mi300x", "rtx4090", "none"):
        here = description.read(f"gpu={gpu},os=ubuntu22.04,python=3.12")
        assert not any("export" in line for line in answers.answer("install", here).commands)
