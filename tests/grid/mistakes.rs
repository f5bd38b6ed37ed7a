//! Refused files, and the positions in messages.

use ghostlab::grid::Grid;

use super::house::{GOOD, Place, good_but};

#[test]
fn a_wrong_value_is_refused_where_it_stands() {
    let folder = Place::new();
    for (from, to, at, parts) in [
        // Keys.
        (
            "depth: [3, 5]",
            "dpeth: [3, 5]",
            "8:1",
            &["unknown key `dpeth` in the grid", "criterion, depth", "did you mean `depth`?"][..],
        ),
        ("rule: wikitext2", "rule: wikitext2, colum: x", "4:43", &["unknown key `colum` in `corpora.wiki`", "column"]),
        (
            "corpus: wiki, sequences: 32",
            "corpus: wiki, sequence: 32",
            "11:20",
            &["unknown key `sequence` in `calibration[0]`", "did you mean `sequences`?"],
        ),
        (
            "depth: [3, 5]\n",
            "",
            "1:1",
            &[
                "the grid has no key `depth`",
                "all four of criterion, depth, recovery, calibration, or none of them",
                "found:    only criterion, recovery, calibration",
                "scores its dense backbones",
            ],
        ),
        (
            "criterion: llm-streamline\ndepth: [3, 5]\nrecovery: [none, ghosted]\n",
            "",
            "1:1",
            &["the grid has no keys `criterion`, `depth`, `recovery`", "found:    only calibration"],
        ),
        ("backbone: english\n", "", "1:1", &["the grid has no key `backbone`"]),
        ("{corpus: c4, length: 512}", "{corpus: c4}", "15:7", &["`evaluate.perplexity[1]` has no key `length`"]),
        ("criterion: llm-streamline", "criterion: {cosine: token}", "7:12", &["`criterion` has no key `name`"]),
        // YAML treats these as one key.
        (
            "criterion: llm-streamline",
            "criterion: {name:shortgpt}",
            "7:12",
            &["`criterion` has no key `name`", "write `name: shortgpt`, with a blank after the colon"],
        ),
        (
            "{corpus: c4, length: 512}",
            "{corpus:c4, length: 512}",
            "15:8",
            &["unknown key `corpus:c4`", "write `corpus: c4`, with a blank"],
        ),
        (
            "depth: [3, 5]",
            "depth: [3, 5]\ndepth: [7]",
            "9:1",
            &["the key `depth` stands twice", "depth: [7]\n            ^"],
        ),
        ("limit: 100", "limit: 100, rule: ptb", "5:44", &["the key `rule` stands twice"]),
        // Types.
        (
            "depth: [3, 5]",
            "depth: [3, many]",
            "8:12",
            &["neither a count nor a share", "a share of the layers such as `25%`", "found:    the text `many`"],
        ),
        ("depth: [3, 5]", "depth: -3", "8:8", &["`depth` has the wrong type", "found:    the number -3"]),
        ("depth: [3, 5]", "depth: [3.5]", "8:9", &["`depth[0]` has the wrong type", "found:    the number 3.5"]),
        ("depth: [3, 5]", "depth:", "8:", &["`depth` has the wrong type", "expected: a list", "found:    nothing"]),
        (
            "rule: c4",
            "rule: [c4]",
            "5:28",
            &["`corpora.c4.rule` has the wrong type", "expected: text", "found:    a list"],
        ),
        (
            "sequences: 32",
            "sequences: [[32]]",
            "11:32",
            &["`calibration[0].sequences[0]` has the wrong type", "found:    a list"],
        ),
        (
            "{path: models/english}",
            "models/english",
            "2:12",
            &["`backbones.english` has the wrong type", "expected: a map"],
        ),
        (
            "[none, ghosted]",
            "[none, 3]",
            "9:18",
            &["`recovery[1]` has the wrong type", "a name, or a map with `name` and options"],
        ),
        (
            "backbone: english",
            "backbone: {english: 1}",
            "6:11",
            &["`backbone` has the wrong type", "expected: text", "found:    a map"],
        ),
        // Axes.
        ("depth: [3, 5]", "depth: []", "8:8", &["the axis `depth` is empty", "at least one value"]),
        ("criterion: llm-streamline", "criterion: []", "7:12", &["the axis `criterion` is empty"]),
        (
            "depth: [3, 5]",
            "depth: [3, 5, 3]",
            "8:15",
            &["the axis `depth` has the same value twice", "`3`, which stands already at grid.yaml:8:9"],
        ),
        ("[none, ghosted]", "[none, {name: none}]", "9:18", &["the axis `recovery` has the same value twice"]),
        (
            "length: 512}\nevaluate",
            "length: 512}\n  - {corpus: wiki, sequences: 32, length: 512, operator_sequences: 32}\nevaluate",
            "12:5",
            &["the axis `calibration` has the same value twice", "wiki:32x512@0"],
        ),
        (
            "{corpus: c4, length: 512}",
            "{corpus: wiki, length: 512}",
            "15:7",
            &["the axis `evaluate.perplexity` has the same value twice"],
        ),
        (
            "  perplexity:\n    - {corpus: wiki, length: 512}\n    - {corpus: c4, length: 512}",
            "  {}",
            "13:3",
            &["the grid evaluates nothing"],
        ),
        (
            "\n    - {corpus: wiki, length: 512}\n    - {corpus: c4, length: 512}",
            " []",
            "13:15",
            &["the axis `evaluate.perplexity` is empty"],
        ),
        // Meaning.
        ("depth: [3, 5]", "depth: [0, 5]", "8:9", &["a depth is 0", "the dense backbone is in every grid"]),
        (
            "depth: [3, 5]",
            "depth: [3, 16]",
            "8:12",
            &["would leave nothing of the backbone `english`", "below 16", "found:    16", "at most 15"],
        ),
        ("depth: [3, 5]", "depth: 15", "8:8", &["`llm-streamline` keeps the first and the last layer", "at most 14"]),
        (
            "sequences: 32",
            "sequences: 0",
            "11:31",
            &["the number of calibration sequences is too small", "expected: 1 or more"],
        ),
        (
            "sequences: 32, length: 512",
            "sequences: 32, length: 1",
            "11:43",
            &["the length of a calibration sequence is too small", "2 or more", "predicts nothing"],
        ),
        (
            "sequences: 32",
            "operator_sequences: 33, sequences: 32",
            "11:40",
            &["the operator wants more sequences than there are", "at most 32", "found:    33"],
        ),
        (
            "sequences: 32",
            "operator_sequences: 0, sequences: 32",
            "11:40",
            &["the number of sequences for the operator is too small"],
        ),
        (
            "{corpus: c4, length: 512}",
            "{corpus: c4, length: 1}",
            "15:28",
            &["the length of an evaluation window is too small"],
        ),
        ("limit: 100", "limit: 0", "5:39", &["the limit on evaluation windows is too small"]),
        (
            "backbone: english",
            "backbone: [english, englsh]",
            "6:21",
            &["unknown backbone `englsh`", "one of english", "did you mean `english`?"],
        ),
        (
            "corpus: wiki, sequences",
            "corpus: wki, sequences",
            "11:14",
            &["unknown corpus `wki`", "one of c4, wiki", "did you mean `wiki`?"],
        ),
        ("{corpus: c4, length", "{corpus: c5, length", "15:16", &["unknown corpus `c5`", "did you mean `c4`?"]),
        (
            "rule: wikitext2",
            "rule: wikitext",
            "4:32",
            &["unknown window rule `wikitext`", "one of wikitext2, ptb, c4, ", "did you mean `wikitext2`?"],
        ),
        (
            "criterion: llm-streamline",
            "criterion: [llm-streamlin]",
            "7:13",
            &["unknown criterion `llm-streamlin`", "did you mean `llm-streamline`?"],
        ),
        (
            "criterion: llm-streamline",
            "criterion: {name: llm-streamline, cosin: token}",
            "7:12",
            &["unknown field `cosin`"],
        ),
        ("[none, ghosted]", "[none, ghost]", "9:18", &["unknown recovery `ghost`"]),
        ("backbones:", "name: ../up\nbackbones:", "1:7", &["cannot name a folder", "`../up`"]),
        // YAML.
        ("depth: [3, 5]", "depth: [3, 5", "", &["this is not valid YAML", "^"]),
        (
            "depth: [3, 5]",
            "\tdepth: 3",
            "7:12",
            &["this is not valid YAML", "there is a tab here or at the start of the next line"],
        ),
        ("depth: [3, 5]", "depth: *three", "8:8", &["this is not valid YAML", "depth: *three\n                   ^"]),
    ] {
        folder.refuses(&good_but(from, to), &[], at, parts);
    }
}

