#!/usr/bin/env bash
# Builds the wheel into target/wheel: the program, what it needs to reproduce the profile `tiny` in an empty folder, and the
# Python module that reads results. Needs maturin (`pip install maturin`; MATURIN names another one).
set -euo pipefail
cd "$(dirname "$0")/.."

share=target/wheel/data/data/share/ghostlab
rm -rf target/wheel && mkdir -p "$share/data"
cp -R experiments "$share/experiments"
cp -R data/tiny "$share/data/tiny"

# What lies beside the program is not in it as well.
"${MATURIN:-maturin}" build --release --locked --no-default-features --out target/wheel
ls -l target/wheel/*.whl
