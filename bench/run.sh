#!/usr/bin/env bash
# Speed of crunode and of devinterp on the same cases, interleaved, on one thread.
#   bench/run.sh                    everything; the record goes to validation/speed_cpu.json
#   MODELS="tiny" CHAINS="8" bench/run.sh
#   ROUNDS=1 REPEATS=3              rounds over all cases, repeats in each round
#   SIDES="peer crunode"            which sides to measure
set -euo pipefail
cd "$(dirname "$0")/.."

MODELS=${MODELS:-tiny mlp quadratic}
CHAINS=${CHAINS:-8 32}
ROUNDS=${ROUNDS:-2}
REPEATS=${REPEATS:-3}
SIDES=${SIDES:-peer crunode}
PYTHON=${PYTHON:-python3}
WORK=build/bench
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

has() { [[ " $SIDES " == *" $1 "* ]]; }

setup_peer() {
  local want=bench/peer/requirements.txt stamp=.venv-peer/.stamp
  [[ -f $stamp ]] && cmp -s "$want" "$stamp" && return
  echo "making .venv-peer"
  [[ -x .venv-peer/bin/python ]] || "$PYTHON" -m venv .venv-peer
  .venv-peer/bin/python -m pip install -q -r "$want"
  cp "$want" "$stamp"
}

if has crunode; then
  [[ -x .venv/bin/python ]] || make setup
  if [[ ! -f bench/crunode_steps.py ]]; then
    echo "bench/crunode_steps.py is absent: the peer alone is measured"
    SIDES=${SIDES//crunode/}
  fi
fi
if has peer; then setup_peer; fi

mkdir -p "$WORK"
rm -f "$WORK/peer.jsonl" "$WORK/crunode.jsonl"

measure() { # SIDE MODEL CHAINS
  case $1 in
    peer) .venv-peer/bin/python bench/peer/devinterp_steps.py \
      --model "$2" --chains "$3" --repeats "$REPEATS" --out "$WORK/peer.jsonl" >/dev/null ;;
    crunode) .venv/bin/python bench/crunode_steps.py \
      --model "$2" --chains "$3" --repeats "$REPEATS" --out "$WORK/crunode.jsonl" >/dev/null ;;
  esac
}

for ((round = 1; round <= ROUNDS; round++)); do
  order=$SIDES # the side that goes first changes with the round
  ((round % 2)) || order=$(tr ' ' '\n' <<<"$SIDES" | tac | tr '\n' ' ')
  for model in $MODELS; do
    for chains in $CHAINS; do
      for side in $order; do
        echo "round $round: $side, $model, $chains chains"
        measure "$side" "$model" "$chains"
      done
    done
  done
done

"$PYTHON" bench/compare.py "$WORK/peer.jsonl" "$WORK/crunode.jsonl"
