#!/usr/bin/env bash
# Builds the files of a release in target/release-files: the wheel (tested in an empty folder), an SBOM of the program
# (CycloneDX, by cargo-cyclonedx, from Cargo.lock), and checksums. Needs maturin. Installs cargo-cyclonedx if missing.
set -euo pipefail
cd "$(dirname "$0")/.."

tools/wheel.sh
tools/wheel_check.sh "${PYTHON:-python3}"

cargo cyclonedx --version >/dev/null 2>&1 || cargo install cargo-cyclonedx --version 0.5.9 --locked --root target/cargo-tools
export PATH="$PWD/target/cargo-tools/bin:$PATH"
# The SBOM lists the program and all crates compiled into it on this platform.
cargo cyclonedx --format json --spec-version 1.5 --manifest-path Cargo.toml --override-filename ghostlab.cdx

out=target/release-files
platform=$(rustc -vV | sed -n 's/^host: //p')
rm -rf "$out" && mkdir -p "$out"
cp target/wheel/*.whl "$out/"
mv ghostlab.cdx.json "$out/ghostlab-$platform.cdx.json"
# cargo-cyclonedx also writes a file per workspace member. Remove these, because the program's SBOM covers the members.
rm -f crates/*/ghostlab.cdx.json fuzz/ghostlab.cdx.json
(cd "$out" && { command -v sha256sum >/dev/null && sha256sum -- * || shasum -a 256 -- *; }) > target/SHA256SUMS && mv target/SHA256SUMS "$out/SHA256SUMS-$platform"
ls -l "$out"
