"""The container was started without a GPU.

## What it sees

The process runs in a container, no GPU's device file is visible in it, and there is reason to
expect one. The host may have a GPU: its bus, which containers see, shows one, or NVIDIA's module is
loaded in its kernel. The image may be made for one: its torch is, or it sets
NVIDIA_VISIBLE_DEVICES. Both together are an error, one alone is a warning.

## Why it matters

A container sees only the devices that it was given. torch then finds no GPU and runs on the CPU,
however well the host is set up.

## Cure

Start the container with the GPU: `docker run --gpus all`, a device reservation in a compose file,
in Kubernetes a limit of nvidia.com/gpu and the device plugin, or `singularity exec --nv`. For
NVIDIA the host needs its driver and NVIDIA's container toolkit.

## References

- https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/
- https://docs.docker.com/compose/how-tos/gpu-support/
- https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/
"""

from __future__ import annotations

from collections.abc import Iterator

from flatout.diagnosing import driver_state
from flatout.diagnosing.checks import Check, Diagnosis
from flatout.installing import driver, target
from flatout.nouns.finding import Cure, Severity
from flatout.nouns.machine import Machine

CHECK = Check(
    code="ENV011",
    severity=Severity.ERROR,
    since="0.2.0",
    hides=("ENV006", "ENV007", "ENV017", "ENV019", "ENV025"),
)

# Kind of container -> what starts it with a GPU; IMAGE and COMMAND are the user's own.
NVIDIA = {
    "docker": (
        "docker run --gpus all IMAGE",
        "or in compose.yaml, under the service: deploy: {resources: {reservations: {devices: "
        "[{driver: nvidia, count: all, capabilities: [gpu]}]}}}",
    ),
    "podman": (
        "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        "podman run --device nvidia.com/gpu=all IMAGE",
    ),
    "kubernetes": (
        "in the pod's container: resources: {limits: {nvidia.com/gpu: 1}}",
        "kubectl get nodes "
        "'-o=custom-columns=NODE:.metadata.name,GPUS:.status.allocatable.nvidia\\.com/gpu'",
        "no number there: install the device plugin, https://github.com/NVIDIA/k8s-device-plugin",
    ),
    "singularity": ("singularity exec --nv IMAGE COMMAND", "or: apptainer exec --nv IMAGE COMMAND"),
    "lxc": ("lxc config device add NAME gpu gpu", "lxc config set NAME nvidia.runtime true"),
    "containerd": ("nerdctl run --gpus all IMAGE",),
}
AMD = {
    "kubernetes": (
        "in the pod's container: resources: {limits: {amd.com/gpu: 1}}",
        "the device plugin: https://github.com/ROCm/k8s-device-plugin",
    ),
    "singularity": ("singularity exec --rocm IMAGE COMMAND",),
    "lxc": ("lxc config device add NAME gpu gpu",),
}
AMD_DEVICES = "--device /dev/kfd --device /dev/dri --group-add video --group-add render"


def check(machine: Machine) -> Iterator[Diagnosis]:
    """One finding for the container."""
    kind = machine.container.kind
    if kind is None or machine.container.gpu_passed_through is not False:
        return
    host, image = _of_host(machine), _of_image(machine)
    if not (host or image):
        return
    amd = bool(machine.torch and machine.torch.hip) and not driver_state.on_bus(machine)
    # Comments, since they must run on the host and this shell is in the container.
    if amd:
        runner = {"podman": "podman", "containerd": "nerdctl"}.get(kind, "docker")
        lines = AMD.get(kind, (f"{runner} run {AMD_DEVICES} IMAGE",))
        commands = [f"# {line}" for line in ("On the host:", *lines, "Look here: ls -l /dev/kfd")]
    else:
        commands = [f"# {line}" for line in ("On the host:", *NVIDIA.get(kind, NVIDIA["docker"]))]
        if kind in ("docker", "containerd"):
            commands += driver.container_toolkit_commands(target.of(machine))
        commands.append("# Then, in the container: nvidia-smi")
    yield Diagnosis(
        title=f"this container ({kind}) was started without a GPU",
        evidence=f"container: {kind}; no /dev/nvidia*, /dev/kfd or /dev/dxg in it; "
        + "; ".join(filter(None, (host, image))),
        cure=Cure(
            "Start the container again, with the GPU, as the lines show for its kind."
            + ("" if amd else " The host needs NVIDIA's driver and its container toolkit."),
            tuple(commands),
        ),
        severity=None if host and image else Severity.WARNING,
    )


def _of_host(machine: Machine) -> str:
    """What shows that the host has a GPU, or empty if nothing does."""
    cards = driver_state.on_bus(machine)
    if cards:
        return f"NVIDIA on the host's bus: {driver_state.names(cards[:2])} ({len(cards)} in all)"
    if driver_state.loaded(machine):
        return "NVIDIA's module is loaded in the host's kernel"
    # Many AMD processors include a small GPU; only a torch built for ROCm suggests its use.
    rocm = machine.torch is not None and machine.torch.hip is not None
    amd = [gpu for gpu in machine.gpus_of("amd") if gpu.pci_address and rocm]
    return f"AMD on the host's bus: {amd[0].name or amd[0].pci_id or 'GPU'}" if amd else ""


def _of_image(machine: Machine) -> str:
    """What shows that the image is made for a GPU, or empty if nothing does."""
    torch = machine.torch
    if torch is not None and (torch.cuda or torch.hip):
        built = f"CUDA {torch.cuda}" if torch.cuda else f"ROCm {torch.hip}"
        return f"torch {torch.version or 'here'} is built for {built}"
    value = (machine.environment or {}).get("NVIDIA_VISIBLE_DEVICES", "")
    asks = value not in ("", "void", "none")
    return f"NVIDIA_VISIBLE_DEVICES={value[:40]} asks for GPUs" if asks else ""
