//! Writer for the header of a GGUF file, version 3: metadata entries, and the names and offsets of tensors.

use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value;

use crate::error::{Error, Result};

/// Alignment of tensor data in bytes.
const ALIGNMENT: usize = 32;

/// Header entry of a tensor: name, type, and dimensions with rows first.
pub struct GgufInfo {
    pub name: String,
    pub dtype: GgmlDType,
    pub shape: Vec<usize>,
}

impl GgufInfo {
    /// Returns the stored size in bytes.
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() / self.dtype.block_size() * self.dtype.type_size()
    }
}

/// Encodes everything before the data of the first tensor. The tensor data must follow in the same order, with
/// [`padding`] after each tensor.
///
/// # Errors
/// Fails if an entry is a list of mixed types, which GGUF cannot represent.
pub fn header(entries: &[(String, Value)], tensors: &[&GgufInfo]) -> Result<Vec<u8>> {
    let mut out = b"GGUF".to_vec();
    out.extend(3_u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((entries.len() as u64).to_le_bytes());
    for (key, value) in entries {
        out.extend(encode_text(key));
        let (entry_type, bytes) = encode_entry(value).ok_or_else(|| mixed_list_error(key))?;
        out.extend(entry_type.to_le_bytes());
        out.extend(bytes);
    }
    let mut offset = 0;
    for info in tensors {
        out.extend(encode_text(&info.name));
        out.extend((info.shape.len() as u32).to_le_bytes());
        info.shape.iter().rev().for_each(|&side| out.extend((side as u64).to_le_bytes()));
        out.extend(type_number(info.dtype).to_le_bytes());
        out.extend((offset as u64).to_le_bytes());
        offset += info.bytes() + padding(info.bytes());
    }
    out.resize(out.len() + padding(out.len()), 0);
    Ok(out)
}

fn mixed_list_error(key: &str) -> Error {
    Error::job("cannot write an entry of a GGUF file").at(key).expected("list items of one type").found("mixed types")
}

/// Returns the number of padding bytes that follow `bytes` bytes of tensor data.
pub fn padding(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT) - bytes
}

fn encode_text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// Encodes an entry as a GGUF type number and its bytes. Returns `None` for a list of mixed types.
fn encode_entry(value: &Value) -> Option<(u32, Vec<u8>)> {
    Some(match value {
        Value::U8(n) => (0, vec![*n]),
        Value::I8(n) => (1, n.to_le_bytes().to_vec()),
        Value::U16(n) => (2, n.to_le_bytes().to_vec()),
        Value::I16(n) => (3, n.to_le_bytes().to_vec()),
        Value::U32(n) => (4, n.to_le_bytes().to_vec()),
        Value::I32(n) => (5, n.to_le_bytes().to_vec()),
        Value::F32(n) => (6, n.to_le_bytes().to_vec()),
        Value::Bool(boolean) => (7, vec![(*boolean).into()]),
        Value::String(string) => (8, encode_text(string)),
        Value::Array(list) => {
            let items = list.iter().map(encode_entry).collect::<Option<Vec<_>>>()?;
            let item_type = items.first().map_or(8, |(item_type, _)| *item_type);
            let mut out = item_type.to_le_bytes().to_vec();
            out.extend((list.len() as u64).to_le_bytes());
            for (written_type, bytes) in items {
                (written_type == item_type).then(|| out.extend(bytes))?;
            }
            (9, out)
        }
        Value::U64(n) => (10, n.to_le_bytes().to_vec()),
        Value::I64(n) => (11, n.to_le_bytes().to_vec()),
        Value::F64(n) => (12, n.to_le_bytes().to_vec()),
    })
}

/// Returns the GGUF number of a tensor type (`ggml_type` in ggml.h).
fn type_number(dtype: GgmlDType) -> u32 {
    match dtype {
        GgmlDType::F32 => 0,
        GgmlDType::F16 => 1,
        GgmlDType::Q4_0 => 2,
        GgmlDType::Q4_1 => 3,
        GgmlDType::Q5_0 => 6,
        GgmlDType::Q5_1 => 7,
        GgmlDType::Q8_0 => 8,
        GgmlDType::Q8_1 => 9,
        GgmlDType::Q2K => 10,
        GgmlDType::Q3K => 11,
        GgmlDType::Q4K => 12,
        GgmlDType::Q5K => 13,
        GgmlDType::Q6K => 14,
        GgmlDType::Q8K => 15,
        GgmlDType::BF16 => 30,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::gguf::Gguf;

    #[test]
    fn gguf_file_round_trips() {
        let entries = vec![
            ("a".to_owned(), Value::U32(7)),
            ("b".to_owned(), Value::F32(0.5)),
            ("c".to_owned(), Value::String("Ġt".into())),
            ("d".to_owned(), Value::Array(vec![Value::String("x".into()), Value::String(String::new())])),
            ("e".to_owned(), Value::Bool(true)),
            ("f".to_owned(), Value::Array(vec![Value::I32(-1), Value::I32(3)])),
        ];
        let tensors = vec![
            GgufInfo { name: "w".into(), dtype: GgmlDType::F16, shape: vec![3, 5] },
            GgufInfo { name: "v".into(), dtype: GgmlDType::Q8_0, shape: vec![2, 32] },
        ];
        let mut bytes = header(&entries, &tensors.iter().collect::<Vec<_>>()).unwrap();
        let start = bytes.len();
        for tensor in &tensors {
            bytes.resize(bytes.len() + tensor.bytes() + padding(tensor.bytes()), 0);
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        std::fs::write(&path, &bytes).unwrap();
        let read = Gguf::open(&path).unwrap();
        assert_eq!((read.count("a").unwrap(), read.number("b").unwrap()), (Some(7), Some(0.5)));
        assert_eq!((read.text("c").unwrap(), read.texts("d").unwrap()), (Some("Ġt"), Some(vec!["x", ""])));
        assert_eq!((read.flag("e").unwrap(), read.numbers("f").unwrap()), (Some(true), Some(vec![-1.0, 3.0])));
        let w = &read.tensors["w"];
        assert_eq!((w.start as usize, w.bytes, &w.shape[..]), (start, 30, &[3, 5][..]));
        assert_eq!((read.tensors["v"].start as usize, read.tensors["v"].bytes), (start + 32, 68));
        std::fs::write(&path, &bytes[..start + 90]).unwrap();
        assert!(Gguf::open(&path).unwrap_err().to_string().contains("tensor v"));
    }
}
