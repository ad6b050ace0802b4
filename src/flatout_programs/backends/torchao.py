"""Products with quantised weights, by torchao.

## What it is

Every linear layer of the program with weights in int8, int4 or float8 and, if the CPU or GPU has
products for it, activations quantised dynamically; compiled ahead of time by AOTInductor.
Convolutions stay as they are.

## When it wins

Transformers and large linear layers, where reading the weights takes the time, above all language
models with batch 1.

## What it needs

`torchao` for the build; the artefact needs torch alone. float8 needs a GPU of compute capability
8.9 or newer, int4 one of 8.0.

## What it may change

Weights are rounded to 256 (int8, float8) or 16 levels (int4).

## By hand

```python
torchao.quantization.quantize_(model, Int8DynamicActivationInt8WeightConfig())
program = torch.export.export(model, (batch,))
torch._inductor.aoti_compile_and_package(program, package_path="model.pt2")
```

## References

- https://docs.pytorch.org/ao/stable/
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flatout_programs.backends import ExportBackend, RuntimePackage, Variant

if TYPE_CHECKING:
    from pathlib import Path

    from flatout_programs.exporting.captured import Captured

BACKEND = ExportBackend(
    variants=(
        Variant("int8", "quantised", "torchao, int8"),
        Variant("int4", "quantised", "torchao, int4", device="cuda"),
        Variant("fp8", "quantised", "torchao, float8", device="cuda"),
    ),
    rank=7,
    building=(RuntimePackage("torchao", "torchao", 26),),
    loading="aoti",
)
CONFIGURATIONS = {
    "int8": "Int8DynamicActivationInt8WeightConfig",
    "int4": "Int4WeightOnlyConfig",
    "fp8": "Float8DynamicActivationFloat8WeightConfig",
}


def build(
    captured: Captured, folder: Path, variant: str, settings: dict[str, Any]
) -> dict[str, Any]:
    """Quantise the linear layers, export again, compile."""
    import torch
    import torch._inductor
    from torchao import quantization
    from torchao.utils import unwrap_tensor_subclass

    torch.set_num_threads(settings["threads"])
    module = captured.module()
    if not linear_layers(module):
        raise RuntimeError("the model has no linear layer with weights of its own")
    quantization.quantize_(module, getattr(quantization, CONFIGURATIONS[variant])())
    sample = captured.tensors(captured.typical_calls()[0])
    with torch.no_grad():
        program = torch.export.export(
            unwrap_tensor_subclass(module), sample, dynamic_shapes=captured.dynamic_shapes()
        )
        torch._inductor.aoti_compile_and_package(
            program, package_path=str(folder / "model.pt2"), inductor_configs={"freezing": True}
        )
    return {"isa": torch.backends.cpu.get_cpu_capability(), "torch": torch.__version__}


def linear_layers(module: Any) -> int:
    """Turn calls of `aten.linear` with weights of the model into layers; returns their number.

    The exported program has only operators, and torchao looks for modules.
    """
    import torch

    count = 0
    for node in list(module.graph.nodes):
        if node.op != "call_function" or node.target != torch.ops.aten.linear.default:
            continue
        weight, bias = node.args[1], node.args[2] if len(node.args) > 2 else None
        if weight.op != "get_attr" or (bias is not None and bias.op != "get_attr"):
            continue
        values = module.get_parameter(weight.target)
        layer = torch.nn.Linear(values.shape[1], values.shape[0], bias=bias is not None)
        layer.weight = torch.nn.Parameter(values.detach(), requires_grad=False)
        if bias is not None:
            held = module.get_parameter(bias.target)
            layer.bias = torch.nn.Parameter(held.detach(), requires_grad=False)
        name = f"flatout_linear_{count}"
        module.add_submodule(name, layer)
        with module.graph.inserting_before(node):
            call = module.graph.call_module(name, (node.args[0],))
        node.replace_all_uses_with(call)
        module.graph.erase_node(node)
        count += 1
    module.graph.eliminate_dead_code()
    module.recompile()
    return count
