//! Tests with full disks and with caches that are not writable.

use super::*;

/// Runs the child in its own mounted file system. Returns `None` if mounting is not permitted.
#[cfg(target_os = "linux")]
fn run_in_own_file_system(mount: &str, server: &FakeHub, cache: &Path) -> Option<String> {
    let wrapper = ["unshare", "--map-root-user", "--mount"];
    let probe =
        Command::new(wrapper[0]).args(&wrapper[1..]).args(["sh", "-c", mount]).env("HUB_TEST_CACHE", cache).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: mounting a file system is not permitted");
        return None;
    }
    let output = spawn_child(&format!("{mount} &&"), server, cache, &wrapper).wait_with_output().unwrap();
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(target_os = "linux")]
#[test]
fn full_disk_is_reported_before_and_during_a_download() {
    let cache = TempDir::new().unwrap();
    let file = large("f", content(30 << 20));
    let server = FakeHub::start(REPO, vec![file.clone()], no_fault());
    let Some(output) = run_in_own_file_system(&mount_command(80), &server, cache.path()) else { return };
    assert!(output.contains("ENDED 3") && output.contains("not enough disk space"), "{output}");
    // The message lists the reserve separately, because the file alone would fit.
    assert!(output.contains("0.10 GB free: 0.03 GB to download and 0.07 GB in reserve"), "{output}");
    assert!(get_requests(&server, &file).is_empty());

    // At first there is enough space, but another process fills it during the download.
    let fault =
        content_fault(&file, |_, _, answer| Answer { stall: Some((1 << 20, Duration::from_secs(3))), ..answer });
    let server = FakeHub::start(REPO, vec![file], fault);
    let filler = "{ (sleep 1; cat /dev/zero > \"$HUB_TEST_CACHE/filler\" 2> /dev/null) & }";
    let Some(output) = run_in_own_file_system(&format!("{} && {filler}", mount_command(120)), &server, cache.path())
    else {
        return;
    };
    assert!(output.contains("ENDED 3") && output.contains("free some disk space"), "{output}");
}

fn mount_command(megabytes: u32) -> String {
    format!("mount -t tmpfs -o size={megabytes}m none \"$HUB_TEST_CACHE\"")
}

#[cfg(target_os = "linux")]
#[test]
fn read_only_cache_is_reported_but_still_readable() {
    let file = large("f", content(100));
    let cache = TempDir::new().unwrap();
    let server = FakeHub::start(REPO, vec![file], no_fault());
    let mount = "mount --bind \"$HUB_TEST_CACHE\" \"$HUB_TEST_CACHE\" && mount -o remount,ro,bind \"$HUB_TEST_CACHE\"";
    let Some(output) = run_in_own_file_system(mount, &server, cache.path()) else { return };
    assert!(output.contains("ENDED 3") && output.contains("in the hub's cache"), "{output}");
    fetch(&server, cache.path(), &["f"], &Lock::default()).fetched.unwrap();
    let Some(output) = run_in_own_file_system(mount, &server, cache.path()) else { return };
    assert!(output.contains("ENDED 0"), "{output}");
}
