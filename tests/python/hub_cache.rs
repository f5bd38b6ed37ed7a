//! Tests for the Hugging Face cache, which is shared with `huggingface_hub`.

use super::*;

fn served_files() -> Vec<ServedFile> {
    vec![
        small("config.json", "{\"a\": 1}\n"),
        large("sub/model.safetensors", content(5000)),
        large("b/copy.bin", content(5000)),
    ]
}

fn wanted_files() -> RepoFiles {
    let files = served_files().iter().map(|file| FilePattern::required(&*file.name)).collect();
    RepoFiles { source: Source::parse("o/n").unwrap(), files }
}

fn hub_settings(endpoint: &str, cache: &Path, offline: bool) -> HubSettings {
    HubSettings::from_vars(&|name: &str| match name {
        "HF_ENDPOINT" => Some(endpoint.into()),
        "HF_HUB_CACHE" => Some(cache.into()),
        "HF_TOKEN" => Some(TOKEN.into()),
        "HF_HUB_OFFLINE" if offline => Some("1".into()),
        _ => None,
    })
    .unwrap()
}

const DOWNLOAD: &str = "
import sys
from huggingface_hub import hf_hub_download
for name in sys.argv[2:]:
    print(hf_hub_download('o/n', name, local_files_only=sys.argv[1] == 'local'))
";

/// Reads the folder of the repository in a cache. Returns the target of each link and the bytes of each file, keyed by
/// path.
fn read_layout(cache: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![cache.join("models--o--n")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            let path = entry.path();
            let kind = entry.file_type().unwrap();
            let name = path.strip_prefix(cache).unwrap().to_owned();
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_symlink() {
                let target = fs::read_link(&path).unwrap();
                found.insert(name, target.to_string_lossy().into_owned().into_bytes());
            } else {
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    found
}

#[test]
fn python_and_ghostlab_share_the_hub_cache() {
    let Some(python) = python() else { return };
    let server = FakeHub::start("o/n", served_files(), no_fault());
    let ours = TempDir::new().unwrap();
    let theirs = TempDir::new().unwrap();
    let names: Vec<String> = served_files().into_iter().map(|file| file.name).collect();

    let hub = Hub::new(hub_settings(&server.address, ours.path(), false));
    let stop = AtomicBool::new(false);
    let plan = hub.plan(&[wanted_files()], &Lock::default(), &SilentReporter, &stop).unwrap();
    assert!(hub.fetch(&plan, None, &SilentReporter, &stop).unwrap().failures.is_empty());
    let cache = theirs.path().to_str().unwrap();
    run(&python, &download_arguments(&names, "net"), &[("HF_ENDPOINT", &server.address), ("HF_HUB_CACHE", cache)]);
    assert_eq!(read_layout(ours.path()), read_layout(theirs.path()));
    // Check only for a subset, because Python may remove locks that are not in use.
    assert!(list_locks(theirs.path()).is_subset(&list_locks(ours.path())), "both libraries must use the same locks");

    // Run both programs offline, each on the cache that the other one wrote.
    server.forget();
    let cache = ours.path().to_str().unwrap();
    let printed = run(
        &python,
        &download_arguments(&names, "local"),
        &[("HF_ENDPOINT", &server.address), ("HF_HUB_CACHE", cache)],
    );
    for (path, file) in printed.lines().zip(served_files()) {
        assert!(
            Path::new(path).starts_with(ours.path().canonicalize().unwrap())
                || Path::new(path).starts_with(ours.path()),
            "{path}"
        );
        assert_eq!(fs::read(path).unwrap(), file.content);
    }
    assert_eq!(printed.lines().count(), 3);
    let hub = Hub::new(hub_settings(&server.address, theirs.path(), true));
    let plan = hub.plan(&[wanted_files()], &Lock::default(), &SilentReporter, &stop).unwrap();
    assert!(plan.is_complete() && plan.repos[0].commit.as_str() == COMMIT);
    assert!(server.requests().is_empty());
    // `huggingface_hub` finds no problems in the cache written by this program.
    let scan = "from huggingface_hub import scan_cache_dir as s; i = s(); print(len(i.warnings), [r.repo_id for r in i.repos], sorted(f.file_name for r in i.repos for v in r.revisions for f in v.files))";
    let cache = ours.path().to_str().unwrap();
    let scanned = run(&python, &["-c", scan], &[("HF_HUB_CACHE", cache)]);
    assert_eq!(scanned.trim(), "0 ['o/n'] ['config.json', 'copy.bin', 'model.safetensors']");
}

fn download_arguments<'a>(names: &'a [String], mode: &'static str) -> Vec<&'a str> {
    ["-c", DOWNLOAD, mode].into_iter().chain(names.iter().map(String::as_str)).collect::<Vec<_>>()
}

fn list_locks(cache: &Path) -> BTreeSet<std::ffi::OsString> {
    fs::read_dir(cache.join(".locks/models--o--n"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name())
        .collect()
}
