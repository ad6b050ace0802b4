"""Model repositories: read back with Triton's own schema where its client is installed."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.exporting import artefact, triton
from flatout.nouns.errors import UserError

FILES = {
    "onnxruntime": ("model.onnx",),
    "openvino": ("model.xml", "model.bin"),
    "tensorrt": ("model.plan",),
    "aoti": ("model.pt2",),
    "torchao": ("model.pt2",),
}


def tensor(name: str, dtype: str, *shape: int | None) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": list(shape)}


def finished(folder: Path, **facts: Any) -> Path:
    """The folder as an artefact, with its manifest."""
    hashes = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }
    manifest = {
        "schema": "flatout.artefact/1",
        "model": "Linear",
        "backend": "onnxruntime",
        "precision": "exact",
        "batch_dynamic": True,
        "batch_sizes": [1, 8],
        "input_axes": [0],
        "output_axes": [0, 0],
        "batch_matters": False,
        "options": {},
        "packages": {"numpy": np.__version__},
        "measured": {
            "batches": [
                {"batch": 1, "ms": 1.0, "samples_per_s": 1000.0},
                {"batch": 8, "ms": 2.0, "samples_per_s": 4000.0},
                {"batch": 16, "ms": 8.0, "samples_per_s": 2000.0},
            ]
        },
        "files": hashes,
        **facts,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def built(folder: Path, backend: str, *more: str, **facts: Any) -> Path:
    folder.mkdir(parents=True)
    for name in ("load.py", *FILES[backend], *more):
        (folder / name).write_text(f"the bytes of {name}")
    inputs = [tensor("images", "float32", None, 3, None, None), tensor("ids", "int64", None)]
    outputs = [tensor("logits", "float32", None, 10)]
    axes = {"input_axes": [0, 0], "output_axes": [0]}
    facts = {"inputs": inputs, "outputs": outputs, **axes, "backend": backend, **facts}
    return finished(folder, **facts)


def configuration(repository: triton.Repository) -> Any:
    """As Triton reads it."""
    text_format = pytest.importorskip("google.protobuf.text_format")
    spec = importlib.util.find_spec("tritonclient")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs tritonclient, which brings the schema")
    path = Path(spec.submodule_search_locations[0], "grpc", "model_config_pb2.py")
    name = "triton_model_config"
    if name not in sys.modules:
        found = importlib.util.spec_from_file_location(name, path)
        assert found is not None and found.loader is not None
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        sys.modules[name] = module
    text = (repository.path / repository.model / "config.pbtxt").read_text()
    return text_format.Parse(text, sys.modules[name].ModelConfig())


def described(tensors: Any) -> list[tuple[str, int, list[int]]]:
    return [(item.name, item.data_type, list(item.dims)) for item in tensors]


def files(repository: triton.Repository) -> dict[str, str]:
    root = repository.path / repository.model
    paths = [path for path in root.rglob("*") if path.is_file() and path.name != "config.pbtxt"]
    return {path.relative_to(root).as_posix(): path.read_text() for path in paths}


def test_onnxruntime(tmp_path: Path) -> None:
    repository = triton.write(built(tmp_path / "a", "onnxruntime"))
    assert repository.path == tmp_path / "a" / "triton"
    assert files(repository) == {"1/model.onnx": "the bytes of model.onnx"}
    assert repository.notes == ()
    config = configuration(repository)
    assert (config.name, config.backend, config.platform) == ("Linear", "onnxruntime", "")
    assert config.max_batch_size == 16
    fp32, int64 = 11, 9
    assert described(config.input) == [("images", fp32, [3, -1, -1]), ("ids", int64, [1])]
    assert [item.HasField("reshape") for item in config.input] == [False, True]
    assert list(config.input[1].reshape.shape) == []
    assert described(config.output) == [("logits", fp32, [10])]
    assert list(config.dynamic_batching.preferred_batch_size) == [8]
    (group,) = config.instance_group
    assert group.kind == group.KIND_CPU


def test_names_are_those_of_the_model_file(tmp_path: Path) -> None:
    options = {"inputs": ["l_images_", 'odd"\\\n'], "outputs": ["output_ä"]}
    config = configuration(triton.write(built(tmp_path / "a", "onnxruntime", options=options)))
    assert [item.name for item in config.input] == options["inputs"]
    assert [item.name for item in config.output] == options["outputs"]


def test_weights_beside_the_model_stay_beside_it(tmp_path: Path) -> None:
    repository = triton.write(built(tmp_path / "a", "onnxruntime", "model.onnx.data"))
    assert sorted(files(repository)) == ["1/model.onnx/model.onnx", "1/model.onnx/model.onnx.data"]


@pytest.mark.parametrize(
    "facts", [{"batch_dynamic": False}, {"batch_matters": True}, {"input_axes": [0, None]},
              {"output_axes": [1]}]
)  # fmt: skip
def test_what_cannot_be_batched_says_all_its_dimensions(
    tmp_path: Path, facts: dict[str, Any]
) -> None:
    config = configuration(triton.write(built(tmp_path / "a", "onnxruntime", **facts)))
    assert config.max_batch_size == 0
    assert list(config.input[0].dims) == [-1, 3, -1, -1]
    assert not config.HasField("dynamic_batching")


def test_openvino_takes_any_batch_one_request_at_a_time(tmp_path: Path) -> None:
    repository = triton.write(built(tmp_path / "a", "openvino"))
    assert sorted(files(repository)) == ["1/model.bin", "1/model.xml"]
    assert "bfloat16" in repository.notes[0]
    config = configuration(repository)
    assert (config.backend, config.max_batch_size) == ("openvino", 0)
    assert list(config.input[0].dims) == [-1, 3, -1, -1]
    rounding = triton.write(built(tmp_path / "b", "openvino", precision="rounding"))
    assert rounding.notes == ()


def test_aoti_names_tensors_by_their_places(tmp_path: Path) -> None:
    repository = triton.write(
        built(tmp_path / "a", "aoti", packages={"torch": "2.13.0", "numpy": "2.4.0"})
    )
    assert files(repository) == {"1/model.pt2": "the bytes of model.pt2"}
    assert "PyTorch 2.13.0" in repository.notes[0]
    config = configuration(repository)
    assert (config.backend, config.platform) == ("pytorch", "torch_aoti")
    assert config.max_batch_size == 0
    assert [item.name for item in config.input] == ["INPUT__0", "INPUT__1"]
    assert [item.name for item in config.output] == ["OUTPUT__0"]


def test_tensorrt_is_renamed_and_on_a_gpu(tmp_path: Path) -> None:
    repository = triton.write(built(tmp_path / "a", "tensorrt", on_gpu=True))
    assert files(repository) == {"1/model.plan": "the bytes of model.plan"}
    (group,) = configuration(repository).instance_group
    assert group.kind == group.KIND_GPU


def test_a_backend_that_triton_lacks(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no backend for torchao") as caught:
        triton.write(built(tmp_path / "a", "torchao"))
    assert "--only onnxruntime" in str(caught.value.next_step)


def test_a_file_that_was_changed_is_not_published(tmp_path: Path) -> None:
    folder = built(tmp_path / "a", "onnxruntime")
    (folder / "model.onnx").write_text("other bytes")
    with pytest.raises(UserError, match="not the file that was verified"):
        triton.write(folder)
    assert not (folder / "triton").exists()


def test_it_replaces_its_own_and_nothing_else(tmp_path: Path) -> None:
    folder, out = built(tmp_path / "a", "onnxruntime"), tmp_path / "models"
    triton.write(folder, out)
    (out / "other").mkdir()
    repository = triton.write(folder, out)
    assert (out / "other").is_dir()
    (out / repository.model / "config.pbtxt").write_text("name: 'theirs'")
    with pytest.raises(UserError, match="did not write it"):
        triton.write(folder, out)


def test_an_export_may_replace_an_artefact_with_a_repository(tmp_path: Path) -> None:
    folder = built(tmp_path / "a", "onnxruntime")
    triton.write(folder)
    artefact.check_target(folder)
    (folder / "triton" / "Linear" / "2").mkdir()
    (folder / "triton" / "Linear" / "2" / "model.onnx").write_text("theirs")
    with pytest.raises(UserError, match="holds files"):
        artefact.check_target(folder)


def test_a_name_that_is_no_folder(tmp_path: Path) -> None:
    repository = triton.write(built(tmp_path / "a", "onnxruntime", model="../Net/é"))
    assert repository.model == ".._Net__"
    assert (repository.path / repository.model / "config.pbtxt").is_file()
    assert json.loads((tmp_path / "a" / "manifest.json").read_text())["serving"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": "flatout.artefact/1"}', '{"schema": "flatout.artefact/9"}']
)
def test_a_folder_that_is_none(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match="holds no exported model"):
        triton.write(tmp_path)
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(UserError, match=r"manifest\.json"):
        triton.write(tmp_path)
