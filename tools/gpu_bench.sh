#!/usr/bin/env bash
# Compares the results and the speed of a device with those of this machine's CPU. For NVIDIA GPUs, run
# `tools/cuda_build.sh` first. A time limit stops each part, so that all parts finish within eight minutes, except those
# that use transformers.
#
#   tools/gpu_bench.sh                                  # parity, rates, tasks, generation, latency, little memory, into gpu.json
#   tools/gpu_bench.sh --device cpu --quick --to x.json # candle on the CPU at small sizes, as a smoke test
#   tools/gpu_bench.sh parity memory                    # some parts; see --help
#
# GHOSTLAB is the path of the program (default: target/cuda/release/ghostlab). If GHOSTLAB_PYTHON (default: python3) has torch
# and transformers, they are benchmarked too. Wide layers need ghostlab-tiny in the program's folder.
set -euo pipefail
cd "$(dirname "$0")/.."

export GHOSTLAB=${GHOSTLAB:-target/cuda/release/ghostlab}
[[ -x $GHOSTLAB ]] || { echo "$GHOSTLAB does not exist: run tools/cuda_build.sh, or set GHOSTLAB to the program"; exit 3; }
exec "${GHOSTLAB_PYTHON:-python3}" tools/gpu_bench.py "$@"
