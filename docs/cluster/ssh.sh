#!/bin/bash
# A static cluster of machines that are reached by SSH: starts Ray on each, tunes, and stops Ray again.
#   ./ssh.sh head-machine worker-1 worker-2 …
# Each machine has the same virtual environment at $VENV, and nothing else to do meanwhile.
set -euo pipefail
VENV=${VENV:-'~/autotune/.venv'}
: "${AUTOTUNE_DB:?set it to the database, such as postgresql://me@server/tuning}"
head=$1
here=$(dirname "$0")

on() {  # machine, command: with the settings of ray-environment.sh
    { cat "$here/ray-environment.sh"; echo "$2"; } | ssh "$1" bash -s
}

stop() { for machine in "$@"; do on "$machine" "$VENV/bin/ray stop --force" || true; done; }
trap 'stop "$@"' EXIT

on "$head" "$VENV/bin/ray start --head --port 6379 --include-dashboard false"
for machine in "${@:2}"; do
    on "$machine" "$VENV/bin/ray start --address $head:6379"
done
on "$head" "AUTOTUNE_DB='$AUTOTUNE_DB' $VENV/bin/autotune sweep --cluster $head:6379 --suite bert-base --suite resnet50"
