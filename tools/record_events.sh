#!/usr/bin/env bash
# Records the events of one run of table 2 (profile tiny) from nothing into tests/fixtures/events/run.jsonl:
#
#     tools/record_events.sh 'a quiet machine, two cores'
#
# The words say in which state the machine was, and stand in the first line. What says nothing of time is left out.
set -euo pipefail
cd "$(dirname "$0")/.."
machine=${1:?say in which state the machine is}
cargo build --release --locked
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
target/release/ghostlab run experiments/table2.yaml --store "$folder/store" --results "$folder/results" --events > "$folder/events"
{
    printf '{"time":"%s","event":"note","text":"%s: ghostlab run experiments/table2.yaml"}\n' "$(date -u +%FT%T.%3NZ)" "$machine"
    grep -E '"event":"(planned|started|advanced|finished|work_done|ended)"' "$folder/events"
} > tests/fixtures/events/run.jsonl
wc -lc tests/fixtures/events/run.jsonl
