//! Properties of the machine and of this process (layer 0 of the architecture).

use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::time::SystemTime;

use serde::Serialize;
use serde_json::{Value, json};

use crate::clock;
use crate::files::{self, owner};
use crate::model::{DeviceName, Gpu};

/// Properties of a machine that can affect a result or a timing.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    pub os: &'static str,
    pub arch: &'static str,
    /// CPU model, or `None` if the system does not report it.
    pub cpu: Option<String>,
    /// Models of all GPUs in the machine, whether used or not, or `None` if the drivers report none.
    pub gpu: Option<String>,
    pub threads: usize,
    /// Instruction sets that determine which kernels run, and therefore the last digits of results.
    pub cpu_features: Vec<&'static str>,
}

impl Machine {
    pub fn current() -> Self {
        Self {
            os: std::env::consts::OS,
            arch: std::env::consts::ARCH,
            cpu: read_cpu_model(),
            gpu: Some(read_gpu_models(Path::new(NVIDIA_GPUS_FOLDER)).join(", ")).filter(|models| !models.is_empty()),
            threads: rayon::current_num_threads(),
            cpu_features: detect_cpu_features(),
        }
    }
}

/// Returns the identity of the machine for latency measurements: its host name and everything that determines its
/// speed. It includes `device`, so two GPUs in one host count as two machines.
pub fn identity(device: DeviceName) -> Value {
    let Machine { cpu, threads, .. } = Machine::current();
    json!({"host": owner::host(), "cpu": cpu, "gpu": build_gpu_identity(device, device.gpu()), "threads": threads})
}

/// Returns the identity of a GPU: its device name, model and serial number. Returns null for the CPU.
fn build_gpu_identity(device: DeviceName, gpu: Option<Gpu>) -> Value {
    if device == DeviceName::Cpu {
        return Value::Null;
    }
    let Gpu { model, serial } = gpu.unwrap_or(Gpu { model: None, serial: None });
    json!({"device": device.to_string(), "model": model, "serial": serial})
}

/// Formats the device and the number of threads in a machine's [`identity`] for display.
pub fn describe(identity: &Value) -> String {
    let cpu = identity["cpu"].as_str();
    let gpu = &identity["gpu"];
    let processor = match gpu["model"].as_str().or_else(|| gpu["device"].as_str()) {
        Some(model) if gpu["device"] != model => format!("{model} ({})", gpu["device"].as_str().unwrap_or_default()),
        Some(device) => device.to_owned(),
        None => cpu.unwrap_or(std::env::consts::ARCH).to_owned(),
    };
    format!("{processor}, {} threads", identity["threads"])
}

/// Directory in which the NVIDIA driver creates one subdirectory per GPU.
const NVIDIA_GPUS_FOLDER: &str = "/proc/driver/nvidia/gpus";

/// Returns the GPU models that the driver lists in `folder`.
fn read_gpu_models(folder: &Path) -> Vec<String> {
    let folders = files::entries(folder).unwrap_or_default();
    folders.iter().filter_map(|gpu| read_field(gpu.join("information"), "Model")).collect()
}

/// Returns the Slurm job ID of this process: `45_1` for an array task, or `46` for a single job. Returns `None` outside
/// Slurm.
pub fn scheduler_job() -> Option<String> {
    read_job_id(|name| std::env::var(name).ok())
}

/// Reads the job ID from environment variables with `read_variable`. For an array task, it includes the task index,
/// because all tasks share the ID of the array.
fn read_job_id(read_variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let task = read_variable("SLURM_ARRAY_JOB_ID").zip(read_variable("SLURM_ARRAY_TASK_ID"));
    task.map(|(array, task)| format!("{array}_{task}")).or_else(|| read_variable("SLURM_JOB_ID"))
}

/// Returns the CPU model. The result is cached, because reading `/proc/cpuinfo` takes milliseconds.
fn read_cpu_model() -> Option<String> {
    static NAME: OnceLock<Option<String>> = OnceLock::new();
    NAME.get_or_init(|| read_field("/proc/cpuinfo", "model name")).clone()
}

