//! Compares the corpus module with the reference implementations. Random draws, tokens and windows must match exactly.
#![allow(clippy::unwrap_used, reason = "test helpers fail by panicking")]

use std::path::Path;

use crate::common::{json, shared};
use ghostlab_core::corpus::{
    PythonRandom, Tokenizer, WindowRule, Windows, calibration_windows, evaluation_windows, read_rows,
};
use serde_json::Value;

fn whole_numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|item| item.as_u64().unwrap()).collect()
}

fn read_ids(path: &Path) -> Vec<u32> {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn starts(windows: &Windows) -> Vec<u64> {
    windows.starts.iter().map(|start| start.token as u64).collect()
}

#[test]
fn random_draws_match_cpython() {
    let Some(oracle) = shared("oracles/stories260k/stories260k.json") else { return };
    let oracle = json(&oracle);
    let cases = oracle["python_random"].as_array().unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let mut random = PythonRandom::new(read_number("seed", case));
        let expected = whole_numbers(&case["draws"]);
        let drawn: Vec<u64> = expected
            .iter()
            .map(|_| random.randint(read_number("low", case), read_number("high", case)).unwrap())
            .collect();
        assert_eq!(drawn, expected, "seed {}, {} to {}", case["seed"], case["low"], case["high"]);
    }
}

fn read_number(key: &str, case: &Value) -> u64 {
    case[key].as_u64().unwrap()
}

#[test]
fn plain_text_tokens_match_the_reference() {
    let Some(folder) = shared("oracles/stories260k") else { return };
    let tokenizer = Tokenizer::load(folder.join("tokenizer.json")).unwrap();
    assert_eq!(tokenizer.vocab_size(), 512);
    for name in ["calibration", "evaluation"] {
        let rows = read_rows(folder.join(format!("{name}.txt")), None).unwrap();
        assert_eq!(rows.len(), 1);
        let tokens = tokenizer.encode(&rows[0]).unwrap();
        assert!(tokens == read_ids(&folder.join(format!("{name}.ids.json"))), "the tokens of {name}.txt differ");
    }
}

#[test]
fn windows_of_a_plain_text_match_the_reference() {
    let Some(folder) = shared("oracles/stories260k") else { return };
    let oracle = &json(&folder.join("stories260k.json"))["windows"];
    let seed = number_of_oracle("seed", oracle);
    let length = number_of_oracle("seqlen", oracle) as usize;
    let expected = whole_numbers(&oracle["train_starts"]);
    let rule: WindowRule = oracle["rule"].as_str().unwrap().parse().unwrap();
    let tokenizer = Tokenizer::load(folder.join("tokenizer.json")).unwrap();

    let rows = read_rows(folder.join("calibration.txt"), None).unwrap();
    let windows = calibration_windows(rule, &rows, &tokenizer, expected.len(), length, seed).unwrap();
    assert_eq!(windows.corpus_tokens as u64, number_of_oracle("total_tokens", oracle));
    assert_eq!(starts(&windows), expected);
    let all = read_ids(&folder.join("calibration.ids.json"));
    for (index, start) in windows.starts.iter().enumerate() {
        assert_eq!(windows.window(index), &all[start.token..start.token + length]);
    }

    // The reference implementation draws its validation windows from the same generator, directly after the training
    // windows.
    let tokens = number_of_oracle("total_tokens", oracle);
    let border = (0.9 * tokens as f64) as u64 - length as u64 - 1;
    let mut random = PythonRandom::new(seed);
    for start in &expected {
        assert_eq!(random.randint(0, border).unwrap(), *start);
    }
    for start in whole_numbers(&oracle["val_starts"]) {
        assert_eq!(random.randint(border, tokens - length as u64 - 1).unwrap(), start);
    }

    let rows = read_rows(folder.join("evaluation.txt"), None).unwrap();
    let windows = evaluation_windows(rule, &rows, &tokenizer, length, None).unwrap();
    // The perplexities in the reference data cover 262 windows.
    assert_eq!(windows.count(), 262);
    assert!(windows.ids == read_ids(&folder.join("evaluation.ids.json"))[..262 * length]);
}

fn number_of_oracle(key: &str, oracle: &Value) -> u64 {
    oracle[key].as_u64().unwrap()
}

#[test]
fn windows_of_wikitext2_match_the_reference() {
    let (Some(folder), Some(oracle)) = (shared("real"), shared("real/reference.json")) else { return };
    let oracle = json(&oracle);
    let tokenizer = Tokenizer::load(folder.join("backbone/tokenizer.json")).unwrap();
    assert_eq!(tokenizer.vocab_size(), 4096);

    let rows = read_rows(folder.join("corpora/wikitext2-validation.parquet"), None).unwrap();
    assert_eq!(rows[..2], ["".to_owned(), " = Homarus gammarus = \n".to_owned()]);
    let windows = calibration_windows(WindowRule::Wikitext2, &rows, &tokenizer, 32, 512, 0).unwrap();
    assert_eq!(windows.corpus_tokens, read_count("calibration_tokens", &oracle));
    assert_eq!(starts(&windows), whole_numbers(&oracle["window_starts"]));

    let rows = read_rows(folder.join("corpora/wikitext2-test.parquet"), None).unwrap();
    let windows = evaluation_windows(WindowRule::Wikitext2, &rows, &tokenizer, 512, None).unwrap();
    assert_eq!(windows.corpus_tokens, read_count("evaluation_tokens", &oracle));
    assert_eq!(windows.count(), read_count("windows", &oracle));
    assert_eq!(windows.window(0)[0], 0, "the text must start with BOS");
    assert_eq!(windows.ids.iter().filter(|id| **id == 0).count(), 1);
}

fn read_count(key: &str, oracle: &Value) -> usize {
    oracle[key].as_u64().unwrap() as usize
}

/// There is no reference data for C4, so the test checks that each window lies within one of the documents.
#[test]
fn c4_windows_do_not_cross_documents() {
    let Some(folder) = shared("real") else { return };
    let tokenizer = Tokenizer::load(folder.join("backbone/tokenizer.json")).unwrap();
    let rows = read_rows(folder.join("corpora/c4-sample.jsonl.gz"), None).unwrap();
    assert_eq!(rows.len(), 1000);
    let train = calibration_windows(WindowRule::C4, &rows, &tokenizer, 16, 512, 0).unwrap();
    assert!(train.starts.iter().all(|start| start.document < 900));
    let test = evaluation_windows(WindowRule::C4, &rows, &tokenizer, 512, Some(16)).unwrap();
    for windows in [train, test] {
        assert_eq!(windows.count(), 16);
        for (ids, start) in windows.iter().zip(&windows.starts) {
            let document = tokenizer.encode(&rows[start.document]).unwrap();
            assert!(document.len() > 512);
            assert_eq!(ids, &document[start.token..start.token + 512]);
        }
    }
}
