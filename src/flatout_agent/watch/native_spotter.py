"""Detects whether a program that trains alone can also train on several processes.

Such programs use Accelerate, Transformers' Trainer or Lightning, read the variables that torchrun
sets, or start a process group themselves. Reasons against starting such a program with several
processes are also detected here.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch

from flatout_agent import wire
from flatout_agent.attach.replacing import replaced
from flatout_agent.job import Job
from flatout_agent.ranks import frameworks
from flatout_agent.ranks.own_batches import own_loader
from flatout_agent.ranks.refusal import Refused
from flatout_agent.tell.recorder import Recorder
from flatout_agent.watch import places

CLASSES = {
    frameworks.ACCELERATE: ("Accelerator", "accelerate"),
    frameworks.TRANSFORMERS: ("Trainer", "transformers"),
    **dict.fromkeys(frameworks.LIGHTNING, ("Trainer", "lightning")),
    **dict.fromkeys(frameworks.FABRIC, ("Fabric", "fabric")),
}
"""Module -> the class whose objects reveal the framework, and the framework."""
PACKAGES = frozenset(name.partition(".")[0] for name in frameworks.MODULES)
WEIGHT = ("accelerate", "fabric", "lightning", "transformers", wire.OWN_DDP)
"""The last one seen counts, as a Trainer makes its own Accelerator."""
TORCHRUN = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID"})
"""Environment variables that number processes which train together."""
GROUPS = re.compile(r"init_process_group|init_device_mesh|DistributedDataParallel|fully_shard")
GATHERS = re.compile(r"\.gather(?:_for_metrics)?\(|\.reduce\(")
MOST_BYTES = 2**20
"""The most bytes of a source file that is searched."""
NORMALISES = (
    "it normalises over its batch, and a framework would normalise over each rank's rows alone"
)
NO_GATHER = "it evaluates without gather_for_metrics: each rank would report its own part"
OWN_PLACES = "it numbers its processes itself"


class NativeSpotter:
    """Records its findings, each time there are more."""

    def __init__(self, job: Job, recorder: Recorder) -> None:
        self._job, self._recorder = job, recorder
        self._framework = ""
        self._against = ""
        self._random = False
        self._evaluates = False
        self._batches: dict[int, None] = {}

    def install(self) -> None:
        """Start watching, right after torch has been imported."""
        watch: dict[str, Callable[[Any], None]] = {
            module: functools.partial(self._watch_class, name, framework)
            for module, (name, framework) in CLASSES.items()
        }
        watch.update(dict.fromkeys(frameworks.LIGHTNING_DATA, self._watch_lightning_data))
        watch[frameworks.TRAINING_ARGUMENTS] = self._watch_arguments
        frameworks.when_imported(
            {
                module: functools.partial(self._recorder.safely, f"ranks: {module}", call)
                for module, call in watch.items()
            }
        )
        self._watch_environment()
        self._watch_groups()
        self._job.after_step(lambda: self._recorder.safely("ranks", self._step))

    def _see(self, framework: str, against: str = "") -> None:
        known, weight = self._framework, WEIGHT.index
        if known and weight(framework) < weight(known):
            return
        if framework == known:  # a second object undoes nothing
            against = against or self._against
        if (framework, against) != (known, self._against):
            self._framework, self._against = framework, against
            self._tell()

    def _tell(self) -> None:
        batches = tuple(self._batches)
        self._recorder.write(wire.NativeSeen(self._framework, self._against, self._random, batches))

    def _watch_class(self, name: str, framework: str, module: Any) -> None:
        owner = getattr(module, name)
        original = owner.__init__

        @functools.wraps(original)
        def __init__(own: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            if "num_nodes" in kwargs:  # it would wait for the others
                kwargs["num_nodes"] = 1
            original(own, *args, **kwargs)
            self._recorder.safely("ranks", self._see, framework)
            if framework == "transformers" and getattr(own, "eval_dataset", None) is not None:
                self._recorder.safely("ranks", self._has_batch, own.args.eval_batch_size)

        replaced(owner, "__init__", __init__)
        if framework == "accelerate":
            self._watch_loaders(module)
        elif framework == "fabric":
            self._watch_fabric_loaders(owner)

    def _watch_arguments(self, module: Any) -> None:
        """Record the strategy; some, such as `fsdp`, are refused with one process."""
        owner = module.TrainingArguments
        original = owner.__post_init__

        @functools.wraps(original)
        def __post_init__(own: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            try:
                original(own, *args, **kwargs)
            except Exception:
                self._recorder.safely("ranks", self._see, "transformers")
                raise

        replaced(owner, "__post_init__", __post_init__)

    def _watch_loaders(self, module: Any) -> None:
        """Detect the things that `ranks.native` divides."""
        original = module.prepare_data_loader

        @functools.wraps(original)
        def prepare_data_loader(dataloader: Any, *args: Any, **kwargs: Any) -> Any:
            sampler = getattr(dataloader, "sampler", None)
            self._evaluates |= isinstance(sampler, torch.utils.data.SequentialSampler)
            dataset = getattr(dataloader, "dataset", None)
            if not isinstance(dataset, torch.utils.data.IterableDataset):  # rank 0 reads those
                self._recorder.safely("ranks", self._would_divide, dataloader)
            return original(dataloader, *args, **kwargs)

        replaced(module, "prepare_data_loader", prepare_data_loader)

    def _watch_fabric_loaders(self, fabric: Any) -> None:
        original = fabric.setup_dataloaders

        @functools.wraps(original)
        def setup_dataloaders(own: Any, *loaders: Any, **kwargs: Any) -> Any:
            if kwargs.get("use_distributed_sampler", True):
                for loader in loaders:
                    sampler = getattr(loader, "sampler", None)
                    if not isinstance(sampler, torch.utils.data.SequentialSampler):
                        self._recorder.safely("ranks", self._would_divide, loader)
            return original(own, *loaders, **kwargs)

        replaced(fabric, "setup_dataloaders", setup_dataloaders)

    def _watch_lightning_data(self, module: Any) -> None:
        connector = module._DataConnector
        original = connector._prepare_dataloader

        @functools.wraps(original)
        def prepared(own: Any, dataloader: Any, shuffle: bool, mode: Any) -> Any:
            if str(getattr(mode, "value", mode)) == "train":
                self._recorder.safely("ranks", self._would_divide, dataloader)
            return original(own, dataloader, shuffle, mode)

        replaced(connector, "_prepare_dataloader", prepared)

    def _would_divide(self, loader: Any) -> None:
        """Whether several ranks would each take a part of its batches."""
        if not self._framework or not isinstance(loader, torch.utils.data.DataLoader):
            return
        try:
            size = getattr(own_loader(loader, 0, 1).batch_sampler, "batch_size", None)
        except Refused as refused:
            self._see(self._framework, refused.reason)
            return
        self._has_batch(size)

    def _has_batch(self, size: Any) -> None:
        if isinstance(size, int) and size not in self._batches:
            self._batches[size] = None
            self._tell()

    def _watch_environment(self) -> None:
        kind = type(os.environ)
        original = kind.__getitem__

        def __getitem__(own: Any, key: Any) -> Any:  # noqa: N807
            if key in TORCHRUN and own is os.environ:
                self._recorder.safely("ranks", self._read, sys._getframe(1))
            return original(own, key)

        replaced(kind, "__getitem__", __getitem__)

    def _read(self, frame: FrameType | None) -> None:
        """The program's own code asks for its rank, either to print once or to train on
        its part.
        """
        while frame is not None and frame.f_code.co_filename.startswith("<frozen"):
            frame = frame.f_back
        if frame is None or not places.is_own(frame.f_code.co_filename):
            return
        if any(GROUPS.search(text) for text in _sources()):
            self._see(wire.OWN_DDP)

    def _watch_groups(self) -> None:
        dist = torch.distributed
        if not dist.is_available():
            return
        original: Callable[..., Any] = dist.init_process_group

        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            places_itself = max(kwargs.get("rank", -1), kwargs.get("world_size", -1)) >= 0
            if _by_the_program(sys._getframe(1)):
                against = OWN_PLACES if places_itself and not self._framework else ""
                self._recorder.safely("ranks", self._see, wire.OWN_DDP, against)
            return original(*args, **kwargs)

        replaced(dist, "init_process_group", init_process_group)

    def _step(self) -> None:
        """The first step has ended: the models have been seen."""
        if self._job.steps != 1 or self._framework in ("", wire.OWN_DDP):
            return
        modules = [each for model in self._job.models for each in model.modules()]
        if any(_draws(module) for module in modules):
            self._random = True
            self._tell()
        if any(_normalises(module) for module in modules):
            self._see(self._framework, NORMALISES)
        elif (
            self._framework == "accelerate"
            and self._evaluates
            and not any(GATHERS.search(text) for text in _sources())
        ):
            self._see(self._framework, NO_GATHER)


def _by_the_program(frame: FrameType | None) -> bool:
    """Whether the caller is the program's own code, not a framework that handles ranks itself."""
    while frame is not None:
        if places.is_own(frame.f_code.co_filename):
            return True
        if str(frame.f_globals.get("__name__")).partition(".")[0] in PACKAGES:
            return False
        frame = frame.f_back
    return False


def _normalises(module: torch.nn.Module) -> bool:
    batch_norm = torch.nn.modules.batchnorm
    if isinstance(module, torch.nn.SyncBatchNorm):
        return False
    return isinstance(module, batch_norm._BatchNorm) and module.training


def _draws(module: torch.nn.Module) -> bool:
    """Whether it is a dropout of some kind; attention modules name theirs `attention_dropout`."""
    own = getattr(module, "p", 0.0) if "rop" in type(module).__name__ else 0.0
    shares = (own, getattr(module, "attention_dropout", 0.0), getattr(module, "drop_prob", 0.0))
    return module.training and any(isinstance(each, float) and each > 0 for each in shares)


def _sources() -> Iterator[str]:
    """The text of the program's own modules so far."""
    for path in places.own_files():
        if path.endswith(".py"):
            try:
                with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                    yield file.read(MOST_BYTES)
            except OSError:
                continue