fn detect_cpu_features() -> Vec<&'static str> {
    let mut features = Vec::new();
    #[cfg(target_arch = "x86_64")]
    for (name, is_supported) in [
        ("fma", std::arch::is_x86_feature_detected!("fma")),
        ("avx2", std::arch::is_x86_feature_detected!("avx2")),
        ("avx512f", std::arch::is_x86_feature_detected!("avx512f")),
    ] {
        if is_supported {
            features.push(name);
        }
    }
    features
}

/// Returns the value from the line `name: value` in a system file.
fn read_field(file: impl AsRef<Path>, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_string())
    })
}

/// Reads a number of kilobytes from a system file, and converts it to bytes.
fn read_kilobytes_as_bytes(file: &str, name: &str) -> Option<u64> {
    let text = read_field(file, name)?;
    Some(text.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

/// Returns the command line of this process for run records. The path of the program is reduced to its name. Other
/// paths are relative to the current directory if they are in it, and `~` replaces the home directory.
pub fn command_line() -> Vec<String> {
    let words: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    shorten_paths(&words, std::env::current_dir().ok().as_deref(), std::env::home_dir().as_deref())
}

fn shorten_paths(words: &[String], current: Option<&Path>, home: Option<&Path>) -> Vec<String> {
    let program = words.first().map(|word| word.rsplit(std::path::is_separator).next().unwrap_or(word).to_owned());
    program
        .into_iter()
        .chain(words.iter().skip(1).map(|word| replace_folder(&replace_folder(word, current, ""), home, "~/")))
        .collect()
}

fn replace_folder(word: &str, folder: Option<&Path>, replacement: &str) -> String {
    match folder.filter(|folder| folder.parent().is_some()) {
        Some(folder) => word.replace(&format!("{}/", folder.display()), replacement),
        None => word.to_owned(),
    }
}

/// Returns the memory in bytes that this process can still allocate within its limits and those of its cgroups. Returns
/// 8 GiB if the system does not report it.
pub fn free_memory() -> u64 {
    reported_free_memory().unwrap_or(8 << 30)
}

/// Returns the memory in bytes that this process can still allocate, or `None` if the system does not report it.
pub fn reported_free_memory() -> Option<u64> {
    let free = read_kilobytes_as_bytes("/proc/meminfo", "MemAvailable");
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let in_groups = cgroup_memory_left(&groups, Path::new("/sys/fs/cgroup"));
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let in_process = process_memory_left(&limits, |name| read_kilobytes_as_bytes("/proc/self/status", name));
    [free, in_groups, in_process].into_iter().flatten().min()
}

/// Returns the bytes left under the process limits (`ulimit -v`, `ulimit -d`), or `None` if there are no limits.
/// `limits` is the content of `/proc/self/limits`. `read_status` returns a field of `/proc/self/status` in bytes.
fn process_memory_left(limits: &str, read_status: impl Fn(&str) -> Option<u64>) -> Option<u64> {
    [("Max address space", "VmSize"), ("Max data size", "VmData")]
        .into_iter()
        .filter_map(|(limit, usage_field)| {
            let soft = limits.lines().find_map(|line| line.strip_prefix(limit))?.split_whitespace().next()?;
            Some(soft.parse::<u64>().ok()?.saturating_sub(read_status(usage_field)?))
        })
        .min()
}

/// Returns the bytes left under the limits of the cgroups and their parents, or `None` if there are no limits. `groups`
/// is the content of `/proc/self/cgroup`, with lines of the form `number:controllers:path`. `root` is the mount point
/// of the cgroup file system.
fn cgroup_memory_left(groups: &str, root: &Path) -> Option<u64> {
    groups
        .lines()
        .filter_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let (base, files) = match controllers {
                "" => (root.to_owned(), ["memory.max", "memory.current", ""]),
                _ if controllers.split(',').any(|name| name == "memory") => {
                    (root.join("memory"), ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_"])
                }
                _ => return None,
            };
            let process_group = base.join(path.trim_start_matches('/'));
            // In a container, the path may be the one on the host. The topmost directory is then the cgroup of the
            // container itself.
            process_group
                .ancestors()
                .take_while(|group| group.starts_with(&base))
                .filter_map(|group| one_cgroup_memory_left(group, files))
                .min()
        })
        .min()
}

/// Returns the bytes left in one cgroup. The page cache counts as free, because the kernel can reclaim it.
fn one_cgroup_memory_left(group: &Path, [limit, used, prefix]: [&str; 3]) -> Option<u64> {
    let limit = read_number(&group.join(limit))?;
    let used = read_number(&group.join(used))?;
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let cached = ["inactive_file ", "active_file "].map(|name| {
        stat.lines()
            .find_map(|line| line.strip_prefix(prefix)?.strip_prefix(name)?.trim().parse::<u64>().ok())
            .unwrap_or(0)
    });
    Some(limit.saturating_sub(used.saturating_sub(cached.iter().sum())))
}

fn read_number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse::<u64>().ok()
}

