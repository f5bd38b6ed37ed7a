#!/usr/bin/env bash
# Builds the wheel into target/wheel. It contains the program, with the embedded data of the profile `tiny`, and the Python module
# that reads results. Needs maturin (`pip install maturin`). MATURIN overrides its path.
set -euo pipefail
cd "$(dirname "$0")/.."

rm -rf target/wheel
"${MATURIN:-maturin}" build --release --locked --out target/wheel
ls -l target/wheel/*.whl
