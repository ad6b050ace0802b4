"""One of the benchmark's models through Olive: exporter, graph passes, tuned session settings.

Runs in a Python that has olive-ai: `python olive_build.py MODEL CAPTURE FOLDER`. Writes
`model.onnx` and `session.json`, the settings that Olive found the fastest, into the folder.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from pathlib import Path
from typing import Any

import export_models
import torch

MODEL, CAPTURE, OUT = sys.argv[1], Path(sys.argv[2]).resolve(), Path(sys.argv[3]).resolve()
FACTS = json.loads((CAPTURE / "capture.json").read_text(encoding="utf-8"))
NAMES = list(inspect.signature(export_models.make(MODEL)[0].forward).parameters)
"""Olive calls the model with names."""
CALL = torch.load(CAPTURE / "samples.pt", weights_only=True)["inputs"][0]


TRANSFORMERS = {"bert": "bert", "gpt_prefill": "gpt2", "vit_tiny": "vit"}
"""Model -> what Olive calls its type."""


def load_model(_: Any = None) -> Any:
    """As Olive calls it."""
    return export_models.make(MODEL)[0]


def dummy_inputs(_: Any = None) -> dict[str, Any]:
    """One row: latency at batch 1 is what is compared."""
    return {name: tensor[:1] for name, tensor in zip(NAMES, CALL, strict=True)}


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Single rows of the captured inputs, which Olive times."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return {name: tensor[index] for name, tensor in zip(NAMES, CALL, strict=True)}, 0


def main() -> None:
    import onnx
    from olive.data.registry import Registry
    from olive.workflows import run

    Registry.register_dataset("captured_rows")(lambda **_: Rows())
    OUT.mkdir(parents=True, exist_ok=True)
    shapes = [[1, *item["shape"][1:]] for item in FACTS["inputs"]]
    dtypes = [item["dtype"] for item in FACTS["inputs"]]
    outputs = [item["name"] for item in FACTS["outputs"]]
    data = {
        "name": "rows",
        "type": "DataContainer",
        "load_dataset_config": {"type": "captured_rows"},
        "pre_process_data_config": {"type": "skip_pre_process"},
        "post_process_data_config": {"type": "skip_post_process"},
        "dataloader_config": {"type": "default_dataloader", "batch_size": 1},
    }
    transformer = {}
    if MODEL in TRANSFORMERS:
        fused = {"model_type": TRANSFORMERS[MODEL], "opt_level": 1, "only_onnxruntime": False}
        transformer = {"transformer": {"type": "OrtTransformersOptimization", **fused}}
    result = run(
        {
            "input_model": {
                "type": "PyTorchModel",
                "model_loader": load_model,
                "dummy_inputs_func": dummy_inputs,
                "io_config": {
                    "input_names": NAMES,
                    "input_shapes": shapes,
                    "input_types": dtypes,
                    "output_names": outputs,
                },
            },
            "data_configs": [data],
            "systems": {
                "here": {
                    "type": "LocalSystem",
                    "accelerators": [
                        {"device": "cpu", "execution_providers": ["CPUExecutionProvider"]}
                    ],
                }
            },
            "target": "here",
            "passes": {
                "conversion": {"type": "OnnxConversion", "use_dynamo_exporter": True},
                "peephole": {"type": "OnnxPeepholeOptimizer"},
                **transformer,
                "session": {
                    "type": "OrtSessionParamsTuning",
                    "data_config": "rows",
                    "cpu_cores": os.cpu_count(),
                },
            },
            "output_dir": str(OUT / "olive"),
            "cache_dir": str(OUT / "cache"),
            "log_severity_level": 2,
        }
    )
    best = result.get_best_candidate()
    if best is None:
        sys.exit("Olive has made no model")
    onnx.save(onnx.load(str(best.model_path)), str(OUT / "model.onnx"))
    settings = best.model_config["inference_settings"]["session_options"]
    (OUT / "session.json").write_text(json.dumps(settings), encoding="utf-8")


main()
