#!/usr/bin/env bash
# GPU tests and GPU benchmarks on one CUDA machine, within 10 minutes; figures as JSON.
# Needs torch with CUDA, numpy and pillow there; no network. Usage: benchmarks/gpu.sh [folder]
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-${OUT:-benchmarks/results}}
python=${PYTHON:-python3}
mkdir -p "$out"
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"

"$python" - <<'PY' || exit 1
import sys, torch
sys.exit(0 if torch.cuda.is_available() else "no CUDA device here")
PY

timeout 240 "$python" -m pytest tests -m gpu -p no:cacheprovider -q --continue-on-collection-errors --override-ini addopts=--import-mode=importlib \
  2>&1 | tee "$out/gpu-tests.txt"
tests=${PIPESTATUS[0]}

status=0
left=$((585 - SECONDS))
timeout "$left" "$python" benchmarks/gpu.py --out "$out" --seconds "$((left - 10))" || status=$?
exit $((tests ? tests : status))
