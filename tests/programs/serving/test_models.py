"""Real models behind the server: an exported program, ONNX Runtime, and Triton's own client."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forked
from flatout.exporting import artefact
from served import WEIGHTS, finished, linear, serving_process, tensor

SCRIPT = """
import sys
import torch
from torch import nn

folder, backend = sys.argv[1:]
torch.manual_seed(0)
class Flat(nn.Sequential):
    def forward(self, images):
        return (super().forward(images),)
net = Flat(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).eval()
images = torch.randn(6, 3, 8, 8)
batch = torch.export.Dim("batch")
program = torch.export.export(net, (images[:4],), dynamic_shapes=({0: batch},))
if backend == "onnxruntime":
    exported = torch.onnx.export(
        program, dynamo=True, verbose=False, input_names=["images"], output_names=["logits"]
    )
    exported.save(folder + "/model.onnx")
else:
    torch.export.save(program, folder + "/model.pt2")
with torch.no_grad():
    import numpy
    numpy.savez(folder + "/../calls.npz", images=images.numpy(), logits=net(images)[0].numpy())
"""


def exported(folder: Path, backend: str) -> tuple[Path, Any]:
    folder.mkdir(parents=True)
    (folder.parent / "export.py").write_text(SCRIPT)
    program = forked.start(["export.py", str(folder), backend], folder.parent, os.environ)
    _, err = program.communicate(timeout=240)
    assert program.returncode == 0, err
    (folder / "load.py").write_text(artefact.program(backend))
    finished(
        folder,
        model="Net",
        backend=backend,
        inputs=[tensor("images", "float32", None, 3, 8, 8)],
        outputs=[tensor("logits", "float32", None, 5)],
        input_axes=[0],
        output_axes=[0],
        options={"inputs": ["images"], "outputs": ["logits"]},
    )
    return folder, np.load(folder.parent / "calls.npz")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "onnxruntime"])
def test_an_exported_model(tmp_path: Path, backend: str) -> None:
    needed = {"eager": ["torch"], "onnxruntime": ["onnxruntime", "onnxscript", "onnx"]}[backend]
    if not all(importlib.util.find_spec(name) for name in needed):
        pytest.skip(f"needs {', '.join(needed)}")
    folder, calls = exported(tmp_path / "artefact", backend)
    images, logits = calls["images"], calls["logits"]
    with serving_process(folder, PYTHONPATH=":".join(filter(None, sys.path))) as running:
        for start, end in ((0, 1), (1, 3), (0, 6)):
            row = {"name": "images", "shape": [end - start, 3, 8, 8], "datatype": "FP32"}
            data = images[start:end].ravel().tolist()
            body = json.dumps({"inputs": [{**row, "data": data}]}).encode()
            code, _, text = running.ask("POST", "/v2/models/Net/infer", body)
            assert code == 200, text
            (found,) = json.loads(text)["outputs"]
            assert found["shape"] == [end - start, 5]
            np.testing.assert_allclose(
                np.array(found["data"]).reshape(-1, 5), logits[start:end], rtol=1e-4, atol=1e-5
            )
        assert running.end() == 0


def test_tritons_client_talks_to_it(tmp_path: Path) -> None:
    http = pytest.importorskip("tritonclient.http")
    folder = linear(tmp_path / "artefact")
    with serving_process(folder) as running:
        client = http.InferenceServerClient(f"localhost:{running.port}", concurrency=4)
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("Linear")
        assert client.is_model_ready("Linear", "1")
        assert not client.is_model_ready("other")
        assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
        assert client.get_model_metadata("Linear")["inputs"][0]["name"] == "x"
        rows = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
        for binary_in, binary_out in ((True, True), (False, False), (True, False), (False, True)):
            given = http.InferInput("x", [4, 3], "FP32")
            given.set_data_from_numpy(rows, binary_data=binary_in)
            asked = [http.InferRequestedOutput("y", binary_data=binary_out)]
            found = client.infer("Linear", [given], outputs=asked, request_id="17")
            assert found.get_response()["id"] == "17"
            np.testing.assert_allclose(found.as_numpy("y"), rows @ WEIGHTS, rtol=1e-5, atol=1e-6)
        every = client.infer("Linear", [given])  # its default: all outputs, binary
        assert every.as_numpy("rows").tolist() == [4] * 4
        waiting = [client.async_infer("Linear", [given]) for _ in range(8)]
        assert all(np.allclose(item.get_result().as_numpy("y"), rows @ WEIGHTS, atol=1e-5)
                   for item in waiting)  # fmt: skip
        wrong = http.InferInput("x", [4, 2], "FP32")
        wrong.set_data_from_numpy(rows[:, :2].copy())
        utils = pytest.importorskip("tritonclient.utils")
        with pytest.raises(utils.InferenceServerException, match=r"shape \[4, 2\]"):
            client.infer("Linear", [wrong])
        client.close()
