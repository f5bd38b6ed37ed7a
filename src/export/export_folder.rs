//! Output folder of an exported cell, written as a temporary folder and then moved into place.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{ComputedCell, check_stop, source};
use crate::checkpoint::{self, INDEX, MODELING_FILE, variant_config};
use crate::corpus;
use crate::error::{Error, Result};
use crate::files::atomic::write_atomically;
use crate::files::gguf::is_gguf;
use crate::files::output::{Manifest, OutputFolder};
use crate::files::{disk, parts, regular};
use crate::machine;
use crate::model::FloatType;
use crate::quantity::distinct_sizes;
use ghostlab_store::fault;

/// Name of the file that records the inputs of an export.
pub const RECORD_FILE: &str = "ghostlab.json";
/// Files that are copied unchanged if the backbone has them.
const COPIED_FILES: [&str; 12] = [
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "LICENSE",
    "LICENSE.txt",
    "NOTICE",
    "USE_POLICY.md",
];
/// Disk space reserved for files other than weights, in bytes.
const RESERVED_BYTES: u64 = 32 << 20;

/// Format of the exported weights.
#[derive(Debug, Clone)]
pub struct WeightFormat {
    /// Float type of the weights. `None` keeps the type of each stored tensor.
    pub dtype: Option<FloatType>,
    /// Maximum size of a weight file, in bytes.
    pub shard_bytes: u64,
}

/// Result of an export.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ExportedModel {
    /// Output folder or GGUF file.
    #[serde(serialize_with = "crate::files::serialize_path::one")]
    #[schemars(with = "String")]
    pub folder: PathBuf,
    /// Size of the weights in bytes.
    pub bytes: u64,
    /// Number of parameters.
    pub parameters: u64,
    /// Whether loading the model requires `trust_remote_code`, because the export includes a Python file.
    pub needs_code: bool,
}

/// Kind of output folder, recorded in its manifest.
const OUTPUT_KIND: &str = "a model";

/// Checks that the folder does not exist, is empty or contains an earlier export.
///
/// # Errors
/// Fails with exit code 2 if the path is not a folder, if a non-empty folder is not an earlier export, or if a file
/// that no export wrote would be overwritten.
pub fn check_folder(folder: &Path) -> Result<OutputFolder> {
    let occupied = match fs::read_dir(folder) {
        Ok(mut entries) => entries.next().is_some() && Manifest::read(folder).kind().is_none(),
        Err(_) => folder.symlink_metadata().is_ok(),
    };
    if occupied {
        let found = if folder.is_dir() { "a folder that is not an export" } else { "not a folder" };
        let error = Error::bad_input("the output path already exists").at(folder.display().to_string());
        let error = error.expected("a new folder, or one from an earlier export").found(found);
        let earlier = folder.join(RECORD_FILE).is_file();
        return Err(match earlier {
            true => error.hint(
                "move the folder, or choose another with --to: it has no list of exported files (earlier versions wrote none)",
            ),
            false => error.hint("use another folder with --to"),
        });
    }
    let output = OutputFolder::new(folder, OUTPUT_KIND);
    let written = ["config.json", "generation_config.json", "tokenizer_config.json", "model.safetensors", "README.md"];
    let names = written.iter().chain(&COPIED_FILES).chain(&[INDEX, MODELING_FILE, RECORD_FILE]);
    output.check(&names.map(|name| (*name).to_owned()).collect::<Vec<_>>())?;
    Ok(output)
}

/// Writes the export to a temporary folder and moves this folder into place.
///
/// # Errors
/// Fails if the disk is full, a file cannot be read or written, the target folder must not be overwritten, or `stop` is
/// set. A failed export leaves no output behind.
pub(super) fn write_export(
    output: &OutputFolder,
    computed: &ComputedCell<'_>,
    card: &str,
    weight_format: &WeightFormat,
    stop: &AtomicBool,
) -> Result<ExportedModel> {
    let bytes = computed.layout.bytes();
    let draft = output.stage()?;
    check_disk_space(draft.path(), bytes + RESERVED_BYTES)?;
    write_files(draft.path(), computed, card, weight_format, stop)?;
    fault::fault_point("place");
    draft.publish()?;
    let parameters = computed.layout.parameters();
    let needs_code = computed.layout.needs_modeling_file();
    Ok(ExportedModel { folder: output.path().to_owned(), bytes, parameters, needs_code })
}

pub(super) fn check_disk_space(folder: &Path, needed_bytes: u64) -> Result<()> {
    let Some(free) = disk::free(folder).filter(|free| *free < needed_bytes) else { return Ok(()) };
    let [needed, free] = distinct_sizes(needed_bytes, free);
    Err(Error::missing("not enough disk space for the model")
        .at(folder.display().to_string())
        .expected(format!("{needed} free"))
        .found(free)
        .hint("choose a folder on another disk, or a smaller float type with --dtype"))
}

