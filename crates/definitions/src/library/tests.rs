use super::*;

fn library(files: &[(&str, &str)]) -> (tempfile::TempDir, Result<Library>) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let library = Library::from_folders(&[folder.path()]);
    (folder, library)
}

const BASE: &str = "dataset_path: d\ntest_split: test\noutput_type: multiple_choice\ndoc_to_text: '{{q}}'\ndoc_to_target: 0\n\
    doc_to_choice: [a, b]\ntag: [letters]\n";

#[test]
fn includes_are_merged_by_key_and_null_clears_a_key() {
    let files = [
        ("base", "metric_list: [{metric: acc}, {metric: acc_norm}]\ndescription: old\nnum_fewshot: 5\n"),
        ("more", "description: new\ninclude: base\n"),
        ("a.yaml", "include: [more]\ntask: a\nmetric_list: [{metric: acc}]\nnum_fewshot: null\n"),
        ("twice.yaml", "include: [base, more]\ntask: twice\n"),
    ];
    let (folder, _) = library(&files);
    let node = read_with_includes(&folder.path().join("a.yaml")).unwrap();
    assert_eq!(node.get("description").unwrap().text(), Some("new"));
    assert!(node.get("num_fewshot").unwrap().is_null());
    assert_eq!(node.get("metric_list").unwrap().plain().unwrap().as_list().unwrap().len(), 1);
    let error = read_with_includes(&folder.path().join("twice.yaml")).unwrap_err().to_string();
    assert!(error.contains("includes a file twice") && error.contains("twice.yaml"), "{error}");
}

#[test]
fn groups_and_tags_expand_to_tasks_with_overrides() {
    let base = format!("{BASE}metric_list: [{{metric: acc}}]\n");
    let group = "group: g\nnum_fewshot: 2\ntask:\n  - letters\n  - task: c\n    num_fewshot: 3\n  - group: inner\n    task:\n      \
        - {task: new, dataset_path: e, test_split: test, doc_to_text: x, doc_to_target: y}\n\
        aggregate_metric_list: [{metric: acc, weight_by_size: false, filter_list: none}]\n";
    let files = [
        ("b.yaml", format!("task: b\n{base}")),
        ("a.yaml", format!("task: a\n{base}")),
        ("z.yaml", format!("task: a\n{base}num_fewshot: 9\n")),
        ("c.yaml", format!("task: c\n{}", base.replace("tag: [letters]\n", ""))),
        ("g.yaml", group.to_owned()),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let (_folder, library) = library(&files);
    let library = library.unwrap();
    let selection = library.select(&["g"]).unwrap();
    let tasks: Vec<_> = selection.tasks.iter().map(|task| (task.name.as_str(), task.shots)).collect();
    assert_eq!(tasks, [("a", Some(2)), ("b", Some(2)), ("c", Some(3)), ("g::inner::new", Some(2))]);
    assert_eq!(selection.groups[0].tasks, ["a", "b", "c", "g::inner::new"]);
    assert_eq!(selection.groups[1].name, "g::inner");
    let metric = GroupMetric { metric: "acc".into(), filters: Some(vec!["none".into()]), by_size: false };
    assert_eq!(selection.groups[0].metrics, [metric]);
    assert_eq!(library.select(&["letters"]).unwrap().tasks.len(), 2);
    assert!(library.select(&["g", "a"]).unwrap_err().to_string().contains("twice"));
    assert!(library.select(&["lettters"]).unwrap_err().to_string().contains("letters"));
}

#[test]
fn group_that_contains_itself_is_rejected() {
    let (_folder, library) = library(&[("g.yaml", "group: g\ntask: [g]\n")]);
    assert!(library.unwrap().select(&["g"]).unwrap_err().to_string().contains("contains itself"));
}

#[test]
fn nested_groups_with_too_many_members_are_rejected() {
    let mut files: Vec<(String, String)> = (0..28)
        .map(|index| (format!("g{index}.yaml"), format!("group: g{index}\ntask: [g{0}, g{0}]\n", index + 1)))
        .collect();
    files.push(("g28.yaml".to_owned(), "group: g28\ntask: [t]\n".to_owned()));
    files.push(("t.yaml".to_owned(), format!("task: t\n{BASE}")));
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let (_folder, library) = library(&files);
    for selected in [library.as_ref().unwrap().select(&["g0"]), library.as_ref().unwrap().all()] {
        let error = selected.unwrap_err().to_string();
        assert!(error.contains(".yaml:2") && error.contains("at most 20000 members"), "{error}");
    }
}
