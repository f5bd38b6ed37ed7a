//! `ghostlab doctor`: reports which requirements are met, with hints on how to meet the others.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::answer::read_commands::{CheckItem, CheckStatus, DoctorAnswer};
use super::answer::{self, Answer};
use super::directories::{self, StoreArgs};
use super::terminal::{TextStyle, format_bytes};
use super::{doctor_model, requested_work, terminal};
use crate::artifact::{self, ExaminedInput};
use crate::error::{Error, Result};
use crate::files::{self, disk, parts};
use crate::grid::{InputList, InputRef};
use crate::hub::{FetchPlan, Hub, HubSettings};
use crate::linalg::amx::{self, AmxStatus};
use crate::machine::{self, Machine};
use crate::model::{DeviceName, Gpu};
use crate::quantity::pluralize;
use ghostlab_store::Store;

#[derive(Args)]
pub(super) struct Arguments {
    /// Artifact, `all`, grid file or model to check [default: only the machine].
    ///
    /// Artifacts have names such as `table2`. For a model folder or .gguf file, prints its architecture and memory
    /// requirements, and which criteria, recoveries and exports apply.
    target: Option<String>,
    /// Compare a model's logits between both engines and candle-transformers.
    ///
    /// The weights are loaded three times, one after the other.
    #[arg(long, requires = "target")]
    check: bool,
    /// Profile to check; `paper` needs the paper's models and data.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Override a grid value, e.g. `--set backbone=llama-3-8b`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Artifact folder [default: $GHOSTLAB_EXPERIMENTS, or experiments in the checkout].
    #[arg(long, value_name = "FOLDER")]
    experiments: Option<PathBuf>,
    #[command(flatten)]
    store: StoreArgs,
}

impl CheckItem {
    pub(super) fn new(
        status: CheckStatus,
        what: impl Into<String>,
        found: impl Into<String>,
        todo: impl Into<String>,
    ) -> Self {
        Self { status, what: what.into(), found: found.into(), todo: todo.into() }
    }

    pub(super) fn ok(what: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(CheckStatus::Good, what, found, "")
    }

    pub(super) fn note(what: impl Into<String>, found: impl Into<String>, todo: impl Into<String>) -> Self {
        Self::new(CheckStatus::Note, what, found, todo)
    }

    pub(super) fn missing(what: impl Into<String>, error: &Error) -> Self {
        Self::new(CheckStatus::Missing, what, error.one_line(), error.advice().unwrap_or_default())
    }

