use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use super::*;

fn read_files(folder: &Path) -> BTreeMap<String, String> {
    let mut names = Vec::new();
    list_files(folder, "", &mut names).unwrap();
    names.into_iter().map(|name| (name.clone(), fs::read_to_string(folder.join(name)).unwrap())).collect()
}

fn expected_files(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

fn publish(output: &OutputFolder, pairs: &[(&str, &str)]) -> Result<()> {
    let draft = output.stage().unwrap();
    for (name, text) in pairs {
        fs::create_dir_all(draft.path().join(name).parent().unwrap()).unwrap();
        fs::write(draft.path().join(name), text).unwrap();
    }
    draft.publish()
}

fn list_siblings(output: &OutputFolder) -> Vec<String> {
    let all = fs::read_dir(parent_folder(output.path())).unwrap();
    all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn stale_files_are_removed_and_user_files_are_kept() {
    let root = tempfile::tempdir().unwrap();
    let output = OutputFolder::new(root.path().join("a/out"), "results");
    publish(&output, &[("one", "1"), ("both", "1"), ("lm_eval/old", "1"), ("lm_eval/both", "1")]).unwrap();
    fs::create_dir_all(path_in("notes/deep", output.path())).unwrap();
    for name in ["mine", "lm_eval/mine", "notes/deep/mine"] {
        fs::write(path_in(name, output.path()), "mine").unwrap();
    }
    #[cfg(unix)]
    std::os::unix::fs::symlink("mine", path_in("link", output.path())).unwrap();
    // A file that was modified after this program wrote it belongs to the user.
    fs::write(path_in("one", output.path()), "changed").unwrap();
    publish(&output, &[("both", "2"), ("lm_eval/both", "2"), ("two", "2")]).unwrap();
    let mut expected = expected_files(&[
        ("both", "2"),
        ("two", "2"),
        ("lm_eval/both", "2"),
        ("mine", "mine"),
        ("lm_eval/mine", "mine"),
        ("notes/deep/mine", "mine"),
        ("one", "changed"),
    ]);
    if cfg!(unix) {
        expected.insert("link".into(), "mine".into());
        assert!(path_in("link", output.path()).symlink_metadata().unwrap().file_type().is_symlink());
    }
    assert_eq!(read_files(output.path()), expected);
    assert_eq!(list_siblings(&output), ["out"], "temporary files remain");
}

fn path_in(name: &str, output: &Path) -> PathBuf {
    output.join(name)
}

#[test]
fn conflict_with_a_user_file_is_rejected_without_changes() {
    let root = tempfile::tempdir().unwrap();
    let output = OutputFolder::new(root.path().join("out"), "results");
    publish(&output, &[("table", "1"), ("lm_eval/a", "1")]).unwrap();
    output.check(&owned_names(&["table", "lm_eval/a", "new"])).unwrap();
    fs::write(path_in("table", output.path()), "2").unwrap();
    fs::write(path_in("lm_eval/mine", output.path()), "mine").unwrap();
    fs::write(path_in("file", output.path()), "mine").unwrap();
    fs::create_dir(path_in("folder", output.path())).unwrap();
    let before = read_files(output.path());
    for (name, found) in [
        ("table", "a file that has changed since ghostlab wrote it"),
        ("lm_eval/mine", "a file that ghostlab did not write"),
        ("file/below", "a file that ghostlab did not write"),
        ("folder", "a folder"),
    ] {
        for error in [
            output.check(&owned_names(&[name])).unwrap_err(),
            publish(&output, &[(name, "3"), ("new", "3")]).unwrap_err(),
        ] {
            let text = error.to_string();
            assert!(error.exit_code() == 2 && text.contains(found), "{name}: {text}");
            assert!(text.contains(name.split("/below").next().unwrap()), "{text}");
        }
        assert_eq!(read_files(output.path()), before, "{name}");
    }
    assert_eq!(list_siblings(&output), ["out"]);
    let model = OutputFolder::new(output.path(), "a model");
    assert!(model.check(&[]).unwrap_err().to_string().contains("a folder that contains results"));
    // A folder without a manifest belongs to the user.
    let theirs = OutputFolder::new(root.path().join("theirs"), "results");
    fs::create_dir(theirs.path()).unwrap();
    fs::write(theirs.path().join("table"), "mine").unwrap();
    let error = theirs.check(&owned_names(&["table"])).unwrap_err().to_string();
    assert!(error.contains("earlier version"), "{error}");
    publish(&theirs, &[("other", "1")]).unwrap();
    assert_eq!(read_files(theirs.path()), expected_files(&[("other", "1"), ("table", "mine")]));
}

fn owned_names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()
}

#[test]
fn put_replaces_the_named_file_and_keeps_others() {
    let root = tempfile::tempdir().unwrap();
    let output = OutputFolder::new(root.path().join("reports"), "results");
    put(&output, "1").unwrap();
    fs::write(output.path().join("mine"), "mine").unwrap();
    put(&output, "2").unwrap();
    assert_eq!(read_files(output.path()), expected_files(&[("index.html", "2"), ("mine", "mine")]));
    // The process may be killed between writing the manifest and writing the file, so the manifest lists both contents.
    let mut manifest = Manifest::read(output.path());
    manifest.add("index.html", sha256::of_bytes("3"));
    manifest.write(output.path()).unwrap();
    put(&output, "4").unwrap();
    fs::write(output.path().join("index.html"), "changed").unwrap();
    assert!(put(&output, "5").unwrap_err().to_string().contains("has changed since"));
    assert_eq!(read_files(output.path())["index.html"], "changed");
}

#[test]
fn dropped_draft_leaves_the_folder_unchanged() {
    let root = tempfile::tempdir().unwrap();
    let output = OutputFolder::new(root.path().join("out"), "results");
    publish(&output, &[("one", "1")]).unwrap();
    let draft = output.stage().unwrap();
    fs::write(draft.path().join("two"), "half").unwrap();
    drop(draft);
    assert_eq!(read_files(output.path()), expected_files(&[("one", "1")]));
    assert_eq!(list_siblings(&output), ["out"]);
}

#[test]
fn crash_leftovers_are_removed_and_user_files_are_kept() {
    let root = tempfile::tempdir().unwrap();
    let output = OutputFolder::new(root.path().join("out"), "results");
    publish(&output, &[("one", "1")]).unwrap();
    let killed = Owner { pid: 99_999_999, system: Some("another".into()), ..Owner::current() };
    let leftover =
        |count: u32, ending: &str| swap::sibling_path(output.path(), &format!("{}.{count}", killed.tag()), ending);
    // `half` is an incomplete draft with a hard link to a user file. `old` is an output folder that a finished draft
    // has replaced.
    let half = leftover(0, swap::DRAFT_SUFFIX);
    let old = leftover(1, swap::DRAFT_SUFFIX);
    fs::create_dir(&half).unwrap();
    fs::write(half.join(swap::DRAFT_MARKER), "").unwrap();
    fs::write(half.join("two"), "half").unwrap();
    fs::write(output.path().join("mine"), "mine").unwrap();
    fs::hard_link(output.path().join("mine"), half.join("mine")).unwrap();
    fs::create_dir_all(old.join("notes")).unwrap();
    for (name, text) in [("one", "0"), ("notes/mine", "mine"), ("late", "mine")] {
        fs::write(old.join(name), text).unwrap();
    }
    Manifest::new(&old, &["one".to_owned()], "results").unwrap().write(&old).unwrap();
    // The folder does not have the name of a draft, so it belongs to the user.
    fs::create_dir(root.path().join(".out.5.part")).unwrap();
    drop(output.stage().unwrap());
    assert_eq!(list_siblings(&output).len(), 4, "recent files of unknown processes were removed");
    let long_ago = SystemTime::now() - Duration::from_secs(1200);
    for folder in [&half, &old] {
        fs::File::open(folder).unwrap().set_modified(long_ago).unwrap();
    }
    drop(output.stage().unwrap());
    let mut left = list_siblings(&output);
    left.sort();
    assert_eq!(left, [".out.5.part", "out"]);
    assert_eq!(
        read_files(output.path()),
        expected_files(&[("one", "1"), ("mine", "mine"), ("notes/mine", "mine"), ("late", "mine")])
    );
    // Simulate a kill between the two renames, when the output folder does not exist.
    fs::rename(output.path(), leftover(2, swap::REPLACED_SUFFIX)).unwrap();
    drop(output.stage().unwrap());
    assert_eq!(read_files(output.path()).len(), 4, "the folder was not restored");
}

#[test]
fn file_in_place_of_a_folder_is_rejected() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("out"), "").unwrap();
    let error = OutputFolder::new(root.path().join("out"), "results").check(&[]).unwrap_err();
    assert!(error.exit_code() == 3 && error.to_string().contains("a path that is not a folder"), "{error}");
}

#[test]
fn failed_put_leaves_files_and_manifest_unchanged() {
    let root = tempfile::tempdir().unwrap();
    let output = OutputFolder::new(root.path().join("out"), "pages");
    output.put(&owned_pages(&[("index.html", "old")])).unwrap();
    fs::write(output.path().join("taken"), "mine").unwrap();
    let before = read_files(output.path());
    let error = output.put(&owned_pages(&[("index.html", "new"), ("taken/page.html", "new")])).unwrap_err();
    assert_eq!(error.exit_code(), 2, "{error}");
    assert_eq!(read_files(output.path()), before);
    assert!(Manifest::read(output.path()).lists("index.html", b"old"));
    assert!(!Manifest::read(output.path()).lists("index.html", b"new"));
}

fn owned_pages(pairs: &[(&str, &str)]) -> Vec<(String, Vec<u8>)> {
    pairs.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect::<Vec<_>>()
}

fn put(output: &OutputFolder, text: &str) -> Result<()> {
    output.put(&[("index.html".to_owned(), text.as_bytes().to_vec())])
}
