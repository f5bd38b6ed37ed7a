# Thin aliases of cargo's commands.

# List the recipes.
default:
    @just --list

# Run a grid: `just run tests/real/english.yaml --set depth=3`.
run grid *arguments:
    cargo run --release -- run {{grid}} {{arguments}}

# Tables and figures of the paper: `just reproduce table2`, `just reproduce all`.
reproduce *arguments:
    cargo run --release -- reproduce {{arguments}}

# The page of everything that was reproduced: reports/index.html.
report *arguments:
    cargo run --release -- report {{arguments}}

# Record the profile tiny anew, all artifacts, into results/ and reports/index.html (docs/paper.md).
record *artifacts:
    cargo run --release --locked -- reproduce {{ if artifacts == "" { "all" } else { artifacts } }} --record

# What the README says of the recorded run, and its picture, made from results/ anew; a test fails where they are stale.
docs:
    GHOSTLAB_DOCS=write cargo test --release --locked --test all -- docs::recorded docs::models

# The README's picture of a terminal.
terminal-picture:
    python3 tools/terminal_picture.py docs/pictures/table2.svg 25 target/release/ghostlab reproduce table2

# The events of one run of table 2, from nothing, as the tests of the time left play them: `just record-events 'a quiet machine, two cores'`.
record-events machine:
    tools/record_events.sh "{{machine}}"

# The tests but for the slow ones.
test:
    cargo test --release --workspace

# The slow tests alone: whole grids, hundreds of windows.
test-slow *filter:
    cargo test --release --workspace -- --ignored {{filter}}

# Everything that decides whether a change lands.
check:
    .ci/run

# Benchmarks: `just bench forward`.
bench *arguments:
    cargo bench {{ if arguments == "" { "" } else { "--bench " + arguments } }}

# What a run of a grid would do, and why, and what it would cost.
plan grid *arguments:
    cargo run --release -- plan {{grid}} {{arguments}}

# Runs: how far they are, what failed.
status *arguments:
    cargo run --release -- status {{arguments}}

# A method, metric or stage to begin with, registered: `just new recovery my-method` (`criterion`, `metric`, `stage`).
new kind name:
    tools/new.sh {{kind}} {{name}}

# Attack what reads one kind of file until something breaks (cargo install cargo-fuzz): `just fuzz tokenizer -max_total_time=600`.
fuzz target *arguments:
    RUSTC_BOOTSTRAP=1 cargo fuzz run --sanitizer none {{target}} -- {{arguments}}

# The wheel, into target/wheel, and tried in an empty folder (needs maturin).
wheel:
    tools/wheel.sh
    tools/wheel_check.sh

# Beside transformers, lm-evaluation-harness, torch and, where LLAMA_CPP names it, llama.cpp, into benches/results and docs/performance.md; parts alone: `just bench-peers choices`.
bench-peers *arguments:
    tools/bench_peers.sh {{arguments}}
