use serde_json::json;

use super::*;

fn json_of(text: &str) -> serde_json::Value {
    json!(read(text).unwrap_or_else(|error| panic!("{text}: {error}")))
}

/// The expected values are those of `ast.literal_eval(…)` in Python 3.11.
#[test]
fn literals_are_parsed_as_in_python() {
    assert_eq!(literal_repr(r#" ["a", 'b' "c", 1, -2.5, None]"#).as_deref(), Some("['a', 'bc', 1, -2.5, None]"));
    assert_eq!(literal_repr(r"{'a': [1, 2], 'b': ()}").as_deref(), Some("{'a': [1, 2], 'b': []}"));
    assert_eq!(literal_repr(r"['\x41\u00e9\n\q', r'\n']").as_deref(), Some(r"['Aé\n\\q', '\\n']"));
    for (text, wanted) in [
        ("(1)", "1"),
        ("1, 2", "[1, 2]"),
        ("{'a'}", "['a']"),
        ("{1: 2, 'a': 3}", "{1: 2, 'a': 3}"),
        ("0x10", "16"),
        ("1_000", "1000"),
        ("[-0, 1e3, .5, 5.]", "[0, 1000.0, 0.5, 5.0]"),
        (r"r'a\'b'", r#""a\\'b""#),
    ] {
        assert_eq!(literal_repr(text).as_deref(), Some(wanted), "{text}");
    }
    for bad in ["[a]", "['a' 1]", "007", "['a'", "[1] 2", "x", "", "['a\nb']", "[,]", "{1, 'a': 2}", "{'a': 2, 1}"] {
        assert_eq!(literal(bad), None, "{bad}");
    }
}

fn literal_repr(text: &str) -> Option<String> {
    literal(text).map(|value| value.repr())
}

#[test]
fn list_of_dicts_is_read_with_either_quote_style() {
    let text = r#" [{'question': 'Who said "no"?', 'options': ["isn't", 'b',], 'answer': 'A'}, {"x": 1}]"#;
    let expected = json!([{"question": "Who said \"no\"?", "options": ["isn't", "b"], "answer": "A"}, {"x": 1}]);
    assert_eq!(json_of(text), expected);
}

#[test]
fn escapes_are_parsed_as_in_python() {
    for (text, wanted) in [
        (r"'\'\x22\\\n\r\t'", "'\"\\\n\r\t"),
        (r"'\xe9\u2014\U0001F600\0\101\18'", "é—😀\0A\u{1}8"),
        (r"'\a\b\f\v\q\.'", "\u{7}\u{8}\u{c}\u{b}\\q\\."),
        ("'a\\\nb'", "ab"),
        ("'''it's\n\"so\"'''", "it's\n\"so\""),
        ("'a' \"b\"\nu'c'", "abc"),
        ("''", ""),
        ("u\"é\"", "é"),
    ] {
        assert_eq!(json_of(text), json!(wanted), "{text}");
    }
}

#[test]
fn tuples_numbers_and_trailing_commas_are_parsed() {
    assert_eq!(json_of("(1, -2.5, True, False, None, ('a'), ('a',), (), {}, [],)"), {
        json!([1, -2.5, true, false, null, "a", ["a"], [], {}, []])
    });
    assert_eq!(json_of("{'a': 1, 'a': 2,}"), json!({"a": 2}));
}

#[test]
fn invalid_literal_is_rejected_with_its_position() {
    for text in [
        "",
        "[",
        "[1",
        "[1 2]",
        "[,]",
        "(,)",
        "{'a': }",
        "{'a': 1 'b': 2}",
        "{,}",
        "'a",
        "'a\nb'",
        "'a\rb'",
        "'\0'",
        "b'a'",
        "f'a'",
        "nan",
        "inf",
        "__import__('os')",
        "1 + 1",
        "01",
        "--1",
        "-",
        "'\\x4'",
        "'\\xé'",
        "'\\ud83d'",
        "'\\ud83d\\ude00'",
        "'\\U00110000'",
        "'\\N{DASH}'",
        "[1] # end",
        "[1]]",
        "\u{a0}[1]",
        "[\u{3000}1]",
        "u",
        "Truer",
        "é",
    ] {
        let error = read(text).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{text}");
        assert!(error.to_string().contains("character "), "{error}");
    }
    let error = read("['é', x]").unwrap_err().to_string();
    assert!(error.contains("character 7") && error.contains("\"x]\""), "{error}");
}

/// Generates a random value with at most `depth` levels of nesting, and a Python literal for it.
fn random_value(random: &mut impl FnMut(usize) -> usize, depth: usize) -> (serde_json::Value, String) {
    let parts = if depth == 0 { 0 } else { random(4) };
    match random(if depth == 0 { 3 } else { 5 }) {
        0 => {
            let number = random(2_000_001) as i64 - 1_000_000;
            (json!(number), number.to_string())
        }
        1 => {
            let (value, written) = &[(json!(true), "True"), (json!(false), "False"), (json!(null), "None")][random(3)];
            (value.clone(), (*written).to_owned())
        }
        2 => {
            let (text, written) = random_text(random);
            (json!(text), written)
        }
        3 => {
            let items: Vec<(serde_json::Value, String)> = (0..parts).map(|_| random_value(random, depth - 1)).collect();
            let written: Vec<&str> = items.iter().map(|(_, written)| written.as_str()).collect();
            let end = if parts > 0 && random(2) == 0 { "," } else { "" };
            let written = format!("[{}{end}]", written.join(", "));
            (items.into_iter().map(|(value, _)| value).collect(), written)
        }
        _ => {
            let mut map = serde_json::Map::new();
            let mut written = Vec::new();
            for _ in 0..parts {
                let ((key, key_written), (value, value_written)) =
                    (random_text(random), random_value(random, depth - 1));
                map.insert(key, value);
                written.push(format!("{key_written}: {value_written}"));
            }
            (serde_json::Value::Object(map), format!("{{{}}}", written.join(",\n ")))
        }
    }
}

/// Generates a random string, and a Python literal for it.
fn random_text(random: &mut dyn FnMut(usize) -> usize) -> (String, String) {
    let letters = ["a", "'", "\"", "\\", "\n", "é", "\u{1f600}", " ", "]", "\0"];
    let text: String = (0..random(6)).map(|_| letters[random(letters.len())]).collect();
    let quote = ["'", "\"", "'''", "\"\"\""][random(4)];
    let written: String = text
        .chars()
        .map(|c| match c {
            '\'' | '"' | '\\' => format!("\\{c}"),
            '\n' => "\\n".to_owned(),
            '\0' => "\\x00".to_owned(),
            'é' if quote == "'" => "\\u00e9".to_owned(),
            c => c.to_string(),
        })
        .collect();
    (text, format!("{quote}{written}{quote}"))
}

#[test]
fn random_literals_parse_to_their_values() {
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for _ in 0..2_000 {
        let (value, written) = random_value(&mut random, 4);
        assert_eq!(json_of(&written), value, "{written}");
    }
}

#[test]
fn deeply_nested_literal_is_rejected_without_overflow() {
    assert!(read(&"[".repeat(1_000_000)).is_err());
    assert!(read(&"{'a':".repeat(100_000)).is_err());
    let fits = format!("{}{}", "[".repeat(60), "]".repeat(60));
    read(&fits).unwrap();
}
