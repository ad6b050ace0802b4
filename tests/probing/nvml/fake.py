"""A fake of pynvml: machines as NVML tells them. A question that a GPU does not know is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml

GIB = 2**30
NOT_SUPPORTED = 3
UNKNOWN_ERROR = 999


class RefusalError(Exception):
    """As pynvml's errors: text and number."""

    def __init__(self, value: int, text: str = "Not Supported") -> None:
        super().__init__(text)
        self.value = value


class Nvml:
    """As much of pynvml as is asked.

    Answers are values, or functions of what is asked after the handle; handles are numbers, those
    of slices tuples. `refused` names questions that are refused, `unknown` those it does not have.
    """

    NVMLError = RefusalError
    c_nvmlGpuFabricInfoV_t = pynvml.c_nvmlGpuFabricInfoV_t  # noqa: N815
    c_nvmlGpuFabricInfo_t = pynvml.c_nvmlGpuFabricInfo_t  # noqa: N815

    def __init__(
        self,
        gpus: list[dict[str, Any] | None],
        system: dict[str, Any] | None = None,
        refused: frozenset[str] = frozenset(),
        unknown: frozenset[str] = frozenset(),
    ) -> None:
        self.gpus = gpus
        self.refused, self.unknown = refused, unknown
        self.calls: list[str] = []
        self.system = {
            "nvmlInit": None,
            "nvmlShutdown": None,
            "nvmlDeviceGetCount": len(gpus),
            "nvmlDeviceGetHandleByIndex": self.handle,
            "nvmlSystemGetDriverVersion": "570.124.06",
            "nvmlSystemGetCudaDriverVersion_v2": 12080,
            **(system or {}),
        }

    def handle(self, index: int) -> int:
        if self.gpus[index] is None:
            raise RefusalError(15, "GPU is lost")
        return index

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in self.unknown:
            raise AttributeError(name)

        def call(*args: Any) -> Any:
            self.calls.append(name)
            if name in self.refused:
                raise RefusalError(UNKNOWN_ERROR, "Unknown Error")
            if name in self.system:
                answer, rest = self.system[name], args
            else:
                answer, rest = self.of(args[0], name), args[1:]
            if isinstance(answer, Exception):
                raise answer
            return answer(*rest) if callable(answer) else answer

        return call

    def of(self, handle: Any, name: str) -> Any:
        if isinstance(handle, tuple):
            assert name == "nvmlDeviceGetName"
            return handle[1]
        known = self.gpus[handle] or {}
        if name not in known:
            raise RefusalError(NOT_SUPPORTED)
        return known[name]


def fabric(state: int) -> Any:
    """nvmlDeviceGetGpuFabricInfo(V): it fills the structure that it is given."""

    def fill(pointer: Any) -> int:
        pointer._obj.state = state
        return 0

    return fill


def one_of(**answers: Any) -> Any:
    """A question with a number behind it: `_3=...` answers 3; others are refused."""

    def answer(number: int, *_: Any) -> Any:
        if f"_{number}" not in answers:
            raise RefusalError(2, "Invalid Argument")
        return answers[f"_{number}"]

    return answer


def pci(bus: int, identity: int = 0, domain: int = 0) -> Any:
    return SimpleNamespace(domain=domain, bus=bus, device=0, pciDeviceId=identity)


def process(pid: int, used: int | None) -> Any:
    return SimpleNamespace(pid=pid, usedGpuMemory=used)


def consumer() -> dict[str, Any]:
    """An RTX 4090 with a screen: no ECC, MIG, NVLink or fabric."""
    return {
        "nvmlDeviceGetName": "NVIDIA GeForce RTX 4090",
        "nvmlDeviceGetUUID": "GPU-8c5e2d1a-0000-1111-2222-333344445555",
        "nvmlDeviceGetCudaComputeCapability": (8, 9),
        "nvmlDeviceGetPciInfo": pci(0x01, 0x268410DE),
        "nvmlDeviceGetCurrPcieLinkGeneration": 1,
        "nvmlDeviceGetMaxPcieLinkGeneration": 4,
        "nvmlDeviceGetGpuMaxPcieLinkGeneration": 4,
        "nvmlDeviceGetCurrPcieLinkWidth": 16,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetMemoryAffinity": [1] + [0] * 15,
        "nvmlDeviceGetMemoryInfo": lambda *version: SimpleNamespace(
            total=24 * GIB, used=GIB if version == (pynvml.nvmlMemory_v2,) else GIB + GIB // 2
        ),
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=37, memory=12),
        "nvmlDeviceGetTemperature": one_of(_0=44),
        "nvmlDeviceGetTemperatureThreshold": one_of(_0=100, _1=97),
        "nvmlDeviceGetPowerUsage": 31_250,
        "nvmlDeviceGetEnforcedPowerLimit": 450_000,
        "nvmlDeviceGetPowerManagementLimit": 450_000,
        "nvmlDeviceGetPowerManagementDefaultLimit": 450_000,
        "nvmlDeviceGetPowerManagementLimitConstraints": [150_000, 600_000],
        "nvmlDeviceGetClockInfo": one_of(_1=210, _2=405),
        "nvmlDeviceGetMaxClockInfo": one_of(_1=3105, _2=10501),
        "nvmlDeviceGetCurrentClocksEventReasons": 0x1,
        "nvmlDeviceGetPersistenceMode": 0,
        "nvmlDeviceGetComputeMode": 0,
        "nvmlDeviceGetDisplayActive": 1,
        "nvmlDeviceGetComputeRunningProcesses": [process(4242, 800 * 2**20)],
        "nvmlDeviceGetGraphicsRunningProcesses": [
            process(1802, 150 * 2**20),
            process(4242, 800 * 2**20),
        ],
    }


