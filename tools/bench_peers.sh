#!/usr/bin/env bash
# ghostlab beside its peers, side by side in one run: `tools/bench_peers.sh [PART...] [--quick] …`, `--help` for the rest.
#
# Python is GHOSTLAB_PYTHON, or an environment of the build's own, which is made here with what .ci/run installs there.
# llama.cpp is looked for where LLAMA_CPP says, and ik_llama.cpp where IK_LLAMA_CPP does; either is left out, with a line that says so, where it is not. Neither is ever fetched or built here.
# Without arguments all parts run at full size, and benches/results and docs/performance.md are written.
set -euo pipefail
cd "$(dirname "$0")/.."

# The packages stand once, in .ci/run.
eval "$(grep '^packages=(' .ci/run)"
python=${GHOSTLAB_PYTHON:-target/python/bin/python}
has() { "$python" -c "import ${packages[*]/%/,} sys"; }
if [ -z "${GHOSTLAB_PYTHON:-}" ] && ! has 2>/dev/null; then
    python3 -m venv target/python
    "$python" -m pip install -q "${packages[@]}"
fi
has || { echo "$python lacks a package: needed are ${packages[*]}"; exit 3; }
cargo build --release --workspace --locked --bin ghostlab --example peers
cargo build --release --locked --manifest-path tools/tiny/Cargo.toml --target-dir target
if [ $# = 0 ]; then
    set -- --save
fi
exec "$python" tools/peers "$@"
