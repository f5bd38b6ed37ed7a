//! What a file of claims may hold, and where a message says that it does not.

use super::*;

const GOOD: &str = r#"
- id: table2-average
  artifact: table2
  says: "It is the
    best."
  where: Section 5.2
  over: [backbone, depth]
  only: { criterion: llm-streamline, depth: pruned, recovery: not none, finetuned: false }
  check: best(acc_average) == "ghosted"
  holds: at least 5
"#;

fn refused(text: &str) -> String {
    load(text, "claims.yaml").err().map(|error| error.to_string()).unwrap_or_default()
}

/// The good file with one thing changed in it.
fn changed(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from} is not in the file");
    refused(&GOOD.replace(from, to))
}

#[track_caller]
fn says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in:\n{message}");
    }
}

#[test]
fn a_good_file_is_read() {
    let claims = load(GOOD, "claims.yaml").unwrap();
    assert_eq!(claims.len(), 1);
    let claim = &claims[0];
    assert_eq!(claim.says, "It is the best.");
    assert_eq!(claim.artifacts, ["table2"]);
    assert_eq!(claim.over, [Field::Backbone, Field::Depth]);
    assert_eq!(claim.holds, Needed::AtLeast(5));
    assert_eq!(claim.only.len(), 4);
    let json = serde_json::to_value(claim).unwrap();
    assert_eq!(json["where"], "Section 5.2");
    assert_eq!(json["over"], serde_json::json!(["backbone", "depth"]));
    assert_eq!(json["holds"], "at least 5");
}

#[test]
fn several_artifacts_stand_in_a_list() {
    let claims = load(&GOOD.replace("artifact: table2", "artifact: [table2, tableA7]"), "claims.yaml").unwrap();
    assert_eq!(claims[0].artifacts, ["table2", "tableA7"]);
}

#[test]
fn an_unknown_key_is_refused_where_it_stands() {
    says(&changed("  holds:", "  hold:"), &["unknown key `hold`", "claims.yaml:10:3", "did you mean `holds`?"]);
}

#[test]
fn a_doubled_key_is_refused_where_it_stands() {
    says(&changed("  holds:", "  artifact: table3\n  holds:"), &["`artifact` stands twice", "claims.yaml:10:3"]);
    says(&changed("depth: pruned,", "criterion: sleb,"), &["`criterion` stands twice", "claims.yaml:8:"]);
}

#[test]
fn a_missing_key_is_refused() {
    says(&changed("  holds: at least 5\n", ""), &["lacks the key `holds`", "claims.yaml:9:"]);
}

#[test]
fn values_of_the_wrong_type_are_refused_where_they_stand() {
    says(&changed("artifact: table2", "artifact: 2"), &["wrong type", "claims.yaml:3:13", "the number 2"]);
    says(&changed("[backbone, depth]", "[backbone, [depth]]"), &["a list stands in a list", "claims.yaml:7:20"]);
    says(&changed("where: Section 5.2", "where: [a]"), &["claims.yaml:6:"]);
    says(
        &changed("only: { criterion: llm-streamline, ", "only: { criterion: 3, "),
        &["`criterion` cannot be the number 3", "claims.yaml:8:22"],
    );
    says(&changed("finetuned: false", "finetuned: no"), &["`finetuned` cannot be the text `no`", "claims.yaml:8:84"]);
    says(&refused("id: x\n"), &["claims.yaml:1:1"]);
    says(&refused("- 3\n"), &["claims.yaml:1:3"]);
}

#[test]
fn unknown_words_are_refused_with_the_nearest_one() {
    says(
        &changed("table2\n", "tabel2\n"),
        &["unknown artifact `tabel2`", "claims.yaml:3:13", "did you mean `table2`?"],
    );
    says(&changed("[backbone, depth]", "[backbone, deph]"), &["unknown field `deph`", "claims.yaml:7:20", "`depth`?"]);
    says(&changed("{ criterion:", "{ criterium:"), &["unknown field `criterium`", "claims.yaml:8:11"]);
    says(&changed("llm-streamline", "llm-steamline"), &["unknown criterion", "claims.yaml:8:22", "`llm-streamline`?"]);
    says(&changed("not none", "not nome"), &["unknown recovery `nome`"]);
    says(&changed("not none", "[not none, not ghosted]"), &["`not` stands in a list", "claims.yaml:8:"]);
    says(&changed("at least 5", "at least five"), &["unknown quantity `at least five`", "claims.yaml:10:10"]);
    says(&changed("at least 5", "at least 0"), &["unknown quantity"]);
}

#[test]
fn a_fault_in_a_check_is_shown_below_the_check() {
    let message = changed("best(acc_average)", "best(acc_averag)");
    says(&message, &["unknown metric `acc_averag`", "claims.yaml:9:10, character 6 of the check"]);
    let lines: Vec<&str> = message.lines().collect();
    let shown = lines.iter().position(|line| line.contains("found:")).unwrap();
    assert_eq!(lines[shown].find("acc_averag"), lines[shown + 1].find('^'), "{message}");
}

#[test]
fn a_check_over_several_lines_keeps_its_characters_in_place() {
    let folded = "check: >-\n    best(acc_average) == \"ghosted\"\n    and vale(race) > 1";
    let message = changed("check: best(acc_average) == \"ghosted\"", folded);
    // `best(acc_average) == "ghosted" and ` has 35 characters.
    says(&message, &["unknown function `vale`", "character 36 of the check"]);
}

#[test]
fn two_claims_of_one_id_are_refused() {
    says(&refused(&format!("{GOOD}{GOOD}")), &["two claims are called `table2-average`", "claims.yaml:12:7", ":2:7"]);
}

#[test]
fn a_file_without_claims_is_refused() {
    assert!(!refused("").is_empty());
    says(&refused("[]\n"), &["there are no claims", "claims.yaml"]);
    assert!(!refused("# nothing\n").is_empty());
}

#[test]
fn a_claim_without_a_sentence_or_an_artifact_is_refused() {
    says(&changed("where: Section 5.2", "where: ' '"), &["`where` is empty", "claims.yaml:6:10"]);
    says(&changed("artifact: table2", "artifact: []"), &["about no artifact"]);
    says(&changed("id: table2-average", "id: table 2"), &["cannot name a claim", "claims.yaml:2:7"]);
    says(&changed("[backbone, depth]", "[depth, depth]"), &["`depth` stands twice in `over`"]);
}

#[test]
fn a_quantity_decides_only_when_the_unknown_cannot_change_it() {
    let decide = |needed: Needed, held, unknown, of| needed.decide(held, unknown, of);
    assert_eq!(decide(Needed::All, 6, 0, 6), Some(true));
    assert_eq!(decide(Needed::All, 5, 1, 6), None);
    assert_eq!(decide(Needed::All, 4, 1, 6), Some(false));
    assert_eq!(decide(Needed::Most, 3, 0, 6), Some(false), "half is not most");
    assert_eq!(decide(Needed::Most, 4, 2, 6), Some(true));
    assert_eq!(decide(Needed::Most, 3, 1, 6), None);
    assert_eq!(decide(Needed::AtLeast(5), 5, 1, 6), Some(true));
    assert_eq!(decide(Needed::AtLeast(5), 4, 0, 6), Some(false));
    assert_eq!(decide(Needed::AtLeast(5), 4, 0, 4), None, "five of four cannot be asked");
    assert_eq!(decide(Needed::Any, 0, 1, 6), None);
    assert_eq!(decide(Needed::Any, 0, 0, 6), Some(false));
    assert_eq!(decide(Needed::All, 0, 0, 0), None, "nothing holds of nothing");
}