fn write_files(
    draft: &Path,
    computed: &ComputedCell<'_>,
    card: &str,
    weight_format: &WeightFormat,
    stop: &AtomicBool,
) -> Result<()> {
    let ComputedCell { layout, backbone, result, .. } = computed;
    let config = &backbone.config;
    let source = &backbone.folder;
    let files = layout.write(draft, weight_format.shard_bytes, &mut |_| check_stop(stop, "folder"))?;
    if let Some(index) = &files.index {
        put_file(draft, INDEX, to_pretty_json(index)?.as_bytes())?;
    }
    if !is_gguf(source) {
        source::find(source, "config.json")?;
    }
    let source_config = read_config(source)?;
    let generation = read_generation_config(source, &source_config)?;
    let trimmed = variant_config(source_config, config, layout, weight_format.dtype);
    put_file(draft, "config.json", to_pretty_json(&Value::Object(trimmed))?.as_bytes())?;
    put_file(draft, "generation_config.json", to_pretty_json(&Value::Object(generation))?.as_bytes())?;
    for name in COPIED_FILES {
        if let Some(bytes) = source::read(source, name)? {
            put_file(draft, name, &bytes)?;
        }
    }
    if is_gguf(source) {
        put_file(draft, "tokenizer.json", &corpus::tokenizer_json(&parts::tokenizer_path(source), config.vocab)?)?;
    }
    write_tokenizer_config(draft, source, layout.needs_modeling_file())?;
    if layout.needs_modeling_file() {
        put_file(draft, MODELING_FILE, checkpoint::modeling_source(config.architecture).as_bytes())?;
    }
    put_file(draft, "README.md", card.as_bytes())?;
    // Leave out the machine and the command line, because they are private.
    let keys = result.made_from.iter().map(|object| json!({"kind": object.kind, "key": object.key}));
    let program = machine::program_version();
    let keys = keys.collect::<Vec<_>>();
    let record = json!({
        "cell": result.cell.to_string(), "removed": result.removed, "layers": result.layers, "kept": layout.kept,
        "identity": result.identity.as_deref(), "ghostlab": program, "made_from": keys,
        "dtype": weight_format.dtype.map(FloatType::name),
    });
    put_file(draft, RECORD_FILE, to_pretty_json(&record)?.as_bytes())
}

/// Returns the generation settings of the backbone. If they are missing, derives them from its config.
fn read_generation_config(source: &Path, config: &Map<String, Value>) -> Result<Map<String, Value>> {
    let name = "generation_config.json";
    let folder = parts::sibling_file(source, name).parent().map(Path::to_path_buf).unwrap_or_default();
    if let Some(file) = source::find(&folder, name)? {
        return read_json_object(&file);
    }
    let ids = ["bos_token_id", "eos_token_id", "pad_token_id"];
    Ok([("_from_model_config".to_owned(), true.into())]
        .into_iter()
        .chain(
            ids.iter()
                .filter_map(|key| Some(((*key).to_owned(), config.get(*key).filter(|id| !id.is_null())?.clone()))),
        )
        .collect())
}

/// Writes the tokenizer settings. Sets the tokenizer class for a custom model type, from which transformers cannot
/// infer it. Removes references to custom code, which is not exported because `tokenizer.json` suffices.
fn write_tokenizer_config(draft: &Path, source: &Path, has_custom_type: bool) -> Result<()> {
    let name = "tokenizer_config.json";
    let class = "tokenizer_class";
    let code = "auto_map";
    let file = source::find(source, name)?;
    let mut settings = file.as_deref().map_or_else(|| Ok(Map::new()), read_json_object)?;
    let named = settings.remove(code).is_some();
    if named || (has_custom_type && !settings.contains_key(class)) {
        settings.insert(class.into(), "PreTrainedTokenizerFast".into());
    } else if let Some(file) = file {
        return put_file(draft, name, &regular::read(&file)?);
    }
    if settings.is_empty() {
        Ok(())
    } else {
        put_file(draft, name, to_pretty_json(&Value::Object(settings))?.as_bytes())
    }
}

pub(super) fn read_config(source: &Path) -> Result<Map<String, Value>> {
    let file = parts::config_path(source);
    if !is_gguf(&file) {
        return read_json_object(&file);
    }
    Ok(crate::model::gguf_config(&file)?.as_object().cloned().unwrap_or_default())
}

pub(super) fn read_json_object(file: &Path) -> Result<Map<String, Value>> {
    serde_json::from_slice(&regular::read(file)?)
        .map_err(|error| Error::bad_input("malformed JSON").at(file.display().to_string()).found(error.to_string()))
}

fn to_pretty_json(value: &Value) -> Result<String> {
    let text = serde_json::to_string_pretty(value);
    text.map(|text| text + "\n").map_err(|error| Error::job("cannot write JSON").found(error.to_string()))
}

fn put_file(folder: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let path = folder.join(name);
    fault::fault_point("export");
    write_atomically(&path, |file| file.write_all(bytes).map_err(|error| Error::io("write", &path, &error)))
}
