//! A cell as one GGUF file for llama.cpp and what is built on it.

use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use candle_core::quantized::gguf_file::Value as Entry;
use serde_json::Value;

use super::folder::{config_of, enough_room, object};
use super::{Exported, Exporter, MadeCell};
use crate::checkpoint::{GgufText, GgufType, fits_gguf};
use crate::corpus::{self, GgufTokenizer, to_gguf};
use crate::error::{Error, Result};
use crate::files::atomic::write_atomically;
use crate::files::gguf::{Gguf, is_gguf};
use crate::files::output::{Input, OutputFile};
use crate::files::{parts, regular};
use crate::grid::Grid;
use crate::machine;
use crate::model::Config;
use ghostlab_store::fault;

/// The entry that says which cell a file is: what has it was written here, and may be replaced.
const CELL: &str = "ghostlab.cell";

/// The place of a file, where nothing stands but what was exported before.
///
/// # Errors
/// Exit code 2: something else stands there, or a name that does not end in `.gguf`.
pub fn check_gguf(path: &Path, inputs: Vec<Input>) -> Result<()> {
    if !is_gguf(path) {
        return Err(Error::bad_input("a GGUF file has a name that ends in .gguf")
            .at(path.display().to_string())
            .hint("for example --to model.gguf"));
    }
    let ours = path.is_file() && Gguf::open(path).is_ok_and(|file| file.keys().contains(&CELL));
    OutputFile { path, inputs, force: ours, is_ours: |_| false }.check()
}

impl Exporter<'_> {
    /// Writes one cell of a grid as a GGUF file. Layers and operators that are not stored are computed first. What llama.cpp
    /// does otherwise with some texts comes with it.
    ///
    /// # Errors
    /// As [`Exporter::export`]; a cell that GGUF has no form for, or a tokenizer that llama.cpp has not.
    pub fn export_gguf(
        &self,
        grid: &Grid,
        cell: usize,
        path: &Path,
        numbers: GgufType,
    ) -> Result<(Exported, Vec<String>)> {
        self.made(grid, cell, &mut |MadeCell { layout, backbone, result, inputs, .. }| {
            let config = &backbone.config;
            fits_gguf(config, layout).map_err(|error| error.at(result.cell.to_string()))?;
            let (mut entries, notes) = gguf_texts(&backbone.folder, config)?;
            entries.push((CELL.to_owned(), Entry::String(result.cell.to_string())));
            entries.push(("ghostlab.version".to_owned(), Entry::String(machine::program())));
            let text = GgufText { name: result.cell.to_string(), entries };
            let (bytes, parameters) = (layout.gguf_bytes(numbers), layout.parameters());
            enough_room(path.parent().unwrap_or(Path::new(".")), bytes)?;
            let stopped = |_| match self.stop.load(Relaxed) {
                true => Err(Error::interrupted("stopped; nothing was left of the file")),
                false => Ok(()),
            };
            let write = || {
                write_atomically(path, |file| {
                    let mut out = BufWriter::new(file);
                    let mut wrote = |bytes| {
                        fault::here("export");
                        stopped(bytes)
                    };
                    layout.write_gguf(config, numbers, &text, path, &mut out, &mut wrote)?;
                    out.flush().map_err(|error| Error::io("write", path, &error))
                })
            };
            inputs.guarded(&[&backbone.folder], write)?;
            Ok((Exported { folder: path.to_owned(), bytes, parameters, needs_code: false }, notes.clone()))
        })
    }
}

/// Entries of a header, and notes on what llama.cpp does otherwise.
type Texts = (Vec<(String, Entry)>, Vec<String>);

/// The entries of a backbone's tokenizer and chat template, and what llama.cpp does otherwise.
///
/// # Errors
/// As [`to_gguf`]; files that cannot be read.
pub fn gguf_texts(backbone: &Path, config: &Config) -> Result<Texts> {
    let file = parts::tokenizer(backbone);
    let malformed = |error: serde_json::Error| {
        Error::bad_input("malformed JSON").at(file.display().to_string()).found(error.to_string())
    };
    let tokenizer: Value = serde_json::from_slice(&corpus::description(&file)?).map_err(malformed)?;
    let own = Value::Object(config_of(backbone)?);
    let settings = match parts::beside(backbone, "tokenizer_config.json") {
        file if file.is_file() => Value::Object(object(&file)?),
        _ => Value::Null,
    };
    let special = |name: &str| {
        let token = &settings[format!("{name}_token")];
        let text = token.as_str().or_else(|| token["content"].as_str());
        let added = tokenizer["added_tokens"].as_array().into_iter().flatten();
        let mut added = added.filter(|of| text.is_some() && of["content"].as_str() == text);
        let named = added.find_map(|of| of["id"].as_u64()).or_else(|| tokenizer["model"]["vocab"][text?].as_u64());
        named.or_else(|| {
            let id = &own[format!("{name}_token_id")];
            id.as_u64().or_else(|| id[0].as_u64())
        })
    };
    let ids = [("bos", special("bos")), ("eos", special("eos")), ("padding", special("pad"))];
    let GgufTokenizer { mut entries, notes } = to_gguf(&tokenizer, config.vocab, &ids)?;
    let template = match parts::beside(backbone, "chat_template.jinja") {
        file if file.is_file() => Some(String::from_utf8_lossy(&regular::read(&file)?).into_owned()),
        _ if is_gguf(backbone) => Gguf::open(backbone)?.text("tokenizer.chat_template")?.map(str::to_owned),
        _ => settings["chat_template"].as_str().map(str::to_owned),
    };
    entries.extend(template.map(|text| ("tokenizer.chat_template".to_owned(), Entry::String(text))));
    Ok((entries, notes))
}
