//! Tests for the report page that covers all tables and figures.

use super::*;

#[test]
fn reproduce_all_writes_lists_tables_figures_and_page() {
    let world = experiments("mine");
    run_ok(&world, &["reproduce", "all"]);
    let page = fs::read_to_string(world.path("reports/index.html")).unwrap();
    for shown in ["A small table", "A small figure", "data:image/svg+xml", "explain"] {
        assert!(page.contains(shown), "{shown} is not on the page");
    }
    // Lists, such as `methods`, are on the page too.
    let (_, list) = page.split_once("data-name=\"methods\"").unwrap();
    assert!(list.split_once("</table>").unwrap().0.contains("LLM-Streamline"), "wrong rows of the list");
    assert!(fs::read_to_string(world.path("results/methods/methods.md")).unwrap().contains("LLM-Streamline"));
}

#[test]
fn reproduce_all_skips_artifacts_without_the_profile() {
    let world = experiments("mine");
    let table = fs::read_to_string(world.path("experiments/mini.yaml")).unwrap();
    world.write("experiments/mini.yaml", format!("{table}  other: {{backbone: mine, depth: 1}}\n"));
    world.write("experiments/profiles/other.yaml", SHARED);
    let output = run_ok(&world, &["reproduce", "all", "--profile", "other"]);
    assert!(output.contains("skipped artifacts without profile `other`: figure1\n"), "{output}");
    assert!(!output.contains("failed artifacts") && !output.contains("unknown profile"), "{output}");
    assert!(world.path("results/mini/other/mini.md").exists() && world.path("results/methods/methods.md").exists());
    // An explicitly named figure without the profile is an error, and so is an unknown profile.
    for arguments in [["reproduce", "figure1", "--profile", "other"], ["reproduce", "all", "--profile", "none"]] {
        let output = world.ghostlab(&arguments);
        assert_eq!(output.status.code(), Some(2), "{}", combined_output(&output));
        assert!(combined_output(&output).contains("profile `"), "{}", combined_output(&output));
    }
}

#[test]
fn page_notes_the_provenance_of_each_number() {
    let world = experiments("mine");
    run_ok(&world, &["reproduce", "mini"]);
    let page = fs::read_to_string(world.path("reports/index.html")).unwrap();
    let dense = cell_note(&page, "mine.dense");
    let note = cell_note(&page, "mine.streamline");
    assert_eq!(table_value(&note, "program"), format!("ghostlab {}", env!("CARGO_PKG_VERSION")));
    assert!(table_value(&note, "command").contains("reproduce mini"), "{note}");
    assert!(table_value(&note, "machine").contains("threads"), "{note}");
    // If the program was built outside a checkout, no commit is recorded.
    let record: serde_json::Value =
        serde_json::from_slice(&fs::read(world.path("results/mini/tiny/run.json")).unwrap()).unwrap();
    if let Some(commit) = record["commit"].as_str() {
        assert!(table_value(&note, "commit").starts_with(commit), "{note}");
    }
    let year = &record["finished"].as_str().unwrap()[..5];
    assert!(note.contains(&format!("</code></td><td>{year}")), "finish times are missing: {note}");
    // The inputs of a repaired cell (weights, tokenizer and both texts) are shown with their recorded hashes.
    for file in ["model.safetensors", "config.json", "tokenizer.json", "train.txt", "test.jsonl"] {
        let (path, hash) = record["inputs"].as_object().unwrap().iter().find(|(path, _)| path.ends_with(file)).unwrap();
        let row = format!("<code>{path}</code></th><td><code>{}</code>", hash.as_str().unwrap());
        assert!(note.contains(&row), "{file}: {note}");
    }
    assert!(
        dense.contains("test.jsonl") && !dense.contains("train.txt"),
        "a note must list only the inputs of its cell: {dense}"
    );
}

/// Returns the note on a cell, followed by the shared texts to which it links.
fn cell_note(page: &str, name: &str) -> String {
    let article = text_between(page, &format!("<h3>tiny/mini/{name}"), "</article>");
    let shared = article.split("<a href=\"#").skip(1).filter_map(|rest| rest.split('"').next());
    let shared = shared.map(|id| text_between(page, &format!("<div class=\"shared\" id=\"{id}\">"), "</div>"));
    shared.fold(article.to_owned(), |all, part| all + part)
}

#[test]
fn every_profile_that_has_results_is_on_the_page() {
    let world = experiments("mine");
    let artifact = fs::read_to_string(world.path("experiments/mini.yaml")).unwrap();
    world.write("experiments/mini.yaml", format!("{artifact}  deeper: {{backbone: mine, depth: 2}}\n"));
    world.write("experiments/profiles/deeper.yaml", SHARED);
    run_ok(&world, &["reproduce", "mini"]);
    run_ok(&world, &["reproduce", "mini", "--profile", "deeper"]);
    let page = fs::read_to_string(world.path("reports/index.html")).unwrap();
    for profile in ["tiny", "deeper"] {
        assert!(page.contains(&format!("id=\"artifact-{profile}/mini\"")), "{profile}");
    }
    let claims = text_between(&page, "<section id=\"claims\"", "</section>");
    assert!(claims.contains("Table 2, deeper"), "claims of a profile are missing: {claims}");
}

fn table_value<'a>(note: &'a str, name: &str) -> &'a str {
    text_between(note, &format!("<dt>{name}</dt><dd>"), "</dd>")
}
