#!/usr/bin/env bash
# Tests that tools/tiny still generates data/tiny, if either has changed since `verified.sha256` was written.
#
#   tools/tiny/check.sh            # test if something changed
#   tools/tiny/check.sh --write    # test, then record that this state is verified
set -euo pipefail
cd "$(dirname "$0")/../.."

# Hashes the generator, its output, and the packages that it is built from. Which package depends on which does not matter.
state() {
    {
        git ls-files --stage tools/tiny data/tiny | grep -v -e verified.sha256 -e check.sh -e Cargo.lock
        grep -E '^(name|version|source|checksum) = ' tools/tiny/Cargo.lock
    } | sha256sum | cut -d' ' -f1
}
if [ "${1:-}" != --write ] && [ "$(state)" = "$(cat tools/tiny/verified.sha256 2>/dev/null)" ]; then
    echo "skipped: tools/tiny and data/tiny are as verified"
    exit
fi
cargo test --release --locked --manifest-path tools/tiny/Cargo.toml
if [ "${1:-}" = --write ]; then
    state >tools/tiny/verified.sha256
else
    echo "tools/tiny or data/tiny changed: \`tools/tiny/check.sh --write\` spares the next run this test"
fi
