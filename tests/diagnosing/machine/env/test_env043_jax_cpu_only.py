from __future__ import annotations

from diagnosing.machine.asking import commands, findings, only
from diagnosing.machine.env.software_facts import broken
from flatout.nouns.interpreter import Jax
from machines.healthy import changed, cpu_server, rocm, windows

CHECK = "jax-cpu-only"
NAME = "jax-for-cpu"


def test_the_plugin_follows_the_driver() -> None:
    assert "'jax[cuda13]'" in commands(only(CHECK, broken(NAME)))
    assert "'jax[cuda12]'" in commands(only(CHECK, broken(NAME, drivers__0__cuda="12.8")))
    assert "'jax[cuda12]'" in commands(only(CHECK, broken(NAME, drivers=None)))


def test_rocm_has_its_own() -> None:
    machine = changed(rocm(), interpreter__jax=Jax("0.7.2", "0.7.2"))
    assert "'jax[rocm]'" in commands(only(CHECK, machine))


def test_nothing_with_a_plugin_or_without_a_gpu() -> None:
    assert not findings(CHECK, broken("jax-beside-torch"))
    assert not findings(CHECK, broken("jax-beside-torch", interpreter__jax__cuda_plugin=None))
    old = Jax("0.4.20", "0.4.20+cuda12.cudnn89")
    assert not findings(CHECK, broken(NAME, interpreter__jax=old))
    jax = Jax("0.7.2", "0.7.2")
    assert not findings(CHECK, changed(cpu_server(), interpreter__jax=jax))
    assert not findings(CHECK, changed(windows(), interpreter__jax=jax))
    assert not findings(CHECK, broken(NAME, interpreter__packages=None))
