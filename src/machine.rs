//! The machine that a run is on, as far as it tells. Floor 0.

use std::fs;
use std::time::SystemTime;

use serde::Serialize;
use serde_json::{Value, json};

use crate::clock;

/// What of the machine can change a number or a time.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    pub os: &'static str,
    pub arch: &'static str,
    /// The processor's name; none where the system does not tell.
    pub cpu: Option<String>,
    /// None: all computing is done on the CPU.
    pub gpu: Option<String>,
    pub threads: usize,
    /// Instruction sets that decide which kernels run, and with them the last digits.
    pub cpu_features: Vec<&'static str>,
}

impl Machine {
    pub fn this() -> Self {
        Self {
            os: std::env::consts::OS,
            arch: std::env::consts::ARCH,
            cpu: field("/proc/cpuinfo", "model name"),
            gpu: None,
            threads: rayon::current_num_threads(),
            cpu_features: cpu_features(),
        }
    }
}

fn cpu_features() -> Vec<&'static str> {
    let mut features = Vec::new();
    #[cfg(target_arch = "x86_64")]
    for (name, has) in [
        ("fma", std::arch::is_x86_feature_detected!("fma")),
        ("avx2", std::arch::is_x86_feature_detected!("avx2")),
        ("avx512f", std::arch::is_x86_feature_detected!("avx512f")),
    ] {
        if has {
            features.push(name);
        }
    }
    features
}

/// A line `name: value` of one of the system's files.
fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let value = |line: &str| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_string())
    };
    text.lines().find_map(value)
}

fn kilobytes(file: &str, name: &str) -> Option<u64> {
    let text = field(file, name)?;
    Some(text.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

/// The command line, as well as it can be shown: a word need not be text.
pub fn command() -> Vec<String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// Bytes of memory that new work can take; 8 GiB where the system does not tell.
pub fn free_memory() -> u64 {
    told_free_memory().unwrap_or(8 << 30)
}

/// The same; none where the system does not tell.
pub fn told_free_memory() -> Option<u64> {
    kilobytes("/proc/meminfo", "MemAvailable")
}

/// The most bytes of memory that this process has held; none where the system does not tell.
pub fn peak_memory() -> Option<u64> {
    kilobytes("/proc/self/status", "VmHWM")
}

/// This program: name, version and the commit that it was built from.
pub fn program() -> String {
    let commit = env!("GHOSTLAB_COMMIT").get(..12).unwrap_or_default();
    let dirty = if env!("GHOSTLAB_DIRTY") == "true" { " with changes" } else { "" };
    format!("ghostlab {} {commit}{dirty}", env!("CARGO_PKG_VERSION")).trim_end().to_owned()
}

/// What the record of an artifact says of who made it.
pub fn signature() -> Value {
    let commit = option_env!("GHOSTLAB_COMMIT").filter(|commit| !commit.is_empty());
    json!({
        "ghostlab": env!("CARGO_PKG_VERSION"),
        "commit": commit,
        "dirty": option_env!("GHOSTLAB_DIRTY") == Some("true"),
        "command": command(),
        "machine": Machine::this(),
        "dtype": "f32",
        "finished": clock::utc(SystemTime::now()),
        "peak_memory_bytes": peak_memory(),
    })
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_tells_what_is_free_and_what_was_held() {
        assert!(free_memory() > 1 << 20);
        assert!(peak_memory().unwrap() > 1 << 16);
    }
}