#[test]
fn what_is_not_there_has_exit_code_3_and_the_line_that_names_it() {
    let folder = Place::new();
    for (from, to, at, parts) in [
        (
            "models/english",
            "models/french",
            "2:19",
            &["the backbone's folder is not there", "a folder at models/french"][..],
        ),
        ("models/english", "wiki.txt", "2:19", &["a folder at wiki.txt", "something else of that name"]),
        (
            "path: wiki.txt",
            "path: wki.txt",
            "4:16",
            &["the corpus is not there", "a file at wki.txt", "starts from the grid file's folder"],
        ),
        (
            "models/english",
            "models/hollow",
            "2:19, models/hollow",
            &["the folder holds no model: it has no config.json"],
        ),
        ("path: c4.txt", "path: models", "5:14", &["a file at models", "something else of that name"]),
    ] {
        let (message, code) = folder.refusal(good_but(from, to), &[]);
        assert!(message.contains(&format!("where:    grid.yaml:{at}\n")), "{message}");
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        assert_eq!(code, 3);
    }
    let error = Grid::load(&folder.root.path().join("gird.yaml"), None, &[]).unwrap_err();
    assert!(error.to_string().contains("gird.yaml") && error.exit_code() == 3, "{error}");
}

#[test]
fn a_definition_that_nothing_uses_need_not_exist() {
    let folder = Place::new();
    let text = good_but("corpora:\n", "corpora:\n  later: {path: absent.txt, rule: ptb}\n");
    let grid = folder.load(text, &[]).unwrap();
    assert_eq!(grid.corpora.keys().collect::<Vec<_>>(), ["c4", "wiki"]);
}

