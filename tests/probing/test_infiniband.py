"""InfiniBand and RoCE ports from trees as kernels show them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given

from flatout.nouns.machine import NetworkPort
from flatout.probing import infiniband
from probing.planted import GARBAGE, plant


def port(
    state: str = "4: ACTIVE", rate: str = "400 Gb/sec (4X NDR)", layer: str = "InfiniBand"
) -> dict[str, str]:
    return {"state": f"{state}\n", "rate": f"{rate}\n", "link_layer": f"{layer}\n"}


def tree(root: Path, ports: dict[str, dict[str, str]]) -> Path:
    files = {
        f"infiniband/{name}/{file}": text
        for name, content in ports.items()
        for file, text in content.items()
    }
    return plant(root, {"net/eth0/speed": "1", **files})


def test_a_node_with_infiniband_and_roce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = {
        "mlx5_0/ports/1": port(),
        "mlx5_1/ports/1": port("1: DOWN", "40 Gb/sec (4X QDR)", "Ethernet"),
        "mlx5_2/ports/1": port("2: INIT", "2.5 Gb/sec (1X SDR)"),
    }
    monkeypatch.setattr(infiniband, "CLASSES", tree(tmp_path, ports))
    assert infiniband.network_ports() == (
        NetworkPort("mlx5_0/1", "active", 400.0, "infiniband"),
        NetworkPort("mlx5_1/1", "down", 40.0, "ethernet"),
        NetworkPort("mlx5_2/1", "init", 2.5, "infiniband"),
    )


def test_none_and_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infiniband, "CLASSES", tmp_path / "absent")
    assert infiniband.network_ports() is None
    monkeypatch.setattr(infiniband, "CLASSES", tree(tmp_path, {}))
    assert infiniband.network_ports() == ()


@given(GARBAGE, GARBAGE, GARBAGE)
def test_garbage_is_no_fact(state: bytes, rate: bytes, layer: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        content = {"state": state, "rate": rate, "link_layer": layer}
        plant(
            Path(folder),
            {f"infiniband/mlx5_0/ports/1/{name}": text for name, text in content.items()},
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(infiniband, "CLASSES", Path(folder))
            found = infiniband.network_ports()
    assert found[0].state is None or found[0].state.upper().encode() in state
    assert found[0].rate_gbit_per_s is None or b"Gb/sec" in rate
    assert found[0].link_layer is None or found[0].link_layer in layer.decode().lower()