NAMES = {4242: "python train.py", 1802: "/usr/lib/xorg/Xorg"}


def server(index: int, name: str, identity: int, links: int) -> dict[str, Any]:
    """A GPU of an HGX board: ECC, remapped rows, NVSwitch, nobody on it."""
    return {
        **consumer(),
        "nvmlDeviceGetName": name,
        "nvmlDeviceGetUUID": f"GPU-0000000{index}-1111-2222-3333-444444444444",
        "nvmlDeviceGetCudaComputeCapability": (9, 0),
        "nvmlDeviceGetPciInfo": pci(0x19 + 0x10 * index, identity),
        "nvmlDeviceGetMemoryAffinity": [1 << (index // 4)] + [0] * 15,
        "nvmlDeviceGetEccMode": [1, 1],
        "nvmlDeviceGetTotalEccErrors": lambda kind, since: {(1, 0): 0, (1, 1): 2}[kind, since],
        "nvmlDeviceGetRemappedRows": (0, 2, 0, 0),
        "nvmlDeviceGetMigMode": [0, 0],
        "nvmlDeviceGetPersistenceMode": 1,
        "nvmlDeviceGetDisplayActive": 0,
        "nvmlDeviceGetNvLinkState": one_of(**{f"_{link}": 1 for link in range(links)}),
        "nvmlDeviceGetNvLinkRemoteDeviceType": 2,
        "nvmlDeviceGetNvLinkRemotePciInfo": pci(0x05),
        "nvmlDeviceGetTopologyCommonAncestor": lambda other: 30 if index // 4 == other // 4 else 50,
        "nvmlDeviceGetGpuFabricInfoV": fabric(3),
        "nvmlDeviceGetComputeRunningProcesses": [],
        "nvmlDeviceGetGraphicsRunningProcesses": [],
    }


def h100_node(**options: Any) -> Nvml:
    """Eight H100 behind NVSwitch."""
    gpus: list[dict[str, Any] | None] = [
        server(index, "NVIDIA H100 80GB HBM3", 0x233010DE, 18) for index in range(8)
    ]
    return Nvml(gpus, **options)


def mig_node() -> Nvml:
    """An A100 in two slices; the other places of its seven are empty."""
    gpu = {
        **server(0, "NVIDIA A100-SXM4-40GB", 0x20B010DE, 12),
        "nvmlDeviceGetMigMode": [1, 1],
        "nvmlDeviceGetMaxMigDeviceCount": 7,
        "nvmlDeviceGetMigDeviceHandleByIndex": one_of(
            _0=("slice", "NVIDIA A100-SXM4-40GB MIG 3g.20gb"),
            _1=("slice", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"),
        ),
    }
    del gpu["nvmlDeviceGetUtilizationRates"]
    return Nvml([gpu])


def workstation(**options: Any) -> Nvml:
    """One RTX 4090."""
    return Nvml([consumer()], {"nvmlSystemGetProcessName": NAMES.get}, **options)


def wsl() -> Nvml:
    """The same below Windows: most questions are refused, memory of processes is not told."""
    gpu = consumer()
    for refused in (
        "nvmlDeviceGetMemoryAffinity",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetPowerManagementDefaultLimit",
        "nvmlDeviceGetGraphicsRunningProcesses",
    ):
        del gpu[refused]
    gpu["nvmlDeviceGetComputeRunningProcesses"] = [process(77, None)]
    return Nvml([gpu], {"nvmlSystemGetProcessName": RefusalError(6, "Not Found")})
