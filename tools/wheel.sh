#!/usr/bin/env bash
# Builds the wheel into target/wheel: the program, which has in it what the profile `tiny` needs in an empty folder, and the
# Python module that reads results. Needs maturin (`pip install maturin`; MATURIN names another one).
set -euo pipefail
cd "$(dirname "$0")/.."

rm -rf target/wheel
"${MATURIN:-maturin}" build --release --locked --out target/wheel
ls -l target/wheel/*.whl
