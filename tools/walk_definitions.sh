#!/usr/bin/env bash
# How many definitions of lm-evaluation-harness are taken, and why others are not: tools/walk_definitions.sh CHECKOUT
# At commit 4e7e0d47f33bc71070c1d38394bafbb52b117163 there are 13,001 tasks, 4,536 of them without hooks.
set -euo pipefail
tasks=$(realpath "${1:?the folder of a checkout, or of an installed lm_eval}")
for inner in "$tasks/lm_eval/tasks" "$tasks/tasks"; do [ -d "$inner" ] && tasks=$inner && break; done
cd "$(dirname "$0")/.."
exec cargo run --release --locked -q -p ghostlab-definitions --example walk -- "$tasks"