    /// Converts a result into a line of the report. An error becomes a note.
    pub(super) fn from_result(what: impl Into<String>, found: Result<String>) -> Self {
        match found {
            Ok(found) => Self::ok(what, found),
            Err(error) => Self::note(what, error.one_line(), error.advice().unwrap_or_default()),
        }
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let opened = arguments.store.open_read_only_or_empty(None);
    // There is no store to inspect if none is named and there is neither a checkout nor a home directory.
    let no_store = arguments.store.resolve(None).is_err();
    let store = opened.as_ref().ok();
    let model = arguments.target.as_deref().map(Path::new).filter(|path| parts::is_backbone(path));
    let needs = match &arguments.target {
        Some(target) if model.is_none() => {
            requested_work::read_target_inputs(target, arguments.profile.as_deref(), &arguments.overrides, || {
                directories::find_or_unpack_experiments(arguments.experiments.as_ref())
            })?
        }
        _ => Vec::new(),
    };
    if arguments.check && model.is_none() {
        let error = Error::bad_input("--check applies only to models").at(arguments.target.clone().unwrap_or_default());
        return Err(error.expected("a model folder or a .gguf file"));
    }
    let mut lines = model.map_or_else(|| Ok(Vec::new()), |model| doctor_model::check_model(model, arguments.check))?;
    let mut seen = BTreeSet::new();
    let all = needs.iter().flat_map(|list| list.needs.iter().map(move |need| (need, list)));
    let each = all.filter(|(need, _)| seen.insert((need.kind.label(), &need.name)));
    lines.extend(each.map(|(need, list)| check_input(need, list, store)));
    let settings = HubSettings::from_env();
    match &settings {
        Ok(settings) => {
            lines.extend(check_hub(settings, &needs));
            lines.push(check_token(settings));
        }
        Err(error) => lines.push(CheckItem::missing("hub environment variables", error)),
    }
    lines.extend(check_machine(&needs));
    lines.push(match &opened {
        Err(error) if !no_store => CheckItem::missing("store", error),
        _ => check_store(store),
    });

    let lacking = lines.iter().filter(|line| line.status == CheckStatus::Missing).count();
    answer::print_answer(DoctorAnswer { lacking, things: lines }, Answer::Doctor, |answer| {
        answer.things.iter().for_each(print_item);
    })?;
    if lacking == 0 {
        note!("all requirements met");
        return Ok(ExitCode::SUCCESS);
    }
    let verb = if lacking == 1 { "is" } else { "are" };
    eprintln!("{} {verb} missing", pluralize(lacking, "requirement"));
    Ok(ExitCode::from(3))
}

fn check_token(settings: &HubSettings) -> CheckItem {
    match settings.token {
        Some(_) => CheckItem::ok("token", "set; access to gated models is not checked"),
        None => CheckItem::note("token", "none", "set HF_TOKEN, or run `hf auth login`, to download gated models"),
    }
}

fn print_item(CheckItem { status, what, found, todo }: &CheckItem) {
    let (style, label) = match status {
        CheckStatus::Good => (TextStyle::Good, "ok    "),
        CheckStatus::Note => (TextStyle::Doubtful, "note  "),
        CheckStatus::Missing => (TextStyle::Bad, "error "),
    };
    terminal::print_line(&[(style, label), (TextStyle::Plain, &format!("{what}: {found}"))]);
    for line in todo.lines() {
        println!("      → {line}");
    }
}

/// Checks a backbone, text or task.
fn check_input(need: &InputRef, list: &InputList, store: Option<&Store>) -> CheckItem {
    let what = format!("{} {}", need.kind.label(), need.name);
    let resolver = list.resolver();
    match artifact::examine(need, &resolver, &requested_work::file_hasher(store)) {
        Err(error) => CheckItem::missing(what, &error),
        Ok(ExaminedInput { found, unpinned: None }) => CheckItem::ok(what, found),
        Ok(ExaminedInput { found, unpinned: Some(source) }) => {
            CheckItem::note(what, found, format!("run `{} --lock` to pin {source}", resolver.command()))
        }
    }
}

/// Checks whether the disk of the hub cache has enough space for the pinned files that are not downloaded yet. Sends no
/// requests.
fn check_hub(settings: &HubSettings, needs: &[InputList]) -> Vec<CheckItem> {
    let hub = Hub::new(settings.clone());
    let mut plan = FetchPlan::default();
    for list in needs {
        let resolver = list.resolver();
        let Ok(lock) = resolver.lock() else { continue };
        let wants = list.needs.iter().filter_map(InputRef::to_fetch).filter(|want| lock.get(&want.source).is_some());
        plan.repos.extend(wants.filter_map(|want| hub.resolve_offline(want, lock).ok()));
    }
    let root = hub.cache().root();
    let free = root.ancestors().find(|folder| folder.is_dir()).and_then(disk::free);
    let left = plan.remaining_bytes();
    let free_text = free.map_or("unknown free space".to_owned(), |free| format!("{} free", format_bytes(free)));
    let offline = if settings.offline { ", and HF_HUB_OFFLINE is set" } else { "" };
    let found = format!("{}: {free_text}, {} of pinned files to fetch{offline}", root.display(), format_bytes(left));
    let is_full = free.is_some_and(|free| free < left);
    let todo = if is_full { "free some disk space, or set HF_HUB_CACHE to a folder on another disk" } else { "" };
    vec![CheckItem::new(if is_full { CheckStatus::Missing } else { CheckStatus::Good }, "hub cache", found, todo)]
}

fn check_machine(needs: &[InputList]) -> Vec<CheckItem> {
    let free = machine::free_memory();
    let largest = needs.iter().flat_map(|list| {
        let resolver = list.resolver();
        list.needs
            .iter()
            .filter_map(move |need| need.find(&resolver).ok())
            .filter_map(|found| artifact::weight_bytes(&found.path))
    });
    let memory = match largest.max() {
        None => CheckItem::ok("memory", format!("{} free", format_bytes(free))),
        Some(weights) => {
            let found = format!(
                "{} free; the weights of the largest backbone take {}",
                format_bytes(free),
                format_bytes(weights)
            );
            let todo = "expect slower runs: layers are loaded on demand (`ghostlab plan` shows the memory needed)";
            if weights <= free { CheckItem::ok("memory", found) } else { CheckItem::note("memory", found, todo) }
        }
    };
    let Machine { cpu, gpu, threads, cpu_features, .. } = Machine::current();
    let cpu =
        format!("{}, {threads} threads, {}", cpu.as_deref().unwrap_or("unknown processor"), cpu_features.join(" "));
    vec![
        memory,
        check_device(DeviceName::detect(), DeviceName::detect().gpu(), gpu, &cpu),
        check_kernels(amx::status()),
    ]
}

/// Reports the kernel family that `--kernels auto` selects and, if it is not AMX, the reason.
fn check_kernels(status: AmxStatus) -> CheckItem {
    let portable = format!("portable in bf16 and f32; {status}");
    match status {
        AmxStatus::Ready => CheckItem::ok("kernels", "amx in bf16, bf16x3 and bf16x6, portable in f32"),
        AmxStatus::Absent => CheckItem::ok("kernels", portable),
        AmxStatus::Disabled => CheckItem::note("kernels", portable, "use Linux 5.16 or later to enable AMX"),
        AmxStatus::Refused(_) => {
            CheckItem::note("kernels", portable, "allow `arch_prctl` in the container's seccomp profile")
        }
        AmxStatus::Deviates => CheckItem::note("kernels", portable, "open an issue that names the processor model"),
    }
}

/// Reports the selected device and any GPUs that cannot be used.
fn check_device(selected: DeviceName, selected_gpu: Option<Gpu>, gpus: Option<String>, cpu: &str) -> CheckItem {
    match (selected, gpus) {
        (DeviceName::Cpu, None) => CheckItem::ok("device", format!("{cpu}; no GPU")),
        (DeviceName::Cpu, Some(gpus)) => {
            let todo = match DeviceName::Cuda(0).is_built() {
                true => "run `nvidia-smi`: the GPU driver does not respond",
                false => "build with tools/cuda_build.sh for GPU support; this build only supports the CPU",
            };
            CheckItem::note("device", format!("{cpu}; {gpus} is not used"), todo)
        }
        (device, gpus) => {
            let model = selected_gpu.and_then(|gpu| gpu.model).or(gpus).unwrap_or_else(|| "a GPU".to_owned());
            CheckItem::ok("device", format!("{model} ({device}); {cpu}"))
        }
    }
}

fn check_store(store: Option<&Store>) -> CheckItem {
    let Some(store) = store else {
        return CheckItem::note("store", "none found", "run the command in a checkout, or pass --store");
    };
    // Make the path absolute, because a relative path has no existing ancestor if none of its directories exist.
    let root = &files::absolute(store.root());
    let Some(folder) = root.ancestors().find(|folder| folder.is_dir()) else {
        let found = format!("{}: no parent folder exists", root.display());
        return CheckItem::new(CheckStatus::Missing, "store", found, "pass another folder with --store");
    };
    let free = disk::free(folder).map_or(String::new(), |free| format!(", {} free", format_bytes(free)));
    let system = disk::file_system(folder);
    let found =
        format!("{}, on {}{free}", root.display(), system.map_or("an unknown file system", |system| system.name));
    let writable = tempfile::tempfile_in(folder).map_err(|error| Error::folder_io("write to", folder, &error));
    match (writable, system) {
        (Err(error), _) => CheckItem::missing("store", &error),
        (Ok(_), Some(system)) if system.shared => CheckItem::note(
            "store",
            found,
            "shared file system: jobs of dead workers on other machines are taken over after three minutes",
        ),
        (Ok(_), Some(system)) if system.memory => {
            CheckItem::note("store", found, "in-memory file system: the store is lost at the next reboot")
        }
        _ => CheckItem::ok("store", found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doctor_names_kernel_family_and_why_amx_is_unused() {
        for (status, good, found) in [
            (AmxStatus::Ready, true, "amx in bf16, bf16x3 and bf16x6, portable in f32"),
            (AmxStatus::Absent, true, "portable in bf16 and f32; the processor has no AMX-BF16"),
            (AmxStatus::Refused(1), false, "the kernel refused permission: Operation not permitted"),
            (AmxStatus::Disabled, false, "the operating system does not enable it"),
            (AmxStatus::Deviates, false, "differ from their documented arithmetic"),
        ] {
            let line = check_kernels(status);
            assert!(
                (line.status == CheckStatus::Good) == good && line.found.contains(found),
                "{status:?}: {}",
                line.found
            );
            assert_eq!(line.todo.is_empty(), good, "{status:?}");
        }
    }

    #[test]
    fn doctor_names_used_and_unused_gpus() {
        assert_eq!(line(DeviceName::Cpu, None, ""), (true, "EPYC, 8 threads; no GPU".into(), true));
        let unused = (false, "EPYC, 8 threads; NVIDIA H100 is not used".into(), false);
        assert_eq!(line(DeviceName::Cpu, None, "NVIDIA H100"), unused);
        let used = (true, "NVIDIA A30 (cuda:0); EPYC, 8 threads".into(), true);
        assert_eq!(
            line(
                DeviceName::Cuda(0),
                Some(Gpu { model: Some("NVIDIA A30".to_owned()), serial: None }),
                "NVIDIA A30, NVIDIA H100"
            ),
            used
        );
        assert_eq!(line(DeviceName::Metal, None, ""), (true, "a GPU (metal); EPYC, 8 threads".into(), true));
    }

    fn line(best: DeviceName, found: Option<Gpu>, gpus: &str) -> (bool, String, bool) {
        let gpus = Some(gpus.to_owned()).filter(|gpus| !gpus.is_empty());
        let CheckItem { status, found, todo, .. } = check_device(best, found, gpus, "EPYC, 8 threads");
        (status == CheckStatus::Good, found, todo.is_empty())
    }
}
