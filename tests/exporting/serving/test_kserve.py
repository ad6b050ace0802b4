"""InferenceServices: read back as YAML, and with KServe's own classes where they are installed."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from flatout.exporting import serving
from served import linear, serving_process

yaml = pytest.importorskip("yaml")


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_the_artefacts_own_container(tmp_path: Path) -> None:
    folder = linear(tmp_path / "a", model="MobileNet_V3", threads=4)
    path = serving.kserve(folder, image="registry.example/team/net:7")[0]
    document = read(path)
    assert (document["apiVersion"], document["kind"]) == (
        "serving.kserve.io/v1beta1",
        "InferenceService",
    )
    assert document["metadata"]["name"] == "mobilenet-v3"
    (container,) = document["spec"]["predictor"]["containers"]
    assert container["image"] == "registry.example/team/net:7"
    assert container["resources"]["limits"] == {"cpu": "4", "memory": "2Gi"}
    assert container["securityContext"]["runAsNonRoot"] is True
    assert container["ports"] == [{"containerPort": 8080, "protocol": "TCP"}]
    options = [word for word in container["args"] if word not in ("--port", "8080")]
    with serving_process(folder, *options) as running:
        for probe in ("readinessProbe", "livenessProbe"):
            assert running.ask("GET", container[probe]["httpGet"]["path"])[0] == 200
        assert running.infer([[1, 2, 3]], "/v2/models/mobilenet-v3/infer")[0] == 200


def test_on_triton(tmp_path: Path) -> None:
    paths = serving.kserve(linear(tmp_path / "a"), storage="s3://bucket/models")
    assert [path.name for path in paths] == ["kserve.yaml", "kserve-triton.yaml"]
    model = read(paths[1])["spec"]["predictor"]["model"]
    assert model["modelFormat"] == {"name": "triton"}
    assert (model["protocolVersion"], model["storageUri"]) == ("v2", "s3://bucket/models")
    assert "runtimeVersion" not in model
    aoti = serving.kserve(linear(tmp_path / "b", backend="aoti"))[1]
    assert read(aoti)["spec"]["predictor"]["model"]["runtimeVersion"] == "26.05-py3"


def test_what_triton_lacks_has_no_service_on_it(tmp_path: Path) -> None:
    assert [path.name for path in serving.kserve(linear(tmp_path / "a", backend="tvm"))] == [
        "kserve.yaml"
    ]


def test_a_gpu_is_asked_for(tmp_path: Path) -> None:
    path = serving.kserve(linear(tmp_path / "a", backend="tensorrt", on_gpu=True))[0]
    (container,) = read(path)["spec"]["predictor"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1


@pytest.mark.parametrize("model", ["3DUNet", "__", "é", "A" * 200, 'x"\n: {}', "-a-"])
def test_every_class_has_a_name_that_kubernetes_takes(tmp_path: Path, model: str) -> None:
    for path in serving.kserve(linear(tmp_path / "a", model=model)):
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?", read(path)["metadata"]["name"])


def test_kserves_own_classes_know_every_field(tmp_path: Path) -> None:
    pytest.importorskip("kserve")
    models = importlib.import_module("kserve.models")
    kubernetes = importlib.import_module("kubernetes.client")

    def check(found: Any, kind: str, where: str) -> None:
        inner = re.fullmatch(r"(?:[Ll]ist\[|[Dd]ict\(str, |[Dd]ict\[str, )(.+?)[\])]", kind)
        if inner:
            for item in found.values() if isinstance(found, dict) else found:
                check(item, inner[1], where)
            return
        if kind in ("str", "int", "bool", "object", "dict", "ResourceQuantity"):
            assert not isinstance(found, dict | list) or kind == "object", where
            return
        known = getattr(models, kind, None) or getattr(kubernetes, kind)
        names = {name: field for field, name in known.attribute_map.items()}
        for name, value in found.items():
            assert name in names, f"{where}.{name}"
            check(value, known.openapi_types[names[name]], f"{where}.{name}")

    for path in serving.kserve(linear(tmp_path / "a", threads=2)):
        document = json.loads(json.dumps(read(path)))
        check(document, "V1beta1InferenceService", path.name)