#[test]
fn what_is_no_grid_at_all_is_refused() {
    let folder = Place::new();
    for (text, parts) in [
        (&b""[..], &["the grid is empty", "where:    grid.yaml"][..]),
        (b"# only\n\n---\n", &["the grid is empty"]),
        (b"~\n", &["the grid is empty"]),
        (b"- a\n- b\n", &["the grid is not a map", "grid.yaml:1:1", "found:    a list"]),
        (b"hello\n", &["the grid is not a map", "found:    the text `hello`"]),
        (b"a: 1\nb: \xff\n", &["the grid is not UTF-8 text", "grid.yaml:2", "0xff"]),
        (b"a: 1\n---\nb: 2\n", &["this is not valid YAML"]),
    ] {
        let (message, code) = folder.refusal(text, &[]);
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        assert_eq!(code, 2);
    }
}

#[test]
fn a_wrong_override_is_blamed_by_its_own_text() {
    let folder = Place::new();
    for (given, parts) in [
        ("depth=7,16", &["would leave nothing"][..]),
        ("depth=", &["`depth` has the wrong type", "found:    nothing"]),
        ("dpeth=7", &["unknown key `dpeth`", "did you mean `depth`?"]),
        ("calibration.sequencs=3", &["unknown key `sequencs` in `calibration[0]`"]),
        ("evalute.perplexity=3", &["there is no `evalute`", "did you mean `evaluate`?"]),
        ("calibration[1].length=3", &["no element at this position", "below 1"]),
        ("recovery=[none, none]", &["the same value twice"]),
        ("recovery=[none", &["this is not valid YAML"]),
        ("depth", &["an override has no key and value", "--set depth=7,9,11"]),
    ] {
        let (message, code) = folder.refusal(GOOD, &[given]);
        assert!(message.contains(&format!("where:    --set {given}")), "{message}");
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        assert_eq!(code, 2);
    }
    let (message, code) = folder.refusal(GOOD, &["corpora.wiki.path=wiki.txt"]);
    assert!(message.contains("starts from the current folder") && code == 3, "{message}");
}

#[test]
fn all_that_is_not_there_is_told_at_once() {
    let folder = Place::new();
    let text =
        GOOD.replace("models/english", "models/french").replace("wiki.txt", "wki.txt").replace("c4.txt", "c5.txt");
    let (message, code) = folder.refusal(&text, &[]);
    assert_eq!(code, 3, "{message}");
    for part in ["3 things that the grid names are not there", "models/french", "wki.txt", "c5.txt", "grid.yaml:2:19"] {
        assert!(message.contains(part), "`{part}` is not in\n{message}");
    }
    // One alone has the message that it always had.
    let (message, _) = folder.refusal(GOOD.replace("c4.txt", "c5.txt"), &[]);
    assert!(message.contains("the corpus is not there") && !message.contains("things"), "{message}");
}

#[test]
fn a_name_with_a_slash_is_refused_where_it_is_used() {
    let folder = Place::new();
    let corpus = ("  wiki:", "  a/b: {path: c4.txt, rule: c4}\n  wiki:");
    for (from, to, defined, kind) in [
        ("backbone: english", "backbone: a/b", ("  english:", "  a/b:"), "backbone"),
        ("corpus: wiki, sequences", "corpus: a/b, sequences", corpus, "corpus"),
        ("{corpus: c4, length", "{corpus: a/b, length", corpus, "corpus"),
    ] {
        let (message, code) = folder.refusal(good_but(from, to).replace(defined.0, defined.1), &[]);
        assert_eq!(code, 2, "{message}");
        let parts = [&format!("the name of a {kind} cannot be shown"), "`a/b`", "without `/`", "where:    grid.yaml:"];
        assert!(parts.iter().all(|part| message.contains(*part)), "{message}");
    }
}
