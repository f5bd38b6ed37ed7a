#!/usr/bin/env bash
# Installs the wheel built by tools/wheel.sh into a new virtual environment and runs it in an empty folder, without Rust
# or a checkout: `tools/wheel_check.sh PYTHON`.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3}

wheel=(target/wheel/ghostlab-*.whl)
size=$(wc -c < "${wheel[0]}")
echo "${wheel[0]}: $size bytes"
[ "$size" -lt 60000000 ] || { echo "the wheel exceeds the limit of 60 MB"; exit 1; }

venv=$PWD/target/wheel/venv
rm -rf "$venv"
"$python" -m venv "$venv"
"$venv/bin/python" -m pip install -q "${wheel[0]}[polars]"

empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT
cd "$empty"
unset GHOSTLAB_STORE GHOSTLAB_EXPERIMENTS
# The program unpacks its embedded data and creates its store below this folder.
export XDG_DATA_HOME=$empty/data
ghostlab=$venv/bin/ghostlab
"$ghostlab" --version
# Plan all of table 2, and reproduce a small part of it.
"$ghostlab" plan table2 > plan.txt
head -3 plan.txt
grep -q "57 cells" plan.txt
"$ghostlab" reproduce table2 --set backbone=tiny-llama --set depth=4 --set recovery=none,ghosted --set include=[] \
    --set calibration.sequences=8 --set calibration.operator_sequences=8 --set 'evaluate.tasks={name: copa, limit: 10}' \
    --set name=small
"$ghostlab" score tiny-llama --perplexity "$(echo "$XDG_DATA_HOME"/ghostlab/share-*/data/tiny/corpora/wiki-test.jsonl.gz)@256" --windows 2
"$venv/bin/python" - <<'PYTHON'
import pathlib
import ghostlab

(folder,) = {path.parent for path in pathlib.Path("results").rglob("documents.parquet")}
frame, choices = ghostlab.results(folder), ghostlab.documents(folder)
print(frame, choices, sep="\n")
assert frame.height > 0 and choices["log_likelihood"].is_finite().all()
assert set(choices["cell"].unique()) and choices.height == 3 * 10 * 2
for wrong in (ghostlab.results, ghostlab.documents):
    try:
        wrong("nowhere")
        raise SystemExit("reading a missing folder must fail")
    except FileNotFoundError as error:
        print(error)
PYTHON
