"""Which node this is, from the variables that each engine documents."""

from __future__ import annotations

import pytest

from flatout.nouns.errors import UserError
from flatout.nouns.nodes import NodeLayout
from flatout.probing import nodes
from flatout.probing.program_answer import ProgramAnswer

SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_NNODES": "3",
    "SLURM_JOB_NODELIST": "gpu-[01-03]",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NODELIST": "gpu-[01-03]",
    "SLURM_NODEID": "1",
    "SLURMD_NODENAME": "gpu-02",
}
OWN = {
    "FLATOUT_NODES": "2",
    "FLATOUT_NODE": "1",
    "FLATOUT_LEADER": "10.0.0.1:29500",
    "FLATOUT_JOB": "secret",
}
KUBEFLOW = {
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "8",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "train-node-0-0.train",
    "PET_MASTER_PORT": "29400",
}
SKY = {
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NODE_IPS": "10.0.0.5\n10.0.0.6",
    "SKYPILOT_TASK_ID": "sky-2026-01-01-00-00-00-000000_cluster_2",
}
OPERATOR = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
"""A PyTorchJob, or Alibaba's DLC."""
TORCHRUN = {"NNODES": "4", "NODE_RANK": "3", "MASTER_ADDR": "node0", "WORLD_SIZE": "32"}


