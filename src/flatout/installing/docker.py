"""A Dockerfile for a Target's GPU, driver and Python."""

from __future__ import annotations

from dataclasses import replace

from flatout.installing import pytorch, shell
from flatout.installing.choice import Choice
from flatout.installing.target import Target

SHM_SIZE = "8gb"
STACK_BYTES = 64 * 2**20
WHY_SLIM = (
    "PyTorch's wheels bring their own GPU libraries, and the driver comes from the host: a plain "
    "Python image is enough; one with nvcc (nvidia/cuda:...-devel) is needed only to compile CUDA "
    "code of your own."
)
PACKAGES = {"xpu": ("g++", "libze1", "libze-intel-gpu1")}
HEALTH = {
    "nvidia": "nvidia-smi --query-gpu=name --format=csv,noheader",
    "amd": "test -r /dev/kfd",
    "intel": "test -d /dev/dri",
}
RUN_OPTIONS = {
    "nvidia": "--gpus all",
    "amd": "--device /dev/kfd --device /dev/dri --security-opt seccomp=unconfined "
    '--group-add video --group-add "$(getent group render | cut -d: -f3)"',
    "intel": '--device /dev/dri --group-add "$(getent group render | cut -d: -f3)"',
}


def file(target: Target, mirror: str | None = None) -> tuple[str, Choice]:
    """The Dockerfile for a container on the Target, and the choice that it installs.

    Raises UserError if no build fits.
    """
    apple = target.vendor == "apple"  # containers on macOS cannot use a GPU
    container = replace(  # Debian with Python, on the host's GPU and driver
        target,
        system="Linux",
        wsl=target.wsl or target.system == "Windows",  # it uses the driver of Windows
        distribution="debian",
        distribution_like=(),
        distribution_version=None,
        libc=None,
        free_threaded=False,
        executable="python",
        manager="pip",
        virtual_environment=None,
        container=True,
        root=True,
        user_has_torch=None,
        vendor=None if apple else target.vendor,
        gpu=None if apple else target.gpu,
    )
    python = container.python or pytorch.python_for(pytorch.choose(container))
    container = replace(container, python=".".join(python.split(".")[:2]))
    choice = pytorch.choose(container)
    return _dockerfile(container, choice, mirror), choice


def _dockerfile(container: Target, choice: Choice, mirror: str | None) -> str:
    vendor = choice.vendor
    *install, _ = pytorch.commands(container, mirror)
    image = f"python:{container.python}-slim" + ("-trixie" if vendor == "intel" else "")
    nvidia = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"]
    variables = ["PYTHONUNBUFFERED=1", *(nvidia if vendor == "nvidia" else ())]
    packages = " ".join(PACKAGES.get(choice.build, ("g++",)))
    health = HEALTH.get(vendor or "")
    why = [*choice.why, WHY_SLIM]
    if choice.driver_needed:
        needs = f"The host needs driver {choice.driver_needed} or newer: flatout env install."
        why.insert(-1, needs)
    sizes = f"--shm-size {SHM_SIZE} --ulimit memlock=-1 --ulimit stack={STACK_BYTES}"
    options = f'{RUN_OPTIONS.get(vendor or "", "")} {sizes} -v "$PWD:/work"'.strip()
    lines = [
        *(shell.why(reason) for reason in why),
        shell.remark("build: docker build -t training ."),
        shell.remark(f"run: docker run --rm {options} training python train.py"),
        f"FROM {image}",
        "",
        "ENV " + " ".join(variables),
        shell.remark("a C++ compiler: torch.compile needs one"),
        "RUN apt-get update \\",
        f"    && apt-get install -y --no-install-recommends {packages} \\",
        "    && rm -rf /var/lib/apt/lists/*",
        *(f"RUN {line.replace('pip install', 'pip install --no-cache-dir')}" for line in install),
        "",
        shell.remark("not root; the same number as yours, so that files in /work stay yours"),
        "ARG UID=1000",
        "RUN useradd --create-home --uid ${UID} user",
        "USER user",
        "WORKDIR /work",
        *([f"HEALTHCHECK --interval=60s --timeout=20s CMD {health}"] if health else ()),
        f'CMD ["python", "-c", "{pytorch.check_code(container, choice)}"]',
    ]
    return "\n".join(lines) + "\n"
