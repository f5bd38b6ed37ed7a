//! Profile of a cluster, read from `slurm.yaml`.

use std::path::Path;

use serde::Deserialize;
use serde_saphyr::Spanned;

use super::options;
use crate::error::{Error, Result};
use crate::files::regular;
use crate::quantity::{Gigabytes, MAX_RETRIES, MAX_SECONDS};

/// Job options for a cluster, which supplement those derived from the plan.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SlurmProfile {
    pub partition: Option<String>,
    pub account: Option<String>,
    pub qos: Option<String>,
    pub constraint: Option<String>,
    /// Time limit in Slurm's notation, such as `4:00:00` or `2-00:00:00`, or a number of minutes.
    pub time: Option<String>,
    pub cpus: Option<usize>,
    /// Maximum number of workers. `--workers` overrides it.
    pub workers: Option<usize>,
    /// GPU types available in the cluster. Jobs request the smallest type with enough memory for the plan.
    pub gpus: Vec<GpuType>,
    /// Idle timeout of a worker, in seconds.
    pub idle_exit: Option<u64>,
    /// Maximum number of times that a failed job is retried, counted over all workers.
    pub retries: Option<u32>,
    /// Names of the environment variables that are passed to jobs.
    pub export: Vec<String>,
    /// Additional sbatch options, one per entry.
    options: Vec<Spanned<String>>,
    /// Shell lines to run before the worker, such as `module load cuda`.
    pub setup: Vec<String>,
}

/// GPU type, named as in `--gres=gpu:TYPE:1`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuType {
    pub name: String,
    pub memory: Gigabytes,
}

impl SlurmProfile {
    /// Reads a cluster profile.
    ///
    /// # Errors
    /// Fails if the file is missing or contains unknown keys or invalid values.
    pub fn read(path: &Path) -> Result<Self> {
        let text = String::from_utf8_lossy(&regular::read(path)?).into_owned();
        let profile: Self = serde_saphyr::from_str(&text).map_err(|error| {
            Error::bad_input("cannot read the cluster profile")
                .at(path.display().to_string())
                .found(error.to_string())
                .hint("see docs/cluster.md for its keys")
        })?;
        let numbers = [
            ("cpus", 1, profile.cpus.map(|count| count as u64), u64::from(u16::MAX)),
            ("workers", 1, profile.workers.map(|count| count as u64), u64::from(u16::MAX)),
            ("idle_exit", 0, profile.idle_exit, MAX_SECONDS),
            ("retries", 0, profile.retries.map(u64::from), u64::from(MAX_RETRIES)),
        ];
        for (key, min, found, max) in numbers {
            if let Some(found) = found.filter(|found| !(min..=max).contains(found)) {
                return Err(Error::bad_input(format!("invalid `{key}` in the cluster profile"))
                    .at(path.display().to_string())
                    .expected(format!("{min} to {max}"))
                    .found(found.to_string()));
            }
        }
        for name in &profile.export {
            check_not_secret(name).map_err(|error| error.at(path.display().to_string()))?;
        }
        for entry in &profile.options {
            let at = format!("{}, line {}", path.display(), entry.referenced.line());
            options::split_entry(&entry.value).map_err(|error| error.at(at))?;
        }
        Ok(profile)
    }

    pub fn options(&self) -> Vec<String> {
        // Parsing cannot fail here, because invalid entries are rejected when the profile is read.
        self.options.iter().flat_map(|entry| options::split_entry(&entry.value).unwrap_or_default()).collect()
    }

    /// Returns the smallest GPU type with enough memory. Returns `None` if no types are configured.
    ///
    /// # Errors
    /// Fails if no type has enough memory.
    pub fn smallest_gpu_with(&self, memory_bytes: u64) -> Result<Option<&GpuType>> {
        let gigabytes = memory_bytes as f64 / 1e9;
        let fits = self.gpus.iter().filter(|gpu| gpu.memory.bytes() >= memory_bytes);
        match fits.min_by_key(|gpu| gpu.memory) {
            None if !self.gpus.is_empty() => {
                let largest = self.gpus.iter().map(|gpu| gpu.memory.bytes()).max().unwrap_or(0) as f64 / 1e9;
                Err(Error::missing("no GPU type in the cluster profile has enough memory for the largest backbone")
                    .expected(format!("{gigabytes:.1} GB"))
                    .found(format!("{largest:.1} GB at most"))
                    .hint("set --device-memory GB, so that workers load layers on demand"))
            }
            fit => Ok(fit),
        }
    }
}

/// Checks an entry of `export`: the name of an environment variable, without its value.
///
/// # Errors
/// Fails if the name suggests a secret, or if the entry contains a value.
fn check_not_secret(name: &str) -> Result<()> {
    let plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let upper = name.to_uppercase();
    let secret = ["TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "API_KEY"].iter().any(|word| upper.contains(word));
    if plain && !secret {
        return Ok(());
    }
    let refused = Error::bad_input("this variable cannot be passed to jobs")
        .found(format!("`{}`", name.split('=').next().unwrap_or_default()));
    Err(match secret {
        true => refused
            .expected("a variable that does not contain a secret")
            .hint("remove it: inputs are fetched before submission, so workers need no token"),
        false => refused
            .expected("the name of a variable, without a value")
            .hint("write only the name: its value is taken from the environment of `submit`"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<SlurmProfile> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slurm.yaml");
        std::fs::write(&path, text).unwrap();
        SlurmProfile::read(&path)
    }

    #[test]
    fn smallest_sufficient_gpu_is_requested() {
        let profile = read("gpus:\n  - {name: h100, memory: 80}\n  - {name: a30, memory: 24}\n").unwrap();
        for (bytes, name) in [(20_000_000_000, "a30"), (24_000_000_001, "h100")] {
            assert_eq!(profile.smallest_gpu_with(bytes).unwrap().map(|gpu| gpu.name.as_str()), Some(name));
        }
        let error = profile.smallest_gpu_with(81_000_000_000).unwrap_err().to_string();
        assert!(error.contains("81.0 GB") && error.contains("--device-memory"), "{error}");
        assert_eq!(SlurmProfile::default().smallest_gpu_with(1 << 40).unwrap(), None, "Slurm selects the GPU type");
    }

    #[test]
    fn unknown_keys_secrets_and_invalid_values_are_rejected() {
        for (text, word) in [
            ("partitoin: a", "partitoin"),
            ("export: [HF_TOKEN]", "HF_TOKEN"),
            ("export: ['A=b']", "`A`"),
            ("time: 4\noptions:\n  - --exclude=node7\n  - --comment=mine\n", "slurm.yaml, line 4"),
            ("options: [--no-requeue]", "`--no-requeue`"),
            ("idle_exit: 18446744073709551615", "idle_exit"),
            ("retries: 1000000", "retries"),
            ("workers: 0", "workers"),
            ("gpus: [{name: a, memory: .nan}]", "not a valid size"),
            ("gpus: [{name: a, memory: -1}]", "not a valid size"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.exit_code() == 2 && error.to_string().contains(word), "{error}");
        }
        assert_eq!(read("export: [HF_HOME]").unwrap().export, ["HF_HOME"]);
    }
}
