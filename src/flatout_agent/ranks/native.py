"""A rank of a program that knows ranks itself: Accelerate, Transformers, Lightning, its own DDP.

Such a program gets torchrun's variables and divides its own work; flatout does not cut rows. Left
alone, frameworks give each rank a whole batch, so the global batch grows. Unless that was requested
(`--scale-batch`), their loaders are divided here (`own_batches`), and the loss of a backward pass
becomes that of all ranks, for code that prints it or stops by it. A program with its own DDP is
left as it is.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from flatout_agent import wire
from flatout_agent.attach.replacing import replaced
from flatout_agent.ranks import frameworks
from flatout_agent.ranks.own_batches import own_loader
from flatout_agent.ranks.refusal import Refused, guarding
from flatout_agent.tell.recorder import Recorder

CHECK_AT = 2
"""Step after which a process group must exist."""
NO_GROUP = "the script formed no process group: each process would train alone"
UNTRIED = (
    "leave out --no-trial: the trial would have shown this; or give the script's option that"
    " starts one"
)


class NativeRuntime:
    """The state of such a rank in this process."""

    def __init__(self, orders: wire.RankOrders, recorder: Recorder) -> None:
        self.orders, self.recorder = orders, recorder
        self.guarded = guarding(recorder)
        self.divides = not orders.scale_batch and orders.native != wire.OWN_DDP
        self._steps = 0
        self._write_at = 2
        self._backend = ""

    def install(self) -> None:
        """Put everything in place, right after torch has been imported."""
        if self.orders.threads:
            torch.set_num_threads(self.orders.threads)
        patches = {
            frameworks.ACCELERATE: self._accelerate,
            **dict.fromkeys(frameworks.LIGHTNING, self._lightning),
            **dict.fromkeys(frameworks.LIGHTNING_DATA, self._lightning_data),
            **dict.fromkeys(frameworks.FABRIC, self._fabric),
        }
        # If something cannot be installed, the batches would differ: the rank then ends with the
        # reason.
        frameworks.when_imported(
            {name: functools.partial(self.guarded, patch) for name, patch in patches.items()}
        )

    def step(self) -> None:
        """A step of the job has ended. Write now and then, as a trial ends without warning."""
        self._steps += 1
        if self._steps == self._write_at:
            self._write_at *= 2
            self.recorder.write(self.seen())
        if self._steps == CHECK_AT:
            self.guarded(self._check_group)

    def _check_group(self) -> None:
        self.seen()
        if not self._backend:
            raise Refused(NO_GROUP, UNTRIED)

    def seen(self) -> wire.RanksSeen:
        """Whether the program has made a process group. backend: "" if it has not."""
        dist = torch.distributed
        made = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        if made:  # a program may end its group before it ends itself
            self._backend = str(dist.get_backend())
        own = self.orders
        return wire.RanksSeen(own.size, self._backend, steps=self._steps, native=own.native)

    def _own(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        own: DataLoader[Any] = self.guarded(own_loader, loader, self.orders.rank, self.orders.size)
        return own

    def _check_size(self, name: str, size: int) -> None:
        if size != self.orders.size:
            raise Refused(f"{name} sees {size} processes where there are {self.orders.size}")

    # Accelerate, and Transformers, which uses it --------------------------------------------------

    def _accelerate(self, module: Any) -> None:
        """`split_batches`, but in the order of one process, which Accelerate's own would change."""
        if not self.divides:
            return
        accelerator, prepare = module.Accelerator, module.prepare_data_loader
        begin, backward = accelerator.__init__, accelerator.backward

        @functools.wraps(begin)
        def __init__(own: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            begin(own, *args, **kwargs)
            self.guarded(self._check_size, "Accelerate", own.num_processes)
            own.dataloader_config.split_batches = True  # its schedulers then count as one process's

        @functools.wraps(prepare)
        def prepare_data_loader(dataloader: Any, *args: Any, **kwargs: Any) -> Any:
            bound = inspect.signature(prepare).bind(dataloader, *args, **kwargs)
            if isinstance(getattr(dataloader, "dataset", None), IterableDataset):
                return prepare(*bound.args, **bound.kwargs)  # rank 0 reads it and sends the parts
            bound.arguments["dataloader"] = self._own(dataloader)
            bound.arguments.update(num_processes=1, process_index=0, split_batches=False)
            return prepare(*bound.args, **bound.kwargs)

        @functools.wraps(backward)
        def averaged(own: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
            result = backward(own, loss, *args, **kwargs)
            self.guarded(common_loss, loss)
            return result

        replaced(accelerator, "__init__", __init__)
        replaced(accelerator, "backward", averaged)
        replaced(module, "prepare_data_loader", prepare_data_loader)

    # Lightning ------------------------------------------------------------------------------------

    def _lightning(self, module: Any) -> None:
        """A trainer for one device becomes one for the ranks of all machines."""
        begin = module.Trainer.__init__
        names = list(inspect.signature(begin).parameters)[1:]

        @functools.wraps(begin)
        def __init__(own: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            kwargs.update(zip(names, args, strict=False), **self._devices())
            if self.divides:
                kwargs["use_distributed_sampler"] = False
            begin(own, **kwargs)
            self.guarded(self._check_size, "Lightning", own.world_size)

        replaced(module.Trainer, "__init__", __init__)

    def _lightning_data(self, module: Any) -> None:
        """Divide the training data; every rank evaluates on all data, exactly."""
        if not self.divides:
            return
        connector = module._DataConnector
        prepare = connector._prepare_dataloader

        @functools.wraps(prepare)
        def prepared(own: Any, dataloader: Any, shuffle: bool, mode: Any) -> Any:
            ready = prepare(own, dataloader, shuffle, mode)
            trains = str(getattr(mode, "value", mode)) == "train"
            return self._own(ready) if trains and isinstance(ready, DataLoader) else ready

        replaced(connector, "_prepare_dataloader", prepared)

    def _fabric(self, module: Any) -> None:
        """An unshuffled loader counts as one for evaluation and stays whole."""
        fabric = module.Fabric
        begin, setup, backward = fabric.__init__, fabric.setup_dataloaders, fabric.backward

        @functools.wraps(begin)
        def __init__(own: Any, **kwargs: Any) -> None:  # noqa: N807
            begin(own, **{**kwargs, **self._devices()})
            self.guarded(self._check_size, "Fabric", own.world_size)

        @functools.wraps(setup)
        def setup_dataloaders(own: Any, *loaders: Any, **kwargs: Any) -> Any:
            if not self.divides or not kwargs.get("use_distributed_sampler", True):
                return setup(own, *loaders, **kwargs)
            kwargs["use_distributed_sampler"] = False
            parts = [each if _in_order(each) else self._own(each) for each in loaders]
            return setup(own, *parts, **kwargs)

        @functools.wraps(backward)
        def averaged(own: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
            result = backward(own, tensor, *args, **kwargs)
            if self.divides:
                self.guarded(common_loss, tensor)
            return result

        replaced(fabric, "__init__", __init__)
        replaced(fabric, "setup_dataloaders", setup_dataloaders)
        replaced(fabric, "backward", averaged)

    def _devices(self) -> dict[str, int]:
        own = self.orders
        return {"devices": own.machine_size or own.size, "num_nodes": own.machines}


def _in_order(loader: Any) -> bool:
    return isinstance(getattr(loader, "sampler", None), SequentialSampler)


@torch.no_grad()
def common_loss(loss: Any) -> None:
    """Make the loss of a backward pass the mean over all ranks, which have equally many rows each.

    This uses the program's own group, where all ranks arrive in the same order: after the
    gradients.
    """
    dist = torch.distributed
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not dist.is_initialized():
        return
    mean = loss.detach().reshape(1).clone()
    dist.all_reduce(mean)
    loss.data.copy_((mean / dist.get_world_size()).reshape(loss.shape))
