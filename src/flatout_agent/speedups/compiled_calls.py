"""The layer around a root model's call that runs it compiled, whole or block by block.

It acts only between `put_on` and its undo. Compiled code outlasts the undo, for another turn, as
long as somebody holds the `CompiledCalls`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flatout_agent.attach.chain import Depth, Layer
from flatout_agent.boost import Applied
from flatout_agent.speedups import compiled_blocks, nests
from flatout_agent.speedups.compiling import Attempts, Code, run_module
from flatout_agent.speedups.graphs import kept_gradients

if TYPE_CHECKING:
    import torch

    from flatout_agent.job import Job

SEVERAL = "several models train, and a CUDA graph of one frees the gradients of the others"


class CompiledCalls(Attempts):
    """The compiled code of one root model, and its outcome. It keeps no model alive.

    blocks: groups of blocks to compile, one code for each group; if empty, the model as a whole.
    """

    def __init__(
        self, job: Job, mode: str, device: str, blocks: list[list[torch.nn.Module]]
    ) -> None:
        super().__init__()
        self.job = job
        self.codes = [Code(run_module, mode, device) for _ in range(max(1, len(blocks)))]
        self.graphs = any(code.graphs for code in self.codes)
        self.what = "".join(f"{len(group)} x {type(group[0]).__name__}, " for group in blocks)
        """The kinds of blocks, for the report."""
        self.step_begins = False
        self._places: dict[int, int] = {}
        """The address of a weight's gradient, by the weight's id, since it left the graphs'
        memory."""
        self.refused = ""
        """Why it is no longer compiled, although the compiler did not fail."""

    def put_on(self, model: torch.nn.Module, blocks: list[list[torch.nn.Module]]) -> Applied:
        """Compile this model's training calls, or those of its blocks."""
        self.listen()
        undos = [self.close]
        if blocks:
            undos.append(compiled_blocks.put_on(self, blocks, self.codes))
        layer = self._around_blocks if blocks else self._whole
        undos.append(self.job.wrap_call(model, Depth.COMPILE, layer(weakref.ref(model))))
        if self.graphs:
            undos.append(self.job.after_step(self._step_ended))

        def undo() -> None:
            for take_off in reversed(undos):
                take_off()

        return Applied(undo, self.engaged)

    def _step_ended(self) -> None:
        """The next call begins a new step."""
        self.step_begins = True

    def _around_blocks(self, model: weakref.ref[torch.nn.Module]) -> Layer:
        """Settings for all blocks are made once; the rest of the model runs as written."""

        def layer(call: Callable[..., Any]) -> Callable[..., Any]:
            def call_with_blocks(*args: Any, **kwargs: Any) -> Any:
                if self.given_up or not _trains(model):
                    return call(*args, **kwargs)
                if not _ask_for_gradients(args, kwargs):
                    return self.run(call, *args, **kwargs)
                self.as_written = True
                try:
                    return call(*args, **kwargs)
                finally:
                    self.as_written = False

            return call_with_blocks

        return layer

    def _whole(self, model: weakref.ref[torch.nn.Module]) -> Layer:
        def layer(call: Callable[..., Any]) -> Callable[..., Any]:
            def compiled_call(*args: Any, **kwargs: Any) -> Any:
                if self.graphs and len(self.job.models) > 1:  # another one was seen since
                    self.given_up, self.refused = True, SEVERAL
                if self.given_up or not _trains(model) or _ask_for_gradients(args, kwargs):
                    return call(*args, **kwargs)
                try:
                    return self._run_whole(model(), args, kwargs)
                except self.errors as error:
                    # As errors are suppressed, only unrecoverable ones arrive here.
                    self.give_up(error)
                    return call(*args, **kwargs)

            return compiled_call

        return layer

    def _run_whole(self, model: Any, args: Any, kwargs: Any) -> Any:
        import torch

        if self.graphs:
            self._keep_gradients(model)
        if self.step_begins:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
            self.step_begins = False
        output = self.run(self.codes[0], model, *args, **kwargs)
        return nests.change(output, torch.clone) if self.graphs else output

    def _keep_gradients(self, model: torch.nn.Module) -> None:
        """Move gradients in `.grad` out of the graphs' memory, which is about to be reused.

        A backward pass leaves its own result in an empty `.grad`, and adds to an existing one, so a
        gradient that was copied once stays out.
        """
        import torch

        found = [(id(p), p.grad) for p in model.parameters() if p.grad is not None]
        dense = [(key, gradient) for key, gradient in found if gradient.layout is torch.strided]
        kept_gradients.move_out(
            [gradient for key, gradient in dense if gradient.data_ptr() != self._places.get(key)]
        )
        self._places = {key: gradient.data_ptr() for key, gradient in dense}

    def engaged(self) -> tuple[bool, str] | None:
        """For `Applied.engaged`."""
        if self.given_up:
            return False, self.refused or f"the compiler failed: {self.failed}"
        if not self.calls:
            return None
        if self.limit:
            varies = "recompiled until torch's limit, then ran as written: inputs vary too much"
            return False, varies
        if not self.graphs_made:
            reason = f"the compiler failed: {self.failed}" if self.failed else ""
            return False, reason or "no graph was compiled"
        return True, self.what + self.summary()


def _trains(model: weakref.ref[torch.nn.Module]) -> bool:
    import torch

    found = model()
    return found is not None and found.training and torch.is_grad_enabled()


def _ask_for_gradients(args: Any, kwargs: Any) -> bool:
    """Whether inputs are leaves with a gradient, as for a gradient penalty or a derivative by the
    inputs. The gradient of that gradient may be wanted, and compiled code has none.
    """
    import torch

    return any(
        tensor.requires_grad and tensor.is_leaf and not isinstance(tensor, torch.nn.Parameter)
        for tensor in nests.tensors((args, kwargs))
    )