/// Returns the peak resident memory of this process in bytes, or `None` if the system does not report it.
pub fn peak_memory() -> Option<u64> {
    read_kilobytes_as_bytes("/proc/self/status", "VmHWM")
}

pub fn program_version() -> String {
    let commit = env!("GHOSTLAB_COMMIT").get(..12).unwrap_or_default();
    let dirty = if env!("GHOSTLAB_DIRTY") == "true" { " with changes" } else { "" };
    format!("ghostlab {} {commit}{dirty}", env!("CARGO_PKG_VERSION")).trim_end().to_owned()
}

/// Returns the provenance of an artifact: version, commit and command line of this program, the machine, the time and
/// the peak memory.
pub fn provenance() -> Value {
    let commit = option_env!("GHOSTLAB_COMMIT").filter(|commit| !commit.is_empty());
    json!({
        "ghostlab": env!("CARGO_PKG_VERSION"),
        "commit": commit,
        "dirty": option_env!("GHOSTLAB_DIRTY") == Some("true"),
        "command": command_line(),
        "machine": Machine::current(),
        "finished": clock::format_utc(SystemTime::now()),
        "peak_memory_bytes": peak_memory(),
    })
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_command_line_hides_local_folders() {
        let words = ["/opt/bin/ghostlab", "run", "/home/x/checkout/grid.yaml", "--results=/home/x/out", "/srv/y"];
        let words = words.map(str::to_owned).to_vec();
        let current = Path::new("/home/x/checkout");
        let home = Path::new("/home/x");
        let shortened = shorten_paths(&words, Some(current), Some(home));
        assert_eq!(shortened, ["ghostlab", "run", "grid.yaml", "--results=~/out", "/srv/y"]);
        assert_eq!(shorten_paths(&words, Some(Path::new("/")), None)[1..], words[1..]);
    }

    #[test]
    fn array_task_id_includes_the_array_index() {
        // The job ID of the last task in an array equals the array ID. A single job has only a job ID.
        let task = [("SLURM_JOB_ID", "45"), ("SLURM_ARRAY_JOB_ID", "45"), ("SLURM_ARRAY_TASK_ID", "1")];
        assert_eq!(job_id(&task).as_deref(), Some("45_1"));
        assert_eq!(job_id(&[("SLURM_JOB_ID", "46")]).as_deref(), Some("46"));
        assert_eq!(job_id(&[]), None);
    }

    fn job_id(set: &[(&str, &str)]) -> Option<String> {
        read_job_id(|name| Some(set.iter().find(|(key, _)| *key == name)?.1.to_owned()))
    }

    #[test]
    fn machine_identity_distinguishes_gpus() {
        let first = machine_of(DeviceName::Cuda(0), Some(gpu("ab")));
        // The identity must differ for a different index, for a different GPU at the same index (as with
        // CUDA_VISIBLE_DEVICES), for an unknown GPU, and for the CPU.
        let others = [
            machine_of(DeviceName::Cuda(1), Some(gpu("ab"))),
            machine_of(DeviceName::Cuda(0), Some(gpu("cd"))),
            machine_of(DeviceName::Cuda(0), None),
            machine_of(DeviceName::Cpu, None),
        ];
        assert!(others.iter().all(|other| *other != first));
        assert_eq!(describe(&first), "NVIDIA H100 80GB HBM3 (cuda:0), 8 threads");
        assert_eq!(describe(&others[2]), "cuda:0, 8 threads");
        assert_eq!(describe(&others[3]), "EPYC, 8 threads");
        assert_eq!(identity(DeviceName::Cpu)["gpu"], Value::Null, "a CPU identity has no GPU");
    }

    fn machine_of(device: DeviceName, gpu: Option<Gpu>) -> Value {
        json!({"host": "h", "cpu": "EPYC", "gpu": build_gpu_identity(device, gpu), "threads": 8})
    }

    fn gpu(serial: &str) -> Gpu {
        Gpu { model: Some("NVIDIA H100 80GB HBM3".into()), serial: Some(serial.into()) }
    }

    #[test]
    fn gpu_models_are_read_from_driver_files() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read_gpu_models(&folder.path().join("none")).is_empty());
        for (address, model) in [("0000:65:00.0", "NVIDIA H100 80GB HBM3"), ("0000:17:00.0", "NVIDIA RTX A5000")] {
            let device_folder = folder.path().join(address);
            fs::create_dir(&device_folder).unwrap();
            // Write the file in the format of the NVIDIA driver.
            let text = format!("Model: \t\t {model}\nIRQ:   \t\t 16\nGPU UUID: \t GPU-1\nBus Type: \t PCIe\n");
            fs::write(device_folder.join("information"), text).unwrap();
        }
        assert_eq!(read_gpu_models(folder.path()), ["NVIDIA RTX A5000", "NVIDIA H100 80GB HBM3"]);
    }

    #[test]
    fn free_and_peak_memory_are_reported() {
        assert!(free_memory() > 1 << 20);
        assert!(peak_memory().unwrap() > 1 << 16);
    }

    #[test]
    fn lowest_process_limit_determines_free_memory() {
        let used =
            |name: &str| [("VmSize", 700), ("VmData", 100)].iter().find(|(key, _)| *key == name).map(|(_, n)| *n);
        assert_eq!(process_memory_left(&limits_text("unlimited", "unlimited"), used), None);
        assert_eq!(process_memory_left(&limits_text("1000", "unlimited"), used), Some(300));
        assert_eq!(process_memory_left(&limits_text("1000", "350"), used), Some(250));
        assert_eq!(process_memory_left(&limits_text("600", "unlimited"), used), Some(0), "usage exceeds the limit");
        assert_eq!(process_memory_left("", used), None);
    }

    /// Formats limits like the lines in `/proc/self/limits`.
    fn limits_text(space: &str, data: &str) -> String {
        format!(
            "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max cpu time              unlimited            unlimited            seconds   \n\
                 Max data size             {data:<20} unlimited            bytes     \n\
                 Max address space         {space:<20} 9000                 bytes     \n"
        )
    }

    #[test]
    fn lowest_cgroup_limit_determines_free_memory() {
        let root = tempfile::tempdir().unwrap();
        write_group(root.path(), "a", &[("memory.max", "5000\n"), ("memory.current", "4500\n")]);
        write_group(root.path(), "a/b", &[("memory.max", "max\n"), ("memory.current", "400\n")]);
        write_group(root.path(), "c", &[("memory.max", "3000\n"), ("memory.current", "1000\n")]);
        write_group(root.path(), "a", &[("memory.stat", "anon 9\ninactive_file 1000\nactive_file 500\n")]);
        assert_eq!(
            cgroup_memory_left("0::/a/b\n", root.path()),
            Some(2000),
            "4500 of 5000 bytes are used, including 1500 of cached files"
        );
        assert_eq!(cgroup_memory_left("0::/c\n", root.path()), Some(2000));
        assert_eq!(cgroup_memory_left("0::/elsewhere/x\n", root.path()), None);
        let limits = [("memory.limit_in_bytes", "900\n"), ("memory.usage_in_bytes", "300\n")];
        write_group(root.path(), "memory/d", &limits);
        write_group(root.path(), "memory/d", &[("memory.stat", "inactive_file 1\ntotal_inactive_file 100\n")]);
        assert_eq!(cgroup_memory_left("9:name=systemd:/\n4:cpu,memory:/d\n0::/c\n", root.path()), Some(700));
        write_group(root.path(), "memory", &[("memory.limit_in_bytes", "600\n"), ("memory.usage_in_bytes", "0\n")]);
        assert_eq!(cgroup_memory_left("4:memory:/outside/of/this\n", root.path()), Some(600));
    }

    fn write_group(root: &Path, group: &str, files: &[(&str, &str)]) {
        let folder = root.join(group);
        fs::create_dir_all(&folder).unwrap();
        files.iter().for_each(|(name, text)| fs::write(folder.join(name), text).unwrap());
    }
}
