//! RO-Crate 1.2 metadata of an archive (w3id.org/ro/crate/1.2): its contents and provenance in a standard format.
//!
//! All values come from the files in the results directories and none from the machine that packs them.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::{MANIFEST, METADATA, is_inside, read_file_list};
use crate::error::{Error, Result};
use crate::files::output::Manifest;
use crate::files::{self, regular, sha256};
use crate::results::{Provenance, StoredResults, may_be_left_out};

const CONTEXT: &str = "https://w3id.org/ro/crate/1.2/context";
const PROFILE: &str = "https://w3id.org/ro/crate/1.2";
/// License text if no license is given.
const UNKNOWN_LICENSE: &str = "Not stated. Ask the authors of these results.";

/// Entities by ID. Entities shared by several runs are listed once.
type Entities = BTreeMap<String, Value>;

pub(super) fn build_metadata(folders: &[PackedFolder], license: Option<&str>, manifest_bytes: usize) -> Value {
    let mut entities = Entities::new();
    let mut graph = Vec::new();
    let mut parts = Vec::new();
    let mut runs = Vec::new();
    for folder in folders {
        let folder_id = format!("{}/", encode_uri(&folder.name));
        let files: Vec<Value> =
            folder.files.iter().map(|file| reference(&format!("{folder_id}{}", encode_uri(&file.name)))).collect();
        graph.push(json!({
            "@id": folder_id, "@type": "Dataset", "name": folder.title,
            "description": format!("Results folder of {}: tables or figures, per-item data of each number, and provenance.", folder.title),
            "hasPart": unwrap_single(files),
        }));
        graph.extend(folder.files.iter().map(|file| {
            json!({
                "@id": format!("{folder_id}{}", encode_uri(&file.name)), "@type": "File", "name": file.name,
                "description": format!("{} of {}", file.name, folder.title),
                "contentSize": file.bytes.len().to_string(), "encodingFormat": media_type(&file.name), "sha256": file.hash,
            })
        }));
        parts.push(reference(&folder_id));
        runs.push(add_run_entity(folder, &folder_id, &mut entities));
    }
    parts.push(reference(MANIFEST));
    graph.push(json!({
        "@id": MANIFEST, "@type": "File", "name": MANIFEST, "encodingFormat": "text/plain",
        "contentSize": manifest_bytes.to_string(),
        "description": "SHA-256 of every other file, for `sha256sum -c`",
    }));
    let titles: Vec<&str> = folders.iter().map(|folder| folder.title.as_str()).collect();
    let published = folders.iter().filter_map(|folder| folder.run["finished"].as_str()).max().unwrap_or_default();
    let root = json!({
        "@id": "./", "@type": "Dataset", "name": format!("Results of ghostlab: {}", titles.join(", ")),
        "description": "Results of layer-pruned language models with per-item data. `ghostlab verify` recomputes a random sample.",
        "datePublished": published, "license": license_value(license, &mut entities),
        "hasPart": unwrap_single(parts), "mentions": unwrap_single(runs),
    });
    let descriptor = json!({
        "@id": METADATA, "@type": "CreativeWork", "about": reference("./"), "conformsTo": reference(PROFILE),
    });
    let all: Vec<Value> = [descriptor, root].into_iter().chain(graph).chain(entities.into_values()).collect();
    json!({"@context": CONTEXT, "@graph": all})
}

