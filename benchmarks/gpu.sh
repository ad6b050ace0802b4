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

# Only the modules that have GPU tests: others need packages that such a machine may lack. SIGINT,
# so that pytest still tells its failures; a compiler's warnings are no failures here.
mapfile -t modules < <(grep -rlE 'mark\.gpu\b' tests --include='test_*.py')
timeout -s INT -k 20 240 "$python" -m pytest "${modules[@]}" -m gpu -p no:cacheprovider -q \
  --continue-on-collection-errors --override-ini addopts=--import-mode=importlib \
  --override-ini filterwarnings=default 2>&1 | tee "$out/gpu-tests.txt"
tests=${PIPESTATUS[0]}

status=0
left=$((585 - SECONDS))
timeout "$left" "$python" benchmarks/gpu.py --out "$out" --seconds "$((left - 10))" || status=$?
exit $((tests ? tests : status))
