#!/usr/bin/env bash
# Records the events of a fresh run of table 2 (profile `tiny`) in tests/fixtures/events/run.jsonl:
#
#     tools/record_events.sh 'a quiet machine, two cores'
#
# The argument describes the state of the machine, and is stored in the first line. Events that are irrelevant for timing are
# omitted.
set -euo pipefail
cd "$(dirname "$0")/.."
machine=${1:?describe the state of the machine}
cargo build --release --locked
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
target/release/ghostlab run experiments/table2.yaml --store "$folder/store" --results "$folder/results" --events > "$folder/events"
{
    printf '{"time":"%s","event":"note","text":"%s: ghostlab run experiments/table2.yaml"}\n' "$(date -u +%FT%T.%3NZ)" "$machine"
    grep -E '"event":"(planned|started|advanced|finished|work_done|ended)"' "$folder/events"
} > tests/fixtures/events/run.jsonl
wc -lc tests/fixtures/events/run.jsonl
