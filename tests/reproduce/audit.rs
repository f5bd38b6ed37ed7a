//! Tests for `ghostlab audit` on the paper's tables and on other tables.

use super::*;

#[test]
fn audit_finds_contradictions_in_the_paper() {
    let world = World::new();
    let output = run_ok(&world, &["audit"]);
    for found in ["tableA5", "llama-2-7b", "37.87"] {
        assert!(output.contains(found), "{found}");
    }
    assert!(run_ok(&world, &["audit", "--format", "csv"]).lines().count() > 10);
}

#[test]
fn audit_checks_a_user_table() {
    let world = World::new();
    // ARC-Easy has 2376 documents. 1845 correct answers give 77.65 %, but no number of correct answers gives 77.70 %.
    // COPA has 100 documents. The mean of 77.65 and 82.00 is 79.825.
    world.write(
        "wide.csv",
        "Method,ARC-e,COPA,Avg\nDense,77.65,82.00,79.83\nMine,77.70,61.00,69.35\nTheirs,60.02,70.00,71.00\n",
    );
    let arguments = ["audit", "wide.csv", "--tasks", "ARC-e=arc_easy,COPA=copa", "--average", "Avg"];
    let log = run_ok(&world, &[&arguments[..], &["--format", "csv"]].concat());
    let lines: Vec<&str> = log.lines().collect();
    assert!(
        lines.iter().any(|line| line.starts_with("contradiction,average,wide,Theirs,Avg,65.0100,71.00")
            && line.ends_with("wide.csv:4")),
        "{log}"
    );
    assert!(
        lines
            .iter()
            .any(|line| line.contains(",count,") && line.contains("Mine,ARC-e,") && line.ends_with("wide.csv:3")),
        "{log}"
    );
    assert!(!log.contains(",Dense,"), "{log}");
    // The two tables contradict each other: they give different values for the same method.
    world.write("other.csv", "Method,COPA\nTheirs,69.00\n");
    let log = run_ok(&world, &["audit", "wide.csv", "other.csv", "--tasks", "COPA=copa", "--format", "csv"]);
    assert!(log.contains("contradiction,agreement,\"wide, other\",Theirs,COPA,70.00 (wide),69.00 (other)"), "{log}");
    // Impossible numbers are also found in tables in the paper's long format.
    world.write(
        "tidy.csv",
        "artifact,backbone,total_layers,pruned_layers,criterion,recovery,finetuned,calibration,metric,value,std\n\
         t,b,32,7,sleb,none,false,c4,arc_easy,77.70,\n",
    );
    let log = run_ok(&world, &["audit", "tidy.csv", "--json"]);
    assert!(log.contains("\"count\"") && log.contains("tidy.csv:2"), "{log}");
    for (name, text, words) in [
        ("wide.csv", "Method,ARC-e\nDense,x\n", &["wide.csv:2", "`x`"][..]),
        ("wide.csv", "Method,ARC\nDense,1.00\n", &["wide.csv:1", "`ARC-e`"]),
    ] {
        world.write(name, text);
        let output = world.ghostlab(&["audit", name, "--tasks", "ARC-e=arc_easy"]);
        assert_eq!(output.status.code(), Some(2), "{}", combined_output(&output));
        assert!(words.iter().all(|word| combined_output(&output).contains(word)), "{}", combined_output(&output));
    }
}
