#!/usr/bin/env bash
# Creates and registers a method, metric or stage from a template: `tools/new.sh recovery my-method`, `tools/new.sh stage my-object`.
set -euo pipefail
cd "$(dirname "$0")/.."

kind=${1:-} name=${2:-}
folder=crates/core/src/$kind template=crates/core/templates/$kind.rs list=ENTRIES
[ "$kind" = stage ] && folder=src/pipeline/stage template=src/pipeline/stage/template.rs list=STAGES
[[ $kind =~ ^(recovery|criterion|metric|stage)$ && $name =~ ^[a-z][a-z0-9]*(-[a-z0-9]+)*$ ]] || {
    echo "usage: tools/new.sh recovery|criterion|metric|stage NAME, where NAME consists of lowercase letters, digits and dashes" >&2
    exit 2
}
module=${name//-/_}
file=$folder/$module.rs
if grep -qwE "as|async|await|break|const|continue|crate|dyn|else|enum|extern|fn|for|gen|if|impl|in|let|loop|match|mod|move|mut|pub|ref|return|self|static|struct|super|template|tests|trait|try|type|unsafe|use|where|while" <<<"$module"; then
    echo "$name is a Rust keyword; use another name" >&2
    exit 2
fi
type=$(sed -E 's/(^|-)([a-z])/\u\2/g; s/-//g' <<<"$name")
[[ ! -e $file && ! -d $folder/$module ]] && ! grep -qE "^(pub(\(crate\))? )?mod $module;" "$folder/mod.rs" || {
    echo "$file: a module with this name exists" >&2
    exit 2
}
words=$(sed 's/-/ /g; s/\b[a-z]/\u&/g' <<<"$name")
sed "s/My${kind^}/$type/g; s/my-$kind/$name/g; s/my_$kind/$module/g; s/My ${kind^}/$words/g" "$template" >"$file"
declared="mod $module;" line="$module::ENTRY"
[ "$kind" = metric ] && line="\\&$line"
[ "$kind" = stage ] && declared="pub mod $module;" line="$module::STAGE"
# Declare the module after the existing ones, and append its entry to the list.
last=$(grep -nE '^(pub(\(crate\))? )?mod [a-z0-9_]+;' "$folder/mod.rs" | grep -vE ' (template|tests);' | tail -n 1 | cut -d: -f1)
{
    sed -n "1,${last}p" "$folder/mod.rs"
    echo "$declared"
    sed -n "$((last + 1)),\$p" "$folder/mod.rs"
} | sed "/ $list: /,/^];/ s/^];/    $line,\n];/" >"$folder/mod.rs.new"
mv "$folder/mod.rs.new" "$folder/mod.rs"
cargo fmt >/dev/null 2>&1 || true
echo "created $file, the last entry of $list in $folder/mod.rs"
[ "$kind" = stage ] || echo "next: cargo run --release -- schema > experiments/grid.schema.json"
