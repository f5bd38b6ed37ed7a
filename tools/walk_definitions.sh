#!/usr/bin/env bash
# Counts the supported definitions of lm-evaluation-harness, and the reasons why others are not supported:
# tools/walk_definitions.sh CHECKOUT
# Commit 4e7e0d47f33bc71070c1d38394bafbb52b117163 has 13,001 tasks, of which 4,536 have no Python hooks.
set -euo pipefail
tasks=$(realpath "${1:?give the folder of a checkout or of an installed lm_eval}")
for inner in "$tasks/lm_eval/tasks" "$tasks/tasks"; do [ -d "$inner" ] && tasks=$inner && break; done
cd "$(dirname "$0")/.."
exec cargo run --release --locked -q -p ghostlab-definitions --example walk -- "$tasks"
