#!/usr/bin/env bash
# GPU tests and GPU figures on a machine with one CUDA device, in calls of under ten minutes:
#   benchmarks/gpu.sh tests; benchmarks/gpu.sh rates; benchmarks/gpu.sh commands; benchmarks/gpu.sh race
# A call of `race` does three of its parts: call it again until all are there, or name some (--only).
# Options and parts: benchmarks/gpu.sh --help, --list. No network; needs torch with CUDA, numpy and
# pillow. Other packages that are missing there: `make gpu-wheels` beforehand, and take the folder
# .gpu-wheels along. Ctrl-C or SIGTERM ends it with what there is.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
packages=${TMPDIR:-/tmp}/flatout-gpu-packages

export PYTHONPATH="$PWD/src:$packages${PYTHONPATH:+:$PYTHONPATH}"

# Only what is missing: the machine's own versions are those that its torch was tried with.
missing='import sys; from importlib.metadata import distributions
there = {(d.name or "").lower().replace("-", "_") for d in distributions()}
print(*(w for w in sys.argv[1:] if w.split("/")[-1].split("-")[0].lower() not in there), sep="\n")'
if compgen -G '.gpu-wheels/*.whl' >/dev/null; then
  # One by one: a wheel for another Python is no reason to go without the others.
  for wheel in $("$python" -c "$missing" .gpu-wheels/*.whl); do
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --upgrade \
      --disable-pip-version-check --root-user-action ignore --target "$packages" "$wheel" ||
      echo "not installed: ${wheel##*/}" >&2
  done
fi
exec "$python" benchmarks/gpu.py "$@"
