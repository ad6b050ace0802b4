"""What each rank gets of the machine: a pure function of what is asked for and what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.nouns.errors import UserError
from flatout.nouns.nodes import RankPlace
from flatout.running.one.command import Command
from flatout.running.ranks.layout import (
    RankLayout,
    alone,
    asked_layout,
    check_command,
    fewer,
    rotated,
)
from flatout.running.ranks.native import NativeStart, interface


def test_each_rank_begins_with_its_own_gpu_and_sees_its_peers() -> None:
    gpus = ("0", "1", "2", "3")
    assert [rotated(gpus, rank) for rank in range(4)] == [
        "0,1,2,3",
        "1,2,3,0",
        "2,3,0,1",
        "3,0,1,2",
    ]


@pytest.mark.parametrize(
    ("asked", "present", "variable", "chosen"),
    [
        ("all", 4, None, ("0", "1", "2", "3")),
        ("2", 4, None, ("0", "1")),
        ("3,1", 4, None, ("1", "3")),  # in physical order
        ("all", 4, "2,3", ("2", "3")),
        ("2", 4, "3,1,0", ("3", "1")),
        ("all", 2, "GPU-aa,GPU-bb", ("GPU-aa", "GPU-bb")),
        ("all", 4, "1,0,-1,2", ("1", "0")),  # CUDA reads it up to the first bad entry
    ],
)
def test_gpus(asked: str, present: int, variable: str | None, chosen: tuple[str, ...]) -> None:
    environ = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    assert asked_layout(None, asked, 8, present, environ).gpus == chosen


@pytest.mark.parametrize(
    ("ranks", "gpus", "cores", "present", "environ", "message", "cure"),
    [
        (None, "all", 8, 0, {}, "no NVIDIA GPU", "--ranks N"),
        (None, "all", 8, 2, {"CUDA_VISIBLE_DEVICES": ""}, "no NVIDIA GPU", "--ranks N"),
        (None, "all", 8, 1, {}, "only one GPU", "without --gpus"),
        (None, "4", 8, 2, {}, "there are 2", "--gpus all"),
        (None, "0,7", 8, 2, {}, "no GPU '7'", "--gpus all"),
        (None, "1,1", 8, 2, {}, "twice", "--gpus all"),
        (None, "some", 8, 2, {}, "no GPU 'some'", "--gpus all"),
        (3, None, 2, 0, {}, "needs 3 CPU cores; this process may use 2", "--ranks 2"),
        (4, None, 8, 2, {}, "there are 2 GPUs", "CUDA_VISIBLE_DEVICES= flatout run --ranks 4"),
    ],
)
def test_what_is_not_there_is_refused(
    ranks: int | None,
    gpus: str | None,
    cores: int,
    present: int,
    environ: dict[str, str],
    message: str,
    cure: str,
) -> None:
    with pytest.raises(UserError) as caught:
        asked_layout(ranks, gpus, cores, present, environ)
    assert message in caught.value.message
    assert cure in (caught.value.next_step or "")


def test_ranks_on_a_machine_with_gpus_have_a_gpu_each() -> None:
    assert asked_layout(2, None, 8, 4, {}).gpus == ("0", "1")
    assert asked_layout(2, None, 8, 4, {"CUDA_VISIBLE_DEVICES": ""}).gpus == ()


def test_cores_are_divided_unless_the_user_names_threads() -> None:
    assert asked_layout(3, None, 8, 0, {}).threads == 2
    assert asked_layout(3, None, 8, 0, {"OMP_NUM_THREADS": "1"}).threads is None
    assert fewer(asked_layout(4, None, 8, 0, {}), 2, 8).threads == 4


def test_the_environment_of_a_rank() -> None:
    base = {"PATH": "/bin", "RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_PORT": "1"}
    ranks = RankLayout(2, 7, 3, ("4", "5"))
    assert ranks.environment(1, base) == {
        "PATH": "/bin",
        "FLATOUT_RANK": "1",
        "FLATOUT_RANKS": "2",
        "PYTHONHASHSEED": "7",
        "OMP_NUM_THREADS": "3",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "5,4",
    }


def test_a_program_that_knows_ranks_gets_what_torchrun_would_set() -> None:
    base = {"PATH": "/bin", "RANK": "7", "MASTER_PORT": "1"}
    ranks = RankLayout(2, 7, 3, ("4", "5"), native=NativeStart("lightning")).begun()
    own = ranks.environment(1, base)
    assert own["CUDA_VISIBLE_DEVICES"] == "4,5"  # it takes cuda:LOCAL_RANK
    assert {own[name] for name in ("RANK", "LOCAL_RANK")} == {"1"}
    assert {own[name] for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")} == {"2"}
    assert own["MASTER_PORT"] == ranks.environment(0, base)["MASTER_PORT"] != "1"
    assert "ACCELERATE_USE_CPU" not in own
    assert "TORCHELASTIC_RUN_ID" in own  # Lightning looks for it
    cores = RankLayout(2, 7, 3, (), native=NativeStart("accelerate")).environment(0, base)
    assert cores["ACCELERATE_USE_CPU"] == "true"  # else each takes itself for alone
    assert ranks.orders(1, Path("s"), "scratch", "here").scratch == ""  # it may save its part


def test_what_the_user_names_stays() -> None:
    base = {"PYTHONHASHSEED": "3", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "1,0"}
    own = RankLayout(2, 7, None, ("1", "0")).environment(1, base)
    assert (own["PYTHONHASHSEED"], own["OMP_NUM_THREADS"]) == ("3", "1")
    assert "CUDA_DEVICE_ORDER" not in own  # the user's numbers are in the user's order
    random = RankLayout(2, 7).environment(0, {"PYTHONHASHSEED": "random"})
    assert random["PYTHONHASHSEED"] == "7"  # else each rank would have other sets


def test_a_launcher_starts_its_ranks_itself() -> None:
    command = Command(("/bin/torchrun", "a.py"), None, "python", ("torchrun", "a.py"))
    with pytest.raises(UserError, match="starts the ranks itself"):
        check_command(command)


def test_ranks_of_one_of_several_machines() -> None:
    place = RankPlace(8, 12, "10.0.0.1:4000", "10.0.0.2")
    own = RankLayout(4, 5, None, ("0", "1", "2", "3"), place)
    orders = own.orders(1, Path("store"), "scratch", "folder")
    assert (orders.rank, orders.size) == (9, 12)
    assert (orders.address, orders.host) == ("10.0.0.1:4000", "10.0.0.2")
    base = {"FLATOUT_JOB": "secret", "RANK": "1", "MASTER_ADDR": "node0", "HOME": "/root"}
    variables = own.environment(1, base)
    assert not {"FLATOUT_JOB", "RANK", "MASTER_ADDR"} & variables.keys()
    assert variables["CUDA_VISIBLE_DEVICES"] == "1,2,3,0"  # of this machine
    names = ("FLATOUT_RANK", "FLATOUT_RANKS", "FLATOUT_LOCAL_RANKS")
    assert [variables[name] for name in names] == ["9", "12", "4"]


def test_a_program_that_knows_ranks_sees_those_of_all_machines() -> None:
    place = RankPlace(8, 12, "[fd00::1]:4000", "127.0.0.1", 2, 3)
    own = RankLayout(4, 5, 1, ("0", "1", "2", "3"), place, NativeStart("lightning")).begun()
    slurm = {"SLURM_PROCID": "2", "SLURM_NTASKS": "3", "SLURM_JOB_ID": "7"}
    variables = own.environment(1, {"RANK": "1", "WORLD_SIZE": "2", **slurm})
    assert {name: variables[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")} == {
        "RANK": "9",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "12",
    }
    names = ("LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "GROUP_WORLD_SIZE")
    assert [variables[name] for name in names] == ["4", "2", "2", "3"]
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("fd00::1", "4000")
    assert variables["TORCHELASTIC_RUN_ID"] == "flatout-4000"  # the same on all machines
    assert variables["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    # As if Slurm had started a task for each rank, and not one on each node.
    tasks = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_JOB_ID")
    assert [variables[name] for name in tasks] == ["9", "1", "12", "7"]
    assert variables["GLOO_SOCKET_IFNAME"] == interface("127.0.0.1")
    kept = own.environment(0, {"GLOO_SOCKET_IFNAME": "ib0"})
    assert kept["GLOO_SOCKET_IFNAME"] == "ib0"
    assert "SLURM_PROCID" not in kept
    orders = own.orders(1, Path(), "scratch", "here")
    assert (orders.rank, orders.size, orders.machines, orders.machine_size) == (9, 12, 3, 4)
    assert orders.scratch == ""


def test_a_program_that_is_to_train_alone_is_told_of_no_other() -> None:
    base = {"PATH": "/bin", "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node0"}
    engine = {"SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_JOB_ID": "7", "FLATOUT_JOB": "x"}
    assert alone({**base, **engine}) == {"PATH": "/bin", "SLURM_JOB_ID": "7"}
    plain = RankLayout(1, 5, None, (), RankPlace(1, 2, "a:1", "b", 1, 2))
    assert not engine.keys() - {"SLURM_JOB_ID"} & plain.environment(0, engine).keys()


def test_one_rank_is_enough_where_there_are_other_machines() -> None:
    assert asked_layout(None, "all", 8, 1, {}, least=1).size == 1
    assert asked_layout(1, None, 8, 0, {}, least=1).size == 1
