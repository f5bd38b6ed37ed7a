//! Tests for metric ids and the registry.

use super::*;

#[test]
fn metrics_have_the_expected_direction() {
    for task in TASKS {
        assert_eq!(direction_of(task.name), Direction::Higher, "{}", task.name);
    }
    for id in [ACCURACY.id, "race_v2", "speedup", "channels_reduced_share"] {
        assert_eq!(direction_of(id), Direction::Higher, "{id}");
    }
    for id in ["ppl_c4", "ppl_of-mine", "bpb_c4", "boundary_mae", "prefill_ms:seq=512:batch=1", "peak_memory_percent"] {
        assert_eq!(direction_of(id), Direction::Lower, "{id}");
    }
    assert_eq!(direction_of("m_symmetric_share"), Direction::Neither);
}

fn direction_of(id: &str) -> Direction {
    Metric::find(id).unwrap().direction
}

#[test]
fn custom_task_has_an_accuracy_metric() {
    let mine = Metric::task("my-questions");
    assert_eq!((mine.label.as_str(), mine.direction, mine.unit), ("my-questions", Direction::Higher, Unit::Percent));
    assert_eq!(Metric::task("hellaswag").label, "HellaS");
}

#[test]
fn unknown_metric_error_suggests_the_nearest_id() {
    let message = Metric::find("acc_avarage").unwrap_err().to_string();
    assert!(message.contains("did you mean `acc_average`?"), "{message}");
    assert!(Metric::find("arc_easy:seq=1:batch=1").is_err(), "only ids of latency metrics contain a colon");
    assert!(Metric::find("speedup:seq=many:batch=1").is_err());
    assert!(Metric::find("ppl_").is_err());
}

#[test]
fn latency_metric_is_found_by_its_id() {
    let found = Metric::find("speedup:seq=512:batch=16").unwrap();
    let prompt = PromptName { length: 512, batch: 16, decode: None };
    assert_eq!(found, SPEEDUP.metric().at_prompt(prompt));
    assert_eq!((found.label.as_str(), found.unit, found.family()), ("512×16", Unit::Times, "speedup"));
    assert_eq!((found.prompt(), SPEEDUP.metric().prompt()), (Some(prompt), None));
    let decoded = Metric::find("decode_tps:seq=512:batch=16:new=64").unwrap();
    assert_eq!(decoded, DECODE.metric().at_prompt(PromptName { decode: Some(64), ..prompt }));
    assert_eq!((decoded.label.as_str(), decoded.family()), ("512×16+64", "decode_tps"));
    assert!(decoded.is_latency() && Metric::find("decode_tps:seq=512:batch=16:new=").is_err());
    assert_eq!(found.without_prompt(), SPEEDUP.metric());
    assert!(found.is_latency() && MEMORY_SIZE.metric().is_latency() && !ACCURACY.metric().is_latency());
}

#[test]
fn tasks_and_texts_follow_the_column_order_of_the_paper() {
    assert_eq!(tasks().len(), 9);
    assert_eq!((tasks()[0], tasks()[8]), ("arc_easy", "race"));
    assert_eq!(texts(), ["ppl_wikitext2", "ppl_c4", "ppl_ptb"]);
}

#[test]
fn metric_of_a_harness_task_is_found_by_its_id() {
    let metric = Metric::defined("group::t(shots=5)", "perplexity", "none");
    assert_eq!(Metric::find(&metric.id).unwrap(), metric);
    assert_eq!((metric.label.as_str(), metric.direction), ("group::t(shots=5) perplexity", Direction::Lower));
    assert!(metric.is_defined() && metric.siblings().is_empty() && metric.text().is_none() && metric != TEXT.metric());
    assert_eq!(Metric::defined("t", "exact_match", "strict").label, "t exact_match,strict");
    assert!(Metric::find("t/none,none").is_err());
}

#[test]
fn metric_values_are_compared_as_printed() {
    assert_eq!(Metric::round_to_printed(73.333_333_333_333_33, 2), Metric::round_to_printed(73.333_333_333_333_31, 2));
    assert_eq!(Metric::round_to_printed(2.9, 2), Metric::round_to_printed(2.900_000_015, 2));
    assert!(Metric::round_to_printed(2.90, 2) < Metric::round_to_printed(2.91, 2));
    assert_eq!(Metric::round_to_printed(2.51e7, 2), 2.51e7);
}
