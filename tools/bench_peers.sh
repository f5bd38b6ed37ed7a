#!/usr/bin/env bash
# Benchmarks ghostlab and its peers together in one run. `tools/bench_peers.sh --help` lists the parts and options.
#
# Python is GHOSTLAB_PYTHON, or the environment target/python, which is created with the packages of .ci/run if necessary.
# LLAMA_CPP and IK_LLAMA_CPP give the locations of llama.cpp and ik_llama.cpp. A missing program is skipped with a message.
# Neither program is downloaded or built. Without arguments, all parts run at full size and update benches/results and
# docs/performance.md.
set -euo pipefail
cd "$(dirname "$0")/.."

# Read the list of packages from .ci/run.
eval "$(grep '^packages=(' .ci/run)"
python=${GHOSTLAB_PYTHON:-target/python/bin/python}
has() { "$python" -c "import ${packages[*]/%/,} sys"; }
if [ -z "${GHOSTLAB_PYTHON:-}" ] && ! has 2>/dev/null; then
    python3 -m venv target/python
    "$python" -m pip install -q "${packages[@]}"
fi
has || { echo "$python needs these packages: ${packages[*]}"; exit 3; }
cargo build --release --workspace --locked --bin ghostlab --example peers
cargo build --release --locked --manifest-path tools/tiny/Cargo.toml --target-dir target
if [ $# = 0 ]; then
    set -- --save
fi
exec "$python" tools/peers "$@"
