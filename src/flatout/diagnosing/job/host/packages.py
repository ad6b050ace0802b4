"""Why training loops call well-known packages, and what to do instead."""

from __future__ import annotations

import re
from dataclasses import dataclass

EVERY_50 = "if step % 50 == 0:"
ASIDE = "# or: with ThreadPoolExecutor(1) before the loop, pool.submit(work, values) in it"
LONGEST_CALL = 34
"""Characters of a call that a title names."""


@dataclass(frozen=True)
class PackageUse:
    """What a package is called for."""

    what: str
    """The beginning of a title, such as "computing metrics", or empty if unknown."""
    cure: str
    lines: tuple[str, ...]


METRICS = PackageUse(
    "computing metrics",
    "Compute metrics less often, every 50 steps or once an epoch: collect outputs with .detach() "
    "meanwhile. Or compute them on tensors (torchmetrics, or a few operators).",
    (EVERY_50, "    # metrics of what was collected"),
)
TENSOR_METRICS = PackageUse(
    "computing metrics",
    "Update the metric without its checks, which read values of each batch (torchmetrics: "
    "validate_args=False), and compute it once an epoch; or collect outputs with .detach() and "
    "update it every 50 steps with all of them.",
    ("metric = MulticlassAccuracy(classes, validate_args=False)",),
)
FITTING = PackageUse(
    "fitting an estimator",
    "Fit it less often: once an epoch or every few hundred steps, on a part of the data, from the "
    "last result on (warm start). Or compute it on tensors.",
    ("if step % 500 == 0:", "    # fit it anew"),
)
STATISTICS = PackageUse(
    "computing statistics",
    "Compute them on the tensors themselves (torch.quantile, sort, clamp, std), without the way "
    "over arrays; where they only report, every 50 steps.",
    ("# on tensors: torch.quantile(x, q), x.clamp(low, high)",),
)
SOLVING = PackageUse(
    "solving equations",
    "Solve less often, every N steps, and begin at the last solution; once before training what "
    "stays the same; all samples at once with torch.linalg, not one by one.",
    (EVERY_50, "    # solve it anew, from the last solution on"),
)
GRAPHS = PackageUse(
    "analysing graphs",
    "Do it once before training where the graph stays the same; else less often (every 50 steps "
    "or once an epoch), or on tensors of edges with torch.sparse.",
    ("# before the loop, for a graph that stays the same; else:", EVERY_50),
)
SYMBOLS = PackageUse(
    "computing with symbols",
    "Turn the expression into a function once, before the loop (sympy.lambdify), and call that on "
    "whole tensors.",
    ("f = sympy.lambdify(x, expression, torch)  # before the loop; then f(tensor)",),
)
REPORTING = PackageUse(
    "logging",
    "Log less often, every 50 steps; collect values as tensors meanwhile.",
    (EVERY_50, "    # log the mean of what was collected"),
)
LOOP_REPORTS = PackageUse(
    "logging",
    "Log less often, every 50 steps, and fewer values: of all weights or gradients one norm "
    "(torch._foreach_norm) instead of one for each; several values in one call (log_dict).",
    (EVERY_50, "    self.log_dict(values)  # with torch.stack(torch._foreach_norm(grads)).norm()"),
)
REPORTED_TENSORS = PackageUse(
    "reporting whole tensors",
    "Report them less often: every 100 steps or once an epoch, of a few tensors or samples. Each "
    "call copies the tensor, looks at its values and hands them to the writer's own thread.",
    ("if step % 100 == 0:", "    writer.add_histogram(...)  # or the picture, figure, table"),
)
TERMINAL = PackageUse(
    "drawing on the terminal",
    "Draw less often: every 50 steps, or twice a second (tqdm: mininterval=0.5; rich: "
    "refresh_per_second=2).",
    (EVERY_50, "    # the table, or the progress"),
)
DRAWING = PackageUse(
    "drawing or writing pictures",
    "Draw less often: every few hundred steps or once an epoch, of a few samples, or in a process "
    "of its own from values that were saved.",
    ("if step % 500 == 0:", "    # draw, and close the figure"),
)
TABLES = PackageUse(
    "working on tables",
    "Take what a step needs out of the table once, before training, as tensors; on whole columns "
    "instead of rows (apply, iterrows, loc). Where it only reports, every 50 steps.",
    ("values = torch.from_numpy(frame[columns].to_numpy())  # once, before the loop",),
)
TEXT = PackageUse(
    "handling text or dates",
    "Do it once before training and keep the result (tokens; dates of whole columns at once: "
    "pandas.to_datetime), or in the loader's workers (collate_fn); where it only reports, less "
    "often (every 50 steps).",
    ("# before the loop: rows = [prepare(text) for text in texts]",),
)
COMPRESSING = PackageUse(
    "compressing, encoding or hashing",
    "Do it less often (every 50 steps, or with each checkpoint), once before training, or on a "
    "part of the data; compress at a lower level (1) or with a faster codec (lz4, zstd); or do it "
    "in a thread of its own, in the background.",
    (EVERY_50, "    zlib.compress(data, 1)", ASIDE),
)
UNPACKING = PackageUse(
    "decompressing",
    "Decompress once, before training, and keep it in memory or in files without compression "
    "(numpy.memmap); or in the loader's workers.",
    ("# before the loop: data = decompress(...)",),
)
ARRAYS = PackageUse(
    "computing arrays",
    "Do it once before the loop if it gives the same each time; else with torch's operators on the "
    "tensors themselves, without the way over the host.",
    ("# np.f(tensor.numpy()) -> torch.f(tensor)",),
)
COUNTING = PackageUse(
    "computing in Python, item by item",
    "Do it on whole tensors, all elements at once: torch.sin instead of math.sin, torch.bincount, "
    "unique, sort; once before the loop if it gives the same each time; less often (every 50 "
    "steps) where it only reports.",
    ("# math.f(x) for each x -> torch.f(tensor); counts = torch.bincount(ids)",),
)
RANDOM = PackageUse(
    "drawing random values",
    "Draw all at once on tensors: torch.randint, torch.rand, torch.randperm; what is to be thrown "
    "away, by a mask of all of them.",
    ("values = torch.randint(high, (batch,))  # instead of one by one",),
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
SAMPLES = PackageUse(
    "preparing samples",
    "Do it in the loader's workers, several samples at once, once before training into tensors, or "
    "on whole batches of tensors; where it is a preview, every few hundred steps.",
    ("DataLoader(..., num_workers=2, persistent_workers=True)",),
)
GEOMETRY = PackageUse(
    "computing geometry",
    "Do it once before training and keep the result, in the loader's workers, or on tensors of all "
    "points at once (torch.cdist).",
    ("# before the loop: shapes = [prepare(item) for item in items]",),
)
SETTINGS = PackageUse(
    "reading or writing YAML or settings",
    "Do it once before training; what only reports, less often (every 50 steps), and only what is "
    "new. json is many times faster than yaml, and yaml.CSafeDumper than yaml's own Python.",
    (EVERY_50, "    # json.dumps(...), or yaml.dump(..., Dumper=yaml.CSafeDumper)"),
)
FILES = PackageUse(
    "reading, writing or serialising",
    "Read once, before training; write less often (every 50 steps, a whole state every few "
    "hundred), only what is new, several records at once, without flush and fsync; or in a thread "
    "of its own, in the background.",
    (EVERY_50, "    # write what was collected", ASIDE),
)
DATABASE = PackageUse(
    "using a database",
    "Read before training; write several rows at once, with one commit every 50 steps, or in a "
    "thread of its own; keep the connection open.",
    (EVERY_50, "    connection.executemany(statement, rows); connection.commit()"),
)
NETWORK = PackageUse(
    "talking over the network",
    "Send it from a thread of its own in the background, through a queue; or less often (every 50 "
    "steps), several values in one request, over a connection that stays open.",
    (EVERY_50, "    # send what was collected", ASIDE),
)
SYSTEM = PackageUse(
    "asking for the state of the system",
    "Ask less often (every 50 steps) or in a thread of its own, and for less: memory_info().rss "
    "costs far less than memory_full_info().",
    (EVERY_50, "    # memory, processes, temperatures", ASIDE),
)
INSPECTING = PackageUse(
    "inspecting or tracing Python",
    "Leave it out (tracemalloc.stop()), do it once, as it tells the same in each step, or every "
    "few hundred steps. sys._getframe(1) costs far less than inspect.stack(), which reads source "
    "files.",
    ("frame = sys._getframe(1)  # or pass the name",),
)
VALIDATING = PackageUse(
    "validating",
    "Validate once, when the data is read, before training; make records that are known to be good "
    "without it (pydantic: model_construct), and switch checks of types off in training.",
    ("# once, before the loop: rows = [Row.model_validate(row) for row in rows]",),
)
SIMULATING = PackageUse(
    "stepping environments",
    "Step many environments at once: in processes (gymnasium.vector.AsyncVectorEnv), or vectorise "
    "them on arrays or tensors of all states.",
    ("envs = gymnasium.vector.AsyncVectorEnv([make] * 16)",),
)
PROCESSES = PackageUse(
    "handing work to threads or processes",
    "Start them once, before the loop, and hand over larger pieces.",
    ("pool = ProcessPoolExecutor()  # once, before the loop",),
)
OTHER = PackageUse(
    "",
    "Do it less often (every 50 steps), once before the loop, or in a thread of its own.",
    (EVERY_50, ASIDE),
)
USES = {
    METRICS: "sklearn evaluate sacrebleu nltk rouge_score seqeval bert_score jiwer pycocotools "
    "lpips",
    TENSOR_METRICS: "torchmetrics torcheval",
    STATISTICS: "scipy statistics statsmodels pingouin",
    SOLVING: "cvxpy cvxopt ortools pulp pyomo highspy gurobipy casadi ecos osqp scs qpsolvers ot",
    GRAPHS: "networkx igraph graph_tool rustworkx community leidenalg",
    SYMBOLS: "sympy mpmath symengine",
    REPORTING: "logging tensorboard tensorboardX wandb mlflow neptune comet_ml clearml aim loguru "
    "structlog swanlab warnings",
    TERMINAL: "tqdm rich click colorama progressbar alive_progress blessed curses textual IPython "
    "tabulate prettytable termcolor",
    DRAWING: "matplotlib seaborn plotly bokeh imageio contourpy altair mplfinance graphviz "
    "wordcloud kaleido",
    TABLES: "pandas polars pyarrow dask modin fireducks",
    TEXT: "re regex string pprint textwrap difflib decimal fractions ast unicodedata spacy jieba "
    "rapidfuzz Levenshtein jellyfish gensim datetime strptime dateutil calendar zoneinfo pytz "
    "arrow pendulum tokenizers sentencepiece tiktoken",
    COMPRESSING: "zlib gzip bz2 lzma lz4 zstandard zstd snappy brotli blosc blosc2 zipfile tarfile "
    "compression hashlib hmac xxhash blake3 mmh3 base64 binascii struct codecs encodings uuid "
    "secrets array cryptography Crypto Cryptodome nacl jwt OpenSSL tenseal",
    ARRAYS: "numpy numba cupy jax",
    COUNTING: "collections itertools heapq bisect functools operator sortedcontainers math cmath",
    RANDOM: "random",
    COPYING: "copy copyreg dataclasses",
    SETTINGS: "yaml ruamel toml tomllib tomli tomlkit configparser omegaconf hydra",
    FILES: "os io shutil pathlib tempfile glob h5py zarr netCDF4 tables json csv xml html "
    "orjson ujson simplejson msgpack lxml bs4 openpyxl pickle dill cloudpickle joblib marshal "
    "shelve safetensors",
    DATABASE: "sqlite3 lmdb duckdb psycopg psycopg2 pymysql MySQLdb mysql sqlalchemy peewee "
    "pymongo redis asyncpg aiosqlite cassandra elasticsearch influxdb_client tinydb",
    NETWORK: "urllib http socket ssl requests urllib3 httpx httpcore aiohttp websocket websockets "
    "boto3 botocore s3fs gcsfs google grpc paramiko zmq pika kafka smtplib ftplib xmlrpc tornado",
    SAMPLES: "PIL cv2 skimage torchvision albumentations imgaug mahotas torchaudio librosa "
    "soundfile audioread pydub wave resampy soxr datasets webdataset tensorflow_datasets tfrecord "
    "litdata streaming",
    GEOMETRY: "shapely trimesh open3d pyvista vtk rtree geopandas pyproj meshio",
    SYSTEM: "psutil resource pynvml py3nvml GPUtil platform cpuinfo gpustat",
    INSPECTING: "inspect traceback linecache dis tokenize tracemalloc cProfile pstats profile "
    "pyinstrument memory_profiler objgraph pympler guppy line_profiler coverage trace bdb gc",
    VALIDATING: "pydantic pydantic_core jsonschema marshmallow cerberus voluptuous cattrs attr "
    "typeguard beartype jaxtyping pandera schema",
    SIMULATING: "gym gymnasium pettingzoo mujoco pybullet dm_control ale_py procgen stable_retro",
    PROCESSES: "multiprocessing concurrent queue subprocess ray asyncio",
}
WRITES_TENSORS = re.compile(
    r"\b(Histogram|watch|log_(histogram|image|figure)"
    r"|add_(histogram|image|figure|embedding|mesh|video|audio|pr_curve|graph))"
)
"""Calls of reporters that look at each value of a tensor."""
BY_CALL = (
    (REPORTING, WRITES_TENSORS, REPORTED_TENSORS),
    (METRICS, re.compile(r"\b(partial_)?fit(_predict|_transform)?\("), FITTING),
    (
        STATISTICS,
        re.compile(
            r"\b(minimize\w*|curve_fit|least_squares|linprog|milp|root\w*|fsolve|newton|solve\w*|"
            r"odeint|quad|linear_sum_assignment)\("
        ),
        SOLVING,
    ),
    (STATISTICS, re.compile(r"\b(KDTree|cKDTree|Delaunay|ConvexHull|Voronoi|cdist)\b"), GEOMETRY),
    (TABLES, re.compile(r"\b(to_datetime|Timestamp|date_range)\b"), TEXT),
    (COMPRESSING, re.compile(r"\b(decompress\w*|extract\w*|read\w*)\("), UNPACKING),
    (SAMPLES, re.compile(r"\b(save\w*|imwrite|imsave|imencode)\("), DRAWING),
    (ARRAYS, re.compile(r"\b(save\w*|load\w*|fromfile|tofile|genfromtxt)\("), FILES),
    (ARRAYS, re.compile(r"\b(random|rng)\."), RANDOM),
)
"""(a package's use, the calls on a line, the use that they show instead)."""
BY_PACKAGE = {name: use for use, names in USES.items() for name in names.split()}
RUNNERS = (
    "lightning pytorch_lightning lightning_fabric lightning_utilities transformers accelerate "
    "fastai ignite composer catalyst skorch trl peft deepspeed threading contextlib"
)
LOOPS = frozenset(RUNNERS.split())
"""Packages that run the loop or its model: the script cannot leave out their work."""
LOGS = re.compile(r"[\w.]*\.(log|log_\w+)\(")
"""Calls of these packages that only report."""


def use(package: str, callee: str = "") -> PackageUse:
    """What the package is called for. callee: the call on the line, writer.add_histogram(...)."""
    if logs_for_loop(package, callee):
        return LOOP_REPORTS
    known = BY_PACKAGE.get(package.lstrip("_"), OTHER)
    by_call = (called for base, rule, called in BY_CALL if known is base and rule.search(callee))
    return next(by_call, known)


def subject(package: str, callee: str, known: PackageUse | None = None) -> str:
    """The beginning of a title: "compressing in zlib.compress()", "Solver.run() of some_package".

    known: what it is called for, if known from more than the call.
    """
    what, call = (known or use(package, callee)).what, _call(callee)
    if not what:
        return f"{call} of {package}" if call else f"the package {package}"
    if not call:
        return f"{what} in {package}"
    return (
        f"{what} in {call}" if call.startswith(f"{package}.") else f"{what} in {package}, {call},"
    )


def _call(callee: str) -> str:
    """Like "zlib.compress()", or empty if the call has no name or a long one."""
    match = re.match(r"[A-Za-z_][\w.]*(?=\()", callee)
    short = match is not None and len(match[0]) <= LONGEST_CALL
    return f"{match[0]}()" if match is not None and short else ""


def reports(package: str, callee: str = "") -> bool:
    """Whether it is called only to report, and returns nothing to the training."""
    return use(package, callee) in (
        REPORTING,
        LOOP_REPORTS,
        REPORTED_TENSORS,
        TERMINAL,
        DRAWING,
    )


def runs_loop(package: str, callee: str = "") -> bool:
    """Whether it runs the training loop or the model. callee: the call on the line."""
    return package in LOOPS and not logs_for_loop(package, callee)


def logs_for_loop(package: str, callee: str) -> bool:
    """Whether it is the logging call of a package that runs the loop: self.log(...)."""
    return package in LOOPS and LOGS.match(callee) is not None
