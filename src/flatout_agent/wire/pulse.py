"""Layout of the pulse: what a training process writes of each step, and anyone may read meanwhile.

One file per process, `<rank>-<pid>.ring` in the folder that the orders name: a header of
HEADER_BYTES and SLOTS slots of SLOT_BYTES that are written in turn. There is one writer. A slot
begins and ends with its sequence number (from 1), so that a reader can tell a slot that is just
being written; slot `(sequence - 1) % SLOTS` holds it. The file outlives its writer, however that
ends.

Times are those of `time.perf_counter()`, which all processes of a machine share.
Little endian; numbers that are not known are NaN, or 0 where that is no possible value.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

MAGIC = b"FLATOUT\x01"
PULSE_VERSION = 1
PULSE_BYTES = 65536
HEADER_BYTES = 1536
SLOT_BYTES = 64
SLOTS = (PULSE_BYTES - HEADER_BYTES) // SLOT_BYTES
SUFFIX = ".ring"

HEADER = struct.Struct("<8sIIIIQiiiIIIdQQ8siQ")
SLOT = struct.Struct("<QQdfffIIHHffQ")

LOSS_READ = 1
"""`loss` is that of a step since the slot before (this one's on a CPU)."""
EVALUATED = 2
"""The program evaluated its model since the step before."""
SAVED = 4
"""The program saved a checkpoint since the step before."""
COMPILED = 8
"""torch.compile compiled something in this step."""
TUNING = 16
"""flatout was trying boosts in this step."""
SKIPPED = 32
"""The gradient scaler left this update out (gradients were not finite)."""
EPOCH_BEGAN = 64
"""An epoch of the training loader began since the step before."""

ENDED = 1
"""Of the header: the interpreter has ended of itself."""


class PulseHeader(NamedTuple):
    """What a ring says once of its writer."""

    magic: bytes
    version: int
    slot_bytes: int
    slots: int
    pid: int
    start_ticks: int
    """The process's start as the system gives it (/proc/<pid>/stat, field 22); 0: not known."""
    rank: int
    local_rank: int
    world_size: int
    flags: int
    dump_signal: int
    """Signal that makes the process write its stacks to `<ring's name>.stacks`; 0: none."""
    pid_namespace: int
    """Inode of the writer's pid namespace: its pid means something only there; 0: not known."""
    began_s: float
    """When the ring was made."""
    last_sequence: int
    """Of the slot written last; a reader that finds a later slot believes the slot."""
    steps_expected: int
    """Steps of the whole run, where it is known; else 0."""
    device: bytes
    """Type of the device that trains, padded with zero bytes: cpu, cuda, xpu, mps."""
    loader_workers: int
    """Of the loader that feeds the training; -1: not known, or there is none."""
    largest_save_bytes: int
    """Of the checkpoints written with torch.save; 0: none was."""


class PulseSlot(NamedTuple):
    """One step."""

    sequence: int
    step: int
    """Number of the step, from 1."""
    time_s: float
    """When it ended."""
    duration_s: float
    """Since the step before ended."""
    wait_s: float
    """Of that, waiting for the loader; NaN: not known."""
    loss: float
    samples: int
    shapes: int
    """The same number for steps whose inputs have equal shapes; 0: not known."""
    flags: int
    micro_steps: int
    loss_scale: float
    """Of the gradient scaler; NaN: there is none."""
    own_s: float
    """Of its duration, until its only backward pass began: work that waits for no other rank.

    NaN where there is one rank, or where there were several backward passes.
    """
    sequence_again: int