/// Adds entities for the run that wrote a results directory, its software and its inputs. Returns a reference to the
/// run.
fn add_run_entity(folder: &PackedFolder, folder_id: &str, entities: &mut Entities) -> Value {
    let record = &folder.run;
    let words = record["command"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let command = words.collect::<Vec<_>>().join(" ");
    let id = format!("#run-{}", encode_uri(&folder.name.replace('/', "-")));
    let inputs = record["inputs"].as_object().into_iter().flatten();
    let inputs: Vec<Value> =
        inputs.filter_map(|(path, hash)| add_input_entity(record, path, hash.as_str()?, entities)).collect();
    let machine = &record["machine"];
    let entity = json!({
        "@id": id, "@type": "CreateAction", "name": command,
        "description": format!("{command}, on {} ({} {})", text_or_unknown(&machine["cpu"]), text_or_unknown(&machine["os"]), text_or_unknown(&machine["arch"])),
        "startTime": record["started"], "endTime": record["finished"],
        "instrument": add_software_entity(record, entities), "object": unwrap_single(inputs),
        "result": reference(folder_id),
    });
    entities.insert(id.clone(), entity);
    reference(&id)
}

fn text_or_unknown(value: &Value) -> String {
    value.as_str().unwrap_or("unknown").to_owned()
}

/// Adds an entity for the program at its commit, and one for each crate that affects the numbers. Returns a reference
/// to the program.
fn add_software_entity(record: &Value, entities: &mut Entities) -> Value {
    let version = record["ghostlab"].as_str().unwrap_or_default();
    let commit = record["commit"].as_str();
    let changed = if record["dirty"] == true { ", with uncommitted changes" } else { "" };
    let crates = record["crates"].as_object().into_iter().flatten().filter_map(|(name, version)| {
        let version = version.as_str()?;
        let url = format!("https://crates.io/crates/{name}/{version}");
        let entity = json!({
            "@id": url, "@type": "SoftwareApplication", "name": name, "version": version, "url": url,
        });
        entities.insert(url.clone(), entity);
        Some(reference(&url))
    });
    let crates = unwrap_single(crates.collect());
    let id = format!("#ghostlab-{version}-{}", commit.unwrap_or("of-no-commit"));
    let mut entity = json!({
        "@id": id, "@type": "SoftwareApplication", "name": "ghostlab", "version": version,
        "description": format!("commit {}{changed}", commit.unwrap_or("unknown")), "softwareRequirements": crates,
    });
    match commit {
        // Software Heritage identifies a revision by its hash, wherever the repository is hosted.
        Some(commit) => entity["url"] = json!(format!("https://archive.softwareheritage.org/swh:1:rev:{commit}")),
        // In RO-Crate, a `SoftwareApplication` requires a URL.
        None => entity["@type"] = json!("CreativeWork"),
    }
    entities.insert(id.clone(), entity);
    reference(&id)
}

/// Adds an entity for an input file, identified by its hash. If the file is from the Hugging Face hub, also adds an
/// entity for its repository. Returns a reference to the file.
fn add_input_entity(record: &Value, path: &str, hash: &str, entities: &mut Entities) -> Option<Value> {
    let id = format!("#sha256-{hash}");
    let mut entity = json!({
        "@id": id, "@type": "CreativeWork", "name": path, "identifier": format!("sha256:{hash}"), "sha256": hash,
    });
    let entries = ["backbones", "corpora", "tasks"].into_iter().filter_map(|kind| record["grid"][kind].as_object());
    let entry_of = entries.flat_map(|all| all.values()).find(|entry| {
        entry["path"].as_str().is_some_and(|folder| Path::new(path).starts_with(folder)) && entry["hub"].is_object()
    });
    let hub = entry_of.map(|entry| &entry["hub"]);
    if let Some(repository) = hub.and_then(|hub| hub["repository"].as_str()) {
        let (name, revision) = repository.split_once('@').unwrap_or((repository, "main"));
        let revision = hub.and_then(|hub| hub["commit"].as_str()).unwrap_or(revision);
        let url = format!("https://huggingface.co/{name}/tree/{revision}");
        let source = json!({"@id": url, "@type": "CreativeWork", "name": format!("{name} at {revision}"), "url": url});
        entities.insert(url.clone(), source);
        entity["isPartOf"] = reference(&url);
    }
    entities.insert(id.clone(), entity);
    Some(reference(&id))
}

/// Returns the value of the `license` property: a reference to a new entity if `license` is a URL, the text itself if it
/// is other text, and [`UNKNOWN_LICENSE`] if it is missing.
fn license_value(license: Option<&str>, entities: &mut Entities) -> Value {
    match license {
        Some(url) if url.starts_with("https://") || url.starts_with("http://") => {
            let entity =
                json!({"@id": url, "@type": "CreativeWork", "name": url, "description": "License of these results."});
            entities.insert(url.to_owned(), entity);
            reference(url)
        }
        Some(words) => json!(words),
        None => json!(UNKNOWN_LICENSE),
    }
}

fn encode_uri(name: &str) -> String {
    name.bytes()
        .map(|byte| if is_unreserved(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn is_unreserved(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~/+=,@:!$&'()*;".contains(byte)
}

fn reference(id: &str) -> Value {
    json!({"@id": id})
}

/// Unwraps a list with a single element, as RO-Crate recommends. Returns other lists unchanged.
fn unwrap_single(mut values: Vec<Value>) -> Value {
    match values.len() {
        1 => values.remove(0),
        _ => values.into(),
    }
}

fn media_type(name: &str) -> &'static str {
    match Path::new(name).extension().and_then(|ending| ending.to_str()) {
        Some("json") => "application/json",
        Some("csv") => "text/csv",
        Some("md") => "text/markdown",
        Some("tex") => "text/x-tex",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("pdf") => "application/pdf",
        Some("parquet") => "application/vnd.apache.parquet",
        Some("yaml") => "application/yaml",
        _ => "text/plain",
    }
}

/// Results directory to pack, with its files and its provenance record.
pub(super) struct PackedFolder {
    pub(super) name: String,
    pub(super) title: String,
    pub(super) files: Vec<PackedFile>,
    pub(super) run: Value,
}

pub(super) struct PackedFile {
    /// Path relative to the results directory.
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
    pub(super) hash: String,
}

/// Reads all files that the checksum file of a results directory lists. Missing files that a record may omit are
/// skipped and counted in `omitted_files`.
///
/// # Errors
/// Fails if the numbers or the provenance record are missing, or if any other file is missing or has changed since the
/// run.
pub(super) fn read_folder(folder: &Path, omitted_files: &mut usize) -> Result<PackedFolder> {
    let numbers = StoredResults::read(folder)?;
    let run: Value = Provenance::read(folder)?;
    let mut files = Vec::new();
    for (hash, name) in read_file_list(folder)? {
        let path = folder.join(&name);
        if !path.exists() && may_be_left_out(&name) {
            *omitted_files += 1;
            continue;
        }
        if !is_inside(&name) {
            return Err(altered_file_error(&hash, &path, "a path outside the folder".to_owned()));
        }
        if !path.is_file() {
            return Err(altered_file_error(&hash, &path, "no such file".to_owned()));
        }
        let bytes = regular::read(&path)?;
        let found = sha256::of_bytes(&bytes);
        if found != hash {
            return Err(altered_file_error(&hash, &path, format!("SHA-256 {found}")));
        }
        files.push(PackedFile { name, bytes, hash });
    }
    let bytes = regular::read(&folder.join(Manifest::FILE))?;
    files.push(PackedFile { name: Manifest::FILE.to_owned(), hash: sha256::of_bytes(&bytes), bytes });
    files.sort_by(|one, other| one.name.cmp(&other.name));
    let absolute = files::absolute(folder);
    let last = absolute.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    // Without a profile, the results directory is named after the grid.
    let name = if last == numbers.name { last } else { format!("{}/{last}", numbers.name) };
    let title = format!("{} {}", numbers.name, numbers.profile).trim_end().to_owned();
    Ok(PackedFolder { name, title, files, run })
}

fn altered_file_error(hash: &str, path: &Path, found: String) -> Error {
    Error::bad_input("the file has changed since the run")
        .at(path.display().to_string())
        .expected(format!("SHA-256 {hash}"))
        .found(found)
        .hint("run `ghostlab verify FOLDER` to list all differences; only unchanged folders can be packed")
}
