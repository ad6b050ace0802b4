"""InferenceServices of KServe: the model on Triton, and in the artefact's own container."""

from __future__ import annotations

import json
import re
from pathlib import Path

from flatout.exporting import artefact
from flatout.exporting.serving.model import ServedModel, read
from flatout.exporting.serving.triton import BACKENDS

PORT = 8080
"""Where KServe looks for a container."""
MEMORY = "2Gi"
TRITON = "26.05-py3"
"""The first one that loads packages of AOTInductor by the places of their tensors."""


def kserve(
    folder: Path, *, storage: str = "pvc://models/triton", image: str | None = None
) -> tuple[Path, ...]:
    """Write kserve.yaml, and kserve-triton.yaml where Triton can run the model; their paths.

    storage: where the cluster finds the repository that `triton` wrote. image: the name under which
    it finds what the Dockerfile built.
    """
    model = read(folder)
    name = _label(model.name)
    texts = {"kserve.yaml": _container(model, name, image or f"{name}:1")}
    if model.backend in BACKENDS:
        texts["kserve-triton.yaml"] = _triton(model, name, storage)
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8", newline="\n")
    paths = tuple(folder / file for file in texts)
    artefact.note_served(folder, paths)
    return paths


def _label(model: str) -> str:
    """The class as a name of Kubernetes: MobileNetV3 -> mobilenetv3."""
    name = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[:40].strip("-")
    return name if name[:1].isalpha() else f"model-{name}".strip("-")


def _triton(model: ServedModel, name: str, storage: str) -> str:
    version = [f"      runtimeVersion: {TRITON}"] if model.backend == "aoti" else []
    return "\n".join(
        [
            "# Put the folder that `flatout export --triton` wrote where storageUri points to.",
            *_head(name),
            "    model:",
            "      modelFormat:",
            "        name: triton",
            "      protocolVersion: v2",
            *version,
            f"      storageUri: {json.dumps(storage)}",
            *_resources(model, 6),
            "",
        ]
    )


def _container(model: ServedModel, name: str, image: str) -> str:
    probes = []
    for kind, path in (("readiness", "ready"), ("liveness", "live")):
        probes += [
            f"        {kind}Probe:",
            "          httpGet:",
            f"            path: /v2/health/{path}",
            f"            port: {PORT}",
            "          timeoutSeconds: 3",
        ]
    arguments = ["--port", str(PORT), "--name", name, "--linger-s", "5"]
    return "\n".join(
        [
            "# Build the image with the Dockerfile beside this file, and push it as named here.",
            *_head(name),
            "    containers:",
            "      - name: kserve-container",
            f"        image: {json.dumps(image)}",
            f"        args: {json.dumps(arguments)}",
            "        ports:",
            f"          - containerPort: {PORT}",
            "            protocol: TCP",
            *probes,
            *_resources(model, 8),
            "        securityContext:",
            "          runAsNonRoot: true",
            "          runAsUser: 10001",
            "          allowPrivilegeEscalation: false",
            "          capabilities:",
            "            drop:",
            "              - ALL",
            "",
        ]
    )


def _head(name: str) -> list[str]:
    return [
        "apiVersion: serving.kserve.io/v1beta1",
        "kind: InferenceService",
        "metadata:",
        f"  name: {name}",
        "spec:",
        "  predictor:",
    ]


def _resources(model: ServedModel, indent: int) -> list[str]:
    """The cores that it was measured with."""
    gpu = ["nvidia.com/gpu: 1"] if model.on_gpu else []
    amounts = [f'cpu: "{model.threads or 1}"', f"memory: {MEMORY}", *gpu]
    margin = " " * indent
    lines = [f"{margin}resources:"]
    for kind in ("requests", "limits"):
        lines += [f"{margin}  {kind}:", *(f"{margin}    {amount}" for amount in amounts)]
    return lines
