//! Tests for the folders in which the results of artifacts (tables and figures) are stored.

use super::*;

#[test]
fn overridden_artifact_has_a_separate_folder() {
    let world = experiments("mine");
    run_ok(&world, &["reproduce", "mini"]);
    let before = fs::read(world.path("results/mini/tiny/mini.csv")).unwrap();
    let page = fs::read(world.path("reports/index.html")).unwrap();
    let output = world.ghostlab(&["reproduce", "mini", "--set", "depth=2", "--events"]);
    let screen = String::from_utf8_lossy(&output.stdout);
    assert!(screen.lines().all(|line| line.starts_with("{\"time\":")) && screen.contains("\"scored\""), "{screen}");
    let mut folders = fs::read_dir(world.path("results/mini")).unwrap().map(|item| item.unwrap().path());
    let folder = folders.find(|path| path.to_string_lossy().contains("tiny+depth=2-")).unwrap();
    assert!(
        read_rows(&folder.join("mini.csv")).iter().all(|row| row[4] != "1"),
        "the overridden table has a row for depth 1"
    );
    assert_eq!(fs::read(world.path("results/mini/tiny/mini.csv")).unwrap(), before);
    assert_eq!(fs::read(world.path("reports/index.html")).unwrap(), page, "the overridden run changed the report page");
}

#[test]
fn run_of_an_artifact_uses_its_folder_and_is_on_the_page() {
    let world = experiments("mine");
    // `run` scores an additional text that the table does not show.
    let more = SHARED.replace("corpora:\n", "corpora:\n  more: {path: ../../test.jsonl, rule: ptb, limit: 3}\n");
    let more = more.replace("perplexity: [", "perplexity: [{corpus: more, length: 64}, ");
    world.write("experiments/profiles/tiny.yaml", more);
    run_ok(&world, &["reproduce", "mini"]);
    let before = fs::read(world.path("results/mini/tiny/mini.csv")).unwrap();
    // The table is complete, but the additional text scored by `run` is still missing.
    let output = world.ghostlab(&["run", "experiments/mini.yaml", "--stored"]);
    assert_eq!(output.status.code(), Some(3), "{}", combined_output(&output));
    let [plain, named] = names_in_mini(&world).try_into().unwrap();
    assert!(plain == "tiny" && named.starts_with("tiny+run-"), "{plain} {named}");
    let rows = read_rows(&world.path("results/mini").join(&named).join("results.csv"));
    let column = rows[0].iter().position(|head| head == "ppl test@64").unwrap();
    assert!(rows[1..].iter().all(|row| row[column].parse::<f64>().is_ok()), "{rows:?}");
    run_ok(&world, &["run", "experiments/mini.yaml"]);
    let output = run_ok(&world, &["reproduce", "mini", "--dtype", "bf16", "--kernels", "portable"]);
    assert!(output.contains("(cpu-bf16) are excluded from the report page and the claim checks"), "{output}");
    assert_eq!(fs::read(world.path("results/mini/tiny/mini.csv")).unwrap(), before);
    assert_eq!(names_in_mini(&world).len(), 3, "{:?}", names_in_mini(&world));
    let output = run_ok(&world, &["report"]);
    let page = fs::read_to_string(world.path("reports/index.html")).unwrap();
    assert!(page.contains("A small table"));
    for (folder, reason) in [(named.as_str(), "overridden: run"), ("tiny+cpu-bf16-", "overridden: cpu-bf16")] {
        let line =
            output.lines().find(|line| line.contains(&format!("mini/{folder}"))).unwrap_or_else(|| panic!("{output}"));
        assert!(line.contains(reason), "{line}");
        assert!(page.contains(&format!("mini/{folder}")), "the page does not mention it");
    }
}

fn names_in_mini(world: &World) -> Vec<String> {
    let all = fs::read_dir(world.path("results/mini")).unwrap();
    let mut all: Vec<String> = all.map(|item| item.unwrap().file_name().into_string().unwrap()).collect();
    all.sort();
    all
}

#[test]
fn run_and_reproduce_use_separate_folders() {
    let [run, reproduce] = [["run", "experiments/mini.yaml"], ["reproduce", "mini"]];
    for order in [[run, reproduce], [reproduce, run]] {
        let world = experiments("mine");
        // The evaluations differ, because `run` scores an additional text that the table does not show.
        let more = SHARED.replace("corpora:\n", "corpora:\n  more: {path: ../../test.jsonl, rule: ptb, limit: 3}\n");
        let more = more.replace("perplexity: [", "perplexity: [{corpus: more, length: 64}, ");
        world.write("experiments/profiles/tiny.yaml", more);
        run_ok(&world, &order[0]);
        let [first] = folders_in_mini(&world).try_into().unwrap();
        let before = read_record_files(&world, &first);
        run_ok(&world, &order[1]);
        assert_eq!(folders_in_mini(&world).len(), 2, "{order:?}: {:?}", folders_in_mini(&world));
        assert_eq!(read_record_files(&world, &first), before, "{order:?}");
        // The stored results are complete for both commands and are shown unchanged.
        let both: Vec<_> =
            folders_in_mini(&world).iter().map(|folder| (folder.clone(), read_record_files(&world, folder))).collect();
        let output = run_ok(&world, &["run", "experiments/mini.yaml", "--stored"]);
        assert!(!output.contains("failed") && !output.contains("not computed"), "{output}");
        let output = run_ok(&world, &order[0]);
        assert!(output.contains("3 of 3 cells cached"), "{output}");
        for (folder, files) in both {
            let before = tables_of(&files);
            assert!(before.len() >= 3, "{:?}", files.keys());
            assert_eq!(tables_of(&read_record_files(&world, &folder)), before, "{order:?}: {folder}");
        }
        run_ok(&world, &["report"]);
        let page = fs::read_to_string(world.path("reports/index.html")).unwrap();
        assert!(page.contains("A small table"), "{order:?}");
    }
}

