#!/usr/bin/env bash
# A device beside this machine's processor: whether both give the same numbers, and how fast each is. For an NVIDIA GPU after
# `tools/cuda_build.sh`; unattended. Its parts are cut off so that all end within eight minutes; those of transformers are not.
#
#   tools/gpu_bench.sh                                  # parity, rates, tasks, generation, latency, little memory, into gpu.json
#   tools/gpu_bench.sh --device cpu --quick --to x.json # candle on the CPU at small sizes: to see that all runs
#   tools/gpu_bench.sh parity memory                    # some parts; --help for the rest
#
# GHOSTLAB names the program (target/cuda/release/ghostlab). With torch and transformers in GHOSTLAB_PYTHON
# (python3) these run beside it; ghostlab-tiny beside the program makes wide layers.
set -euo pipefail
cd "$(dirname "$0")/.."

export GHOSTLAB=${GHOSTLAB:-target/cuda/release/ghostlab}
[[ -x $GHOSTLAB ]] || { echo "$GHOSTLAB is not there: tools/cuda_build.sh builds it, or GHOSTLAB names another"; exit 3; }
exec "${GHOSTLAB_PYTHON:-python3}" tools/gpu_bench.py "$@"
