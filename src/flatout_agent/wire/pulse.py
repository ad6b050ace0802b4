"""Layout of the pulse, which a training process writes at each step and anyone may read meanwhile.

One file per process, `<rank>-<pid>.ring` in the folder that the orders name: a header of
HEADER_BYTES and SLOTS slots of SLOT_BYTES that are written in turn. There is one writer. A slot
begins and ends with its sequence number (from 1), so a reader can recognise a slot that is being
written; slot `(sequence - 1) % SLOTS` holds it. The file outlives its writer, however the writer
ends.

Times are those of `time.perf_counter()`, which all processes of a machine share.
Little endian; unknown numbers are NaN, or 0 if 0 is no possible value.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

MAGIC = b"FLATOUT\x01"
PULSE_VERSION = 2
PULSE_BYTES = 65536
HEADER_BYTES = 1536
SLOT_BYTES = 64
SLOTS = (PULSE_BYTES - HEADER_BYTES) // SLOT_BYTES
SUFFIX = ".ring"

HEADER = struct.Struct("<8sIIIIQiiIIId8siQ")
SLOT = struct.Struct("<QQdfffIIHHffQ")

LOSS_READ = 1
"""`loss` belongs to a step since the previous slot (to this step on a CPU)."""
EVALUATED = 2
"""The program evaluated its model since the previous step."""
SAVED = 4
"""The program saved a checkpoint since the previous step."""
COMPILED = 8
"""torch.compile compiled something in this step."""
TUNING = 16
"""flatout was trying boosts in this step."""
SKIPPED = 32
"""The gradient scaler skipped this update (gradients were not finite)."""
EPOCH_BEGAN = 64
"""An epoch of the training loader began since the previous step."""

ENDED = 1
"""Flag in the header: the interpreter has ended by itself."""


class PulseHeader(NamedTuple):
    """A ring's header, which describes its writer."""

    magic: bytes
    version: int
    slot_bytes: int
    slots: int
    pid: int
    start_ticks: int
    """The process's start as given by the system (/proc/<pid>/stat, field 22), or 0 if unknown."""
    rank: int
    world_size: int
    flags: int
    dump_signal: int
    """Signal that makes the process write its stacks to `<ring's name>.stacks`, or 0 if none."""
    pid_namespace: int
    """Inode of the writer's pid namespace, where alone its pid is valid, or 0 if unknown."""
    began_s: float
    """When the ring was made."""
    device: bytes
    """Type of the device that trains, padded with zero bytes: cpu, cuda, xpu, mps."""
    loader_workers: int
    """Workers of the loader that feeds the training, or -1 if unknown or there is none."""
    largest_save_bytes: int
    """Bytes of the largest checkpoint written with torch.save, or 0 if none was."""


class PulseSlot(NamedTuple):
    """One step."""

    sequence: int
    step: int
    """Number of the step, from 1."""
    time_s: float
    """When it ended."""
    duration_s: float
    """Seconds since the previous step ended."""
    wait_s: float
    """The part of these seconds spent waiting for the loader, or NaN if unknown."""
    loss: float
    samples: int
    shapes: int
    """A number that is the same for steps whose inputs have equal shapes, or 0 if unknown."""
    flags: int
    micro_steps: int
    loss_scale: float
    """Scale of the gradient scaler, or NaN if there is none."""
    own_s: float
    """The part of its duration until its only backward pass began: work that waits for no other
    rank.

    NaN if there is one rank or there were several backward passes.
    """
    sequence_again: int
