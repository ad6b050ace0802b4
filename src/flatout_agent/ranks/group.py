"""The ranks as a group that exchanges tensors; all ranks must make the same calls in the same
order.

torch's own process groups, made without `init_process_group`: `torch.distributed.is_initialized()`
stays False, so libraries that check it do not start to synchronise by themselves.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as typed

from flatout_agent import wire

dist: Any = typed
"""Its process groups are public in C++, and hardly typed."""
CLOSE_S = 10.0
"""How long the end of a program waits for an exchange that another rank has not joined."""

LOOPBACK = "127.0.0.1"
"""All ranks are on this machine; the loopback device also exists without a network."""
INTERFACES = "GLOO_SOCKET_IFNAME"


class RankGroup:
    """Exchanges tensors of any device among the ranks: gloo on CPUs, NCCL on CUDA devices."""

    def __init__(
        self, orders: wire.RankOrders, lost: Callable[[Exception], None] = lambda error: None
    ) -> None:
        """lost: called with the error of an exchange before it is raised; it need not return."""
        self._lost = lost
        self.rank = orders.rank
        self.size = orders.size
        self._orders = orders
        self._timeout = timedelta(seconds=orders.timeout_s)
        self._store = meeting_store(orders)
        self._process = os.getpid()
        self._groups: dict[str, Any] = {}
        self._add("gloo")

    def _add(self, name: str) -> None:
        """A group on CPUs; messages in one group do not wait for another."""
        options = dist.ProcessGroupGloo._Options()
        options._devices = gloo_devices(self._orders)
        options._timeout = self._timeout
        self._groups[name] = dist.ProcessGroupGloo(
            dist.PrefixStore(name, self._store), self.rank, self.size, options
        )

    def close(self) -> None:
        """Release the groups before Python ends.

        gloo's threads release what was exchanged last, and need Python's lock for that. If the
        interpreter has ended by then, the thread is cut off and the process aborts
        (https://github.com/pytorch/pytorch/issues/190489). A released group joins its threads.
        """
        if os.getpid() != self._process:
            return  # the threads are not in a fork, the connections are its parent's
        thread = threading.Thread(target=self._groups.clear, daemon=True)
        thread.start()
        thread.join(CLOSE_S)

    def beside(self, name: str) -> Callable[[torch.Tensor], Any]:
        """Start to make a tensor the maximum over the ranks; `finish` waits for it."""
        self._add(name)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        return lambda tensor: self._groups[name].allreduce([tensor], options)

    def finish(self, work: Any) -> None:
        """Wait for an exchange that was started."""
        self._exchange(lambda: work)

    @property
    def backend(self) -> str:
        """The backends that exchanged tensors; nccl if there were tensors on CUDA devices."""
        return "nccl" if "nccl" in self._groups else "gloo"

    def _of(self, tensor: torch.Tensor) -> Any:
        if tensor.device.type != "cuda":
            return self._groups["gloo"]
        if "nccl" not in self._groups:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = self._timeout
            self._groups["nccl"] = dist.ProcessGroupNCCL(
                dist.PrefixStore("nccl", self._store), self.rank, self.size, options
            )
        return self._groups["nccl"]

    def _exchange(self, begun: Callable[[], Any]) -> None:
        try:
            begun().wait()
        except Exception as error:
            self._lost(error)
            raise

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Make `tensor` (contiguous) the sum over the ranks, in place."""
        return self._reduce(tensor, dist.ReduceOp.SUM)

    def max_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Make `tensor` (contiguous) the maximum over the ranks, in place."""
        return self._reduce(tensor, dist.ReduceOp.MAX)

    def _reduce(self, tensor: torch.Tensor, operation: Any) -> torch.Tensor:
        options = dist.AllreduceOptions()
        options.reduceOp = operation
        self._exchange(lambda: self._of(tensor).allreduce([tensor], options))
        return tensor

    def joined(self, part: torch.Tensor, dim: int, counts: Sequence[int]) -> torch.Tensor:
        """The ranks' parts one after the other along `dim`; counts: the length of each there."""
        rows = part.movedim(dim, 0).contiguous()
        most = max(counts)
        if rows.shape[0] < most:
            padding = rows.new_empty((most - rows.shape[0], *rows.shape[1:]))
            rows = torch.cat([rows, padding])
        # As bytes, since every type of number is joined alike.
        own = rows.reshape(-1).view(torch.uint8)
        everything = own.new_empty(self.size * own.numel())
        self._exchange(lambda: self._of(own)._allgather_base(everything, own))
        whole = everything.view(part.dtype).view(self.size, most, *rows.shape[1:])
        if min(counts) == most:
            joined = whole.reshape(self.size * most, *rows.shape[1:])
        else:
            joined = torch.cat([whole[rank, :count] for rank, count in enumerate(counts)])
        return joined.movedim(0, dim).contiguous()  # laid out as the whole

    def broadcast_(self, tensor: torch.Tensor) -> None:
        """Make `tensor` (contiguous) rank 0's, in place."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        self._exchange(lambda: self._of(tensor).broadcast([tensor], options))

    def agreed(self, holds: bool) -> bool:
        """Whether something holds in all ranks."""
        fails = torch.tensor([0 if holds else 1], dtype=torch.int32)
        return not bool(self.max_(fails))

    def equal(self, *values: float) -> bool:
        """Whether all ranks have these same values; NaN equals NaN."""
        own = torch.tensor(values, dtype=torch.float64).nan_to_num(nan=1.2345e300)
        both = self.max_(torch.cat([own, -own]))
        return bool((both[: len(values)] == -both[len(values) :]).all())


def meeting_store(orders: wire.RankOrders) -> Any:
    """The store through which ranks find each other."""
    if not orders.address:
        return dist.FileStore(orders.store, orders.size) if orders.store else dist.HashStore()
    host, _, port = orders.address.rpartition(":")
    return dist.TCPStore(
        host.strip("[]"),
        int(port),
        orders.size,
        is_master=orders.rank == 0,
        timeout=timedelta(seconds=orders.timeout_s),
        wait_for_workers=False,
    )


def gloo_devices(orders: wire.RankOrders) -> list[Any]:
    """The interfaces or the address on which gloo listens: the user's, or the address that the
    others reach.
    """
    create = dist.ProcessGroupGloo.create_device
    if not orders.address:
        return [create(hostname=LOOPBACK)]
    names = [name.strip() for name in os.environ.get(INTERFACES, "").split(",")]
    if any(names):
        return [create(interface=name) for name in names if name]
    return [create(hostname=orders.host)]
