#!/bin/sh
# Starts a training script as a job script does; arguments are passed on.
set -e
echo "starting"
python "$(dirname "$0")/plain.py" "$@"
echo "done"
