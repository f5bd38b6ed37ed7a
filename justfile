# Thin aliases for cargo commands.

# List the recipes.
default:
    @just --list

# Run a grid: `just run tests/real/english.yaml --set depth=3`.
run grid *arguments:
    cargo run --release -- run {{grid}} {{arguments}}

# Reproduce tables and figures of the paper: `just reproduce table2`, `just reproduce all`.
reproduce *arguments:
    cargo run --release -- reproduce {{arguments}}

# Build the page of all reproduced results: reports/index.html.
report *arguments:
    cargo run --release -- report {{arguments}}

# Record the profile `tiny` again (by default all artifacts) into results/ and reports/index.html (CONTRIBUTING.md).
record *artifacts:
    cargo run --release --locked -- reproduce {{ if artifacts == "" { "all" } else { artifacts } }} --record

# Regenerate the README's part about the recorded run and its figure, docs/cli.md, docs/grid-keys.md and the tables of docs/models.md. A test fails if they are stale.
docs:
    GHOSTLAB_DOCS=write cargo test --release --locked --test all -- docs::command_line docs::grid_keys docs::recorded_run docs::models

# Regenerate the README's terminal picture.
terminal-picture:
    python3 tools/terminal_picture.py docs/pictures/table2.svg 25 target/release/ghostlab reproduce table2

# Record the events of a fresh run of table 2, for the tests of the remaining-time estimate: `just record-events 'a quiet machine, two cores'`.
record-events machine:
    tools/record_events.sh "{{machine}}"

# Run the tests, except the slow ones.
test:
    cargo test --release --workspace

# Run only the slow tests: whole grids, hundreds of windows.
test-slow *filter:
    cargo test --release --workspace -- --ignored {{filter}}

# Run all checks that a change must pass.
check:
    .ci/run

# Run benchmarks: `just bench forward`.
bench *arguments:
    cargo bench {{ if arguments == "" { "" } else { "--bench " + arguments } }}

# Show what a run of a grid would do, why, and at what cost.
plan grid *arguments:
    cargo run --release -- plan {{grid}} {{arguments}}

# Show the progress and the failures of runs.
status *arguments:
    cargo run --release -- status {{arguments}}

# Create and register a method, metric or stage from a template: `just new recovery my-method` (`criterion`, `metric`, `stage`).
new kind name:
    tools/new.sh {{kind}} {{name}}

# Fuzz the reader of one kind of file (needs `cargo install cargo-fuzz`): `just fuzz tokenizer -max_total_time=600`.
fuzz target *arguments:
    RUSTC_BOOTSTRAP=1 cargo fuzz run --sanitizer none {{target}} -- {{arguments}}

# Build the wheel into target/wheel, and test it in an empty folder (needs maturin).
wheel:
    tools/wheel.sh
    tools/wheel_check.sh

# Benchmark against transformers, lm-evaluation-harness, torch and, if LLAMA_CPP is set, llama.cpp. Updates benches/results and docs/performance.md. Single parts: `just bench-peers choices`.
bench-peers *arguments:
    tools/bench_peers.sh {{arguments}}