fn folders_in_mini(world: &World) -> Vec<String> {
    let all = fs::read_dir(world.path("results/mini")).unwrap();
    all.map(|item| format!("results/mini/{}", item.unwrap().file_name().into_string().unwrap())).collect()
}

fn tables_of(files: &std::collections::BTreeMap<String, Vec<u8>>) -> Vec<(String, Vec<u8>)> {
    files
        .iter()
        .filter(|(name, _)| [".csv", ".md", "numbers.json"].iter().any(|end| name.ends_with(end)))
        .map(|(name, content)| (name.clone(), content.clone()))
        .collect()
}

#[test]
fn user_page_is_not_overwritten() {
    let world = experiments("mine");
    fs::create_dir(world.path("reports")).unwrap();
    world.write("reports/index.html", "mine");
    for command in [&["reproduce", "mini"][..], &["report", "--results", "experiments"]] {
        let output = world.ghostlab(command);
        assert_eq!(output.status.code(), Some(2), "{}", combined_output(&output));
        assert!(combined_output(&output).contains("reports/index.html"), "{}", combined_output(&output));
    }
    assert!(!world.path("results").exists(), "the rejected command wrote results");
    assert_eq!(fs::read_to_string(world.path("reports/index.html")).unwrap(), "mine");
}

#[test]
fn artifact_with_tasks_stores_every_choice() {
    let world = experiments("mine");
    world.write("copa.jsonl", (0..6).map(|i| {
        format!(
            "{{\"premise\": \"w{i} w7.\", \"question\": \"cause\", \"choice1\": \"w1\", \"choice2\": \"w3 w4\", \"label\": {}}}",
            i % 2
        )
    }).collect::<Vec<_>>().join("\n"));
    let shared =
        SHARED.replace("evaluate:\n", "tasks:\n  copa: {path: ../../copa.jsonl}\nevaluate:\n  tasks: [copa]\n");
    world.write("experiments/profiles/tiny.yaml", shared);
    let artifact = fs::read_to_string(world.path("experiments/mini.yaml")).unwrap().replace("ppl_test", "copa");
    world.write("experiments/mini.yaml", artifact);
    run_ok(&world, &["reproduce", "mini"]);
    let folder = world.path("results/mini/tiny");
    assert!(folder.join("documents.parquet").is_file());
    assert_eq!(fs::read_dir(folder.join("lm_eval")).unwrap().count(), 3);
    let record = common::json(&folder.join("run.json"));
    assert!(record["files"]["documents.parquet"].is_string() && record["files"]["numbers.json"].is_string());
}

#[test]
fn plan_of_an_artifact_matches_reproduce() {
    let world = experiments("mine");
    let shared = SHARED.replace("evaluate:", "  other: {path: ../../train.txt, rule: ptb}\nevaluate:");
    let shared = shared.replace("perplexity: [", "perplexity: [{corpus: other, length: 64}, ");
    world.write("experiments/profiles/tiny.yaml", shared);
    let artifact = fs::read_to_string(world.path("experiments/mini.yaml")).unwrap();
    let artifact = artifact.replace("criterion: llm-streamline,", "criterion: shortened-llama,");
    world.write(
        "experiments/mini.yaml",
        artifact.replace("\ncriterion: llm-streamline", "\ncriterion: shortened-llama"),
    );
    let plan = run_ok(&world, &["plan", "experiments/mini.yaml"]);
    assert!(plan.contains("3 cells") && plan.contains("`reproduce mini`"), "{plan}");
    assert!(!plan.contains("other@64"), "the plan contains a text that the table does not show: {plan}");
    assert!(plan.contains("select layers of mine by shortened-llama"), "{plan}");
    assert!(
        !plan.contains("first time") && !plan.contains("changed:"),
        "a reason is given although nothing comparable is stored: {plan}"
    );
    assert!(trial_counts(&plan)[0] > 0 && trial_counts(&plan)[1] == 0, "{plan}");
    let output = run_ok(&world, &["reproduce", "mini"]);
    assert!(output.contains(&format!("({} trials)", trial_counts(&plan)[2])), "{output}");
    let plan = run_ok(&world, &["plan", "experiments/mini.yaml"]);
    assert!(plan.contains("3 complete, 0 to run") && trial_counts(&plan)[2] == 0, "{plan}");
    // A different depth only adds cells, whereas a different seed replaces existing ones.
    let plan = run_ok(&world, &["plan", "experiments/mini.yaml", "--set", "depth=1,2"]);
    assert!(plan.contains("2 to run") && !plan.contains("changed:"), "{plan}");
    let plan = run_ok(&world, &["plan", "experiments/mini.yaml", "--set", "calibration.seed=7"]);
    assert!(plan.contains("seed: 0 → 7"), "{plan}");
}

fn trial_counts(plan: &str) -> Vec<usize> {
    let line = plan.lines().find(|line| line.starts_with("trials")).unwrap();
    line.split_whitespace().skip(1).map(|count| count.parse().unwrap()).collect()
}
