use super::*;

/// The expected values are those that `yaml.safe_load` of PyYAML 6 returns.
#[test]
fn plain_scalars_follow_yaml_1_1() {
    let pairs = [
        ("no", "[False]"),
        ("'no'", "['no']"),
        ("yes", "[True]"),
        ("1e5", "['1e5']"),
        ("1.0e+5", "[100000.0]"),
        ("010", "[8]"),
        ("08", "['08']"),
        ("1:30", "[90]"),
        ("0x1F", "[31]"),
        ("1_000", "[1000]"),
        ("-1.5", "[-1.5]"),
        ("~", "[None]"),
        ("", "[None]"),
        (".5", "[0.5]"),
        ("1.", "[1.0]"),
        ("-", "[[None]]"),
        ("+12", "[12]"),
    ];
    for (text, expected) in pairs {
        assert_eq!(parse(&format!("- {text}"), "f").unwrap().plain().unwrap().repr(), expected, "{text}");
    }
}

#[test]
fn last_duplicate_key_wins_and_hooks_are_not_run() {
    let node = parse("a: 1\nb:\n  - x: !function utils.f\na: 2\n", "file.yaml").unwrap();
    assert_eq!(node.get("a").unwrap().plain().unwrap(), Value::Int(2));
    let (path, hook) = node.hook().unwrap();
    assert_eq!((path.as_str(), hook.location.to_string().as_str()), ("b.x", "file.yaml:3"));
}

#[test]
fn quoted_string_may_continue_on_unindented_lines() {
    let node = parse("a: 'b\nc\n\nd'\ne: \"f\\\ng\"\n", "f").unwrap();
    assert_eq!(node.plain().unwrap().repr(), r"{'a': 'b c\nd', 'e': 'fg'}");
}

#[test]
fn alias_expansion_and_nesting_are_limited() {
    let mut text = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n".to_owned();
    for i in 1..10 {
        text += &format!("a{i}: &a{i} [{}]\n", vec![format!("*a{}", i - 1); 10].join(", "));
    }
    assert!(parse(&text, "f").unwrap_err().to_string().contains("exceeds the limits"));
    assert!(parse(&"[".repeat(100_000), "f").is_err());
    assert!(parse("a: [1, b", "f").unwrap_err().to_string().contains("f:1"));
    let texts = format!("a: &a {}\nb: [{}]\n", "x".repeat(400_000), vec!["*a"; 1_000].join(", "));
    assert!(parse(&texts, "f").unwrap_err().to_string().contains("64 MB of text"));
}

#[test]
fn mapping_with_many_keys_is_read_in_linear_time() {
    let keys: String = (0..100_000).map(|index| format!("  k{index}: {index}\n")).collect();
    let text = format!("a: &a\n{keys}b:\n{}  k5: own\n", "  <<: *a\n".repeat(3));
    let node = parse(&text, "f").unwrap();
    let merged = node.get("b").unwrap();
    assert_eq!((merged.pairs().len(), merged.get("k5").unwrap().text()), (100_000, Some("own")));
    let mut joined = Node::empty(node.location.clone());
    joined.set_all(merged);
    joined.set_all(merged);
    assert_eq!(joined.pairs().len(), 100_000);
}