@pytest.fixture(autouse=True)
def no_scontrol(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not there, as in a container on a Slurm cluster."""
    missing = ProgramAnswer("", None, "not found")
    monkeypatch.setattr(nodes, "ask", lambda command, limit_s: missing)


@pytest.mark.parametrize(
    ("environ", "layout"),
    [
        ({}, NodeLayout()),
        (OWN, NodeLayout(2, 1, "10.0.0.1", 29500, "FLATOUT_NODES", "secret")),
        (
            {**OWN, "FLATOUT_LEADER": "[fd00::1]:2950", "FLATOUT_NODE_NAME": "left"},
            NodeLayout(2, 1, "fd00::1", 2950, "FLATOUT_NODES", "secret", "left"),
        ),
        (  # an indexed Job of Kubernetes: it knows its number alone
            {
                "FLATOUT_NODES": "2",
                "FLATOUT_LEADER": "train-0.train:29500",
                "JOB_COMPLETION_INDEX": "1",
            },
            NodeLayout(2, 1, "train-0.train", 29500, "FLATOUT_NODES"),
        ),
        (KUBEFLOW, NodeLayout(2, 1, "train-node-0-0.train", 29400, "Kubeflow Trainer")),
        (
            {**SKY, "SKYPILOT_TASK_ID": ""},
            NodeLayout(2, 1, "10.0.0.5", nodes.port_for(""), "SkyPilot"),
        ),
        (
            SLURM,
            NodeLayout(3, 1, "gpu-01", nodes.port_for("4711.0.0"), "Slurm", "4711.0.0", "gpu-02"),
        ),
        (OPERATOR, NodeLayout(2, 1, "job-master-0", 23456, "WORLD_SIZE")),
        (TORCHRUN, NodeLayout(4, 3, "node0", 29500, "torch's variables")),
    ],
)
def test_each_engine_is_read(environ: dict[str, str], layout: NodeLayout) -> None:
    assert nodes.layout("auto", environ) == layout
    if layout.count > 1:
        assert nodes.layout(str(layout.count), environ) == layout
        assert nodes.layout("1", environ) == NodeLayout()


def test_our_own_variables_win_and_a_special_engine_comes_before_torch_s() -> None:
    assert nodes.layout("auto", {**SLURM, **KUBEFLOW, **SKY, **OWN}).engine == "FLATOUT_NODES"
    assert nodes.layout("auto", {**SLURM, **OPERATOR}).engine == "Slurm"


@pytest.mark.parametrize(
    "environ",
    [
        {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "localhost"},
        {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"},
        {"SLURM_JOB_ID": "4", "SLURM_NNODES": "1"},
        {"PET_NNODES": "1", "PET_NODE_RANK": "0"},
        {"SKYPILOT_NUM_NODES": "1"},
        {"FLATOUT_NODES": "1"},
        {"JOB_COMPLETION_INDEX": "3"},
    ],
)
def test_one_node_is_one_node(environ: dict[str, str]) -> None:
    assert nodes.layout("auto", environ).count == 1


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({**OWN, "FLATOUT_LEADER": ""}, ["FLATOUT_LEADER"]),
        ({"FLATOUT_NODE": "1"}, ["FLATOUT_NODES"]),
        ({**OWN, "FLATOUT_NODE": "2"}, ["node 2 of 2 nodes"]),
        ({**OWN, "FLATOUT_NODE": "one"}, ["FLATOUT_NODE=one"]),
        ({**OWN, "FLATOUT_LEADER": "10.0.0.1"}, ["FLATOUT_LEADER=10.0.0.1"]),
        ({**OWN, "FLATOUT_LEADER": "10.0.0.1:99999"}, ["99999"]),
        ({**OWN, "FLATOUT_NODES": "0"}, ["0 nodes"]),
        ({**KUBEFLOW, "PET_NODE_RANK": ""}, ["PET_NODE_RANK", "Kubeflow"]),
        ({**KUBEFLOW, "PET_MASTER_ADDR": ""}, ["PET_MASTER_ADDR"]),
        ({**KUBEFLOW, "PET_NNODES": "1:4"}, ["PET_NNODES=1:4"]),
        ({**SKY, "SKYPILOT_NODE_IPS": "10.0.0.5"}, ["SKYPILOT_NODE_IPS", "1 node", "are 2"]),
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "24"}, ["24 tasks", "SLURM_STEP_NUM_TASKS"]),
        ({**SLURM, "SLURM_STEP_NUM_NODES": ""}, ["srun", "SLURM_STEP_NUM_NODES"]),
        ({**SLURM, "SLURM_STEP_NODELIST": "gpu-[01-02]"}, ["SLURM_STEP_NODELIST", "2 nodes"]),
        ({**SLURM, "SLURM_STEP_NODELIST": "gpu-[01"}, ["gpu-[01"]),
        ({**OPERATOR, "MASTER_ADDR": ""}, ["WORLD_SIZE", "MASTER_ADDR"]),
        ({**OPERATOR, "RANK": ""}, ["RANK"]),
        ({**OPERATOR, "LOCAL_WORLD_SIZE": "2"}, ["LOCAL_WORLD_SIZE=2"]),
        ({**OPERATOR, "TORCHELASTIC_RUN_ID": "none"}, ["torchrun"]),
        ({"NODE_RANK": "1"}, ["NNODES"]),
    ],
)
def test_half_set_variables_are_named_with_what_to_do(
    environ: dict[str, str], named: list[str]
) -> None:
    with pytest.raises(UserError) as error:
        nodes.layout("auto", environ)
    assert all(word in error.value.message for word in named), error.value.message
    assert error.value.next_step


@pytest.mark.parametrize(
    ("asked", "environ", "said"),
    [
        ("3", OWN, "FLATOUT_NODES has started 2 nodes"),
        ("2", {}, "no engine's variables"),
        ("many", OWN, "neither auto nor a number"),
        ("0", OWN, "neither auto nor a number"),
    ],
)
def test_another_number_than_asked_is_refused(
    asked: str, environ: dict[str, str], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        nodes.layout(asked, environ)


def test_slurm_is_asked_for_names_and_for_an_address_where_a_name_leads_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def scontrol(command: list[str], limit_s: float) -> ProgramAnswer:
        names = "no-such-host-1.invalid\nno-such-host-2.invalid\nno-such-host-3.invalid\n"
        node = "NodeName=x Arch=x86_64 NodeAddr=10.1.1.7 NodeHostName=y Port=17001\n"
        return ProgramAnswer(names if "hostnames" in command else node, 0)

    monkeypatch.setattr(nodes, "ask", scontrol)
    read = nodes.layout("auto", SLURM)
    assert (read.leader, read.name) == ("10.1.1.7", "gpu-02")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n1,n2", ["n1", "n2"]),
        ("n[01-03,7]", ["n01", "n02", "n03", "n7"]),
        ("n[1-2],login,m[9-11]-ib", ["n1", "n2", "login", "m9-ib", "m10-ib", "m11-ib"]),
        ("r[0-1]n[0-1]", ["r0n0", "r0n1", "r1n0", "r1n1"]),
        ("gpu-[098-101]", ["gpu-098", "gpu-099", "gpu-100", "gpu-101"]),
    ],
)
def test_lists_of_nodes(text: str, names: list[str]) -> None:
    assert nodes.expanded(text) == names


@pytest.mark.parametrize("text", ["n[1", "n]1", "n[1-]", "n[3-1]", "n[a-b]", "n[0-9999999]", ",,n"])
def test_what_is_no_list_of_nodes_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        nodes.expanded(text)
