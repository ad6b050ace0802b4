"""What well-known packages are called for in a training loop, and what to do instead."""

from __future__ import annotations

import re
from dataclasses import dataclass

EVERY_50 = "if step % 50 == 0:"


@dataclass(frozen=True)
class PackageUse:
    """What a package is called for."""

    what: str
    """Begins a title: "computing metrics"."""
    cure: str
    lines: tuple[str, ...]


METRICS = PackageUse(
    "computing metrics",
    "Compute metrics less often, every 50 steps or once an epoch: collect outputs with .detach() "
    "meanwhile. Or compute them on tensors (torchmetrics, or a few operators).",
    (EVERY_50, "    # metrics of what was collected"),
)
REPORTING = PackageUse(
    "logging",
    "Log less often, every 50 steps; collect values as tensors meanwhile.",
    (EVERY_50, "    # log the mean of what was collected"),
)
HISTOGRAMS = PackageUse(
    "writing histograms",
    "Write them less often: every 100 steps or once an epoch, of a few tensors. Each call copies "
    "the tensor, counts its values and hands them to the writer's own thread.",
    ("if step % 100 == 0:", "    writer.add_histogram(...)"),
)
REPORTED_TENSORS = PackageUse(
    "reporting whole tensors",
    "Report them less often: every 100 steps or once an epoch, of a few samples.",
    ("if step % 100 == 0:", "    # the picture, figure or table"),
)
DRAWING = PackageUse(
    "drawing",
    "Draw once an epoch, or in a process of its own from values that were saved.",
    (EVERY_50, "    # draw, and close the figure"),
)
TEXT = PackageUse(
    "handling text or records",
    "Do it once before training, or less often (every 50 steps) where it only reports.",
    (EVERY_50, "    # format or write what was collected"),
)
TOKENS = PackageUse(
    "tokenising or hashing",
    "Do it once before training and keep the result, or in the loader's workers (collate_fn).",
    ("# before the loop: ids = [tokenise(text) for text in texts]",),
)
ARRAYS = PackageUse(
    "computing arrays",
    "Do it once before the loop if it gives the same each time; else with torch's operators on the "
    "tensors themselves, without the way over the host.",
    ("# np.f(tensor.numpy()) -> torch.f(tensor)",),
)
COPYING = PackageUse(
    "copying objects",
    "Copy only what changes, and tensors in place: torch._foreach_copy_(copies, tensors). For an "
    "average of weights use torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=...).",
    (
        "ema = torch.optim.swa_utils.AveragedModel(model, "
        "multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999))",
    ),
)
PICTURES = PackageUse(
    "decoding or transforming pictures",
    "Do it in the loader's workers, once before training, or on whole batches of tensors.",
    ("DataLoader(..., num_workers=2, persistent_workers=True)",),
)
FILES = PackageUse(
    "writing or reading files",
    "Do it less often (every 50 steps), without flush and fsync, or in a thread of its own; read "
    "once, before training.",
    (EVERY_50, "    # write what was collected"),
)
OTHER = PackageUse(
    "a call",
    "Do it less often (every 50 steps), once before the loop, or in a thread of its own.",
    (EVERY_50, "# or: with ThreadPoolExecutor(1) before the loop, pool.submit(work, values) in it"),
)
USES = {
    METRICS: "sklearn scipy torchmetrics evaluate sacrebleu nltk rouge_score seqeval statistics",
    REPORTING: "logging tensorboard tensorboardX wandb mlflow neptune comet_ml loguru tqdm rich "
    "warnings traceback",
    DRAWING: "matplotlib seaborn plotly bokeh imageio contourpy",
    TEXT: "json csv re string pprint yaml textwrap difflib decimal fractions xml html pandas "
    "pyarrow polars configparser ast tabulate",
    TOKENS: "tokenizers sentencepiece tiktoken hashlib zlib base64 hmac secrets uuid spacy",
    ARRAYS: "numpy numba cupy jax",
    COPYING: "copy pickle copyreg dill cloudpickle",
    FILES: "os io shutil pathlib tempfile zipfile tarfile gzip h5py sqlite3 lmdb glob codecs",
    PICTURES: "PIL cv2 skimage torchvision albumentations torchaudio librosa soundfile",
}
WRITES_HISTOGRAMS = re.compile(r"\b(add_histogram|log_histogram|Histogram|watch)")
WRITES_TENSORS = re.compile(
    r"\b(add_(image|figure|embedding|mesh|video|audio|pr_curve|graph)|log_(image|figure))"
)
"""Calls of reporters that look at each value of a tensor."""
BY_PACKAGE = {name: use for use, names in USES.items() for name in names.split()}
RUNNERS = (
    "lightning pytorch_lightning lightning_fabric lightning_utilities transformers accelerate "
    "fastai ignite composer catalyst skorch trl peft deepspeed threading contextlib"
)
LOOPS = frozenset(RUNNERS.split())
"""Packages that run the loop, or its model: what they do is not the script's to leave out."""


def use(package: str, callee: str = "") -> PackageUse:
    """What that package is called for. callee: what the line calls, writer.add_histogram(...)."""
    known = BY_PACKAGE.get(package, OTHER)
    if known is REPORTING and WRITES_HISTOGRAMS.search(callee):
        return HISTOGRAMS
    return REPORTED_TENSORS if known is REPORTING and WRITES_TENSORS.search(callee) else known


def reports(package: str) -> bool:
    """Whether it is called to report, and nothing of it comes back."""
    return BY_PACKAGE.get(package) in (REPORTING, DRAWING)


def runs_loop(package: str) -> bool:
    """Whether it runs the training loop or the model."""
    return package in LOOPS
