//! Columns of a parquet table.
//!
//! Polars is built without small integers, dates, times, decimals and categories, which would double its size. Columns are
//! therefore read in the types that the file stores them in (a date is a number of days). [`read`] gives what they mean, too.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use polars::io::parquet::read::{FileMetadata, infer_schema};
use polars::prelude::{ArrowSchema, DataFrame, ParquetReader, PlSmallStr, PolarsError, SerReader};
use polars_parquet::parquet::metadata::SchemaDescriptor;
use polars_parquet::parquet::schema::types::{
    IntegerType, ParquetType, PhysicalType, PrimitiveConvertedType, PrimitiveLogicalType, PrimitiveType,
};

use super::caught;
use super::limit::TextLimit;
use crate::error::{Error, Result};

/// Reads the columns that `choose` picks from the schema, and gives them to `take` with the schema. The schema says what
/// columns mean; the table has the types that they are stored in.
///
/// Polars panics on some damaged footers (found by flipping bits), and a bad input is never a panic. (A damaged page header
/// can also make it ask for more memory than there is, which ends the process: that cannot be caught here.)
///
/// # Errors
/// A file that cannot be read as a table, and what `choose` and `take` refuse.
pub fn read<T>(
    file: File,
    path: &Path,
    limit: TextLimit,
    choose: impl FnOnce(&ArrowSchema) -> Result<Vec<String>>,
    take: impl FnOnce(&DataFrame, &ArrowSchema) -> Result<T>,
) -> Result<T> {
    let columns = || {
        let broken = |error: PolarsError| broken(path, &error);
        let mut reader = ParquetReader::new(file);
        let metadata = reader.get_metadata().map_err(broken)?.clone();
        let schema = infer_schema(&metadata).map_err(broken)?;
        let wanted = choose(&schema)?;
        // Decompressed size of the wanted columns according to the footer.
        let parts = metadata
            .row_groups
            .iter()
            .flat_map(|group| wanted.iter().filter_map(|name| group.columns_under_root_iter(name)).flatten());
        let bytes = parts.map(|part| u64::try_from(part.uncompressed_size()).unwrap_or(u64::MAX));
        limit.check(path, bytes.fold(0, u64::saturating_add))?;
        reader.set_metadata(Arc::new(as_stored(&metadata)));
        take(&reader.with_columns(Some(wanted)).finish().map_err(broken)?, &schema)
    };
    caught::catch(columns).unwrap_or_else(|_| Err(unreadable(path, "a table that the reader cannot make sense of")))
}

/// The footer without what columns mean beyond numbers, texts and bytes.
fn as_stored(metadata: &FileMetadata) -> FileMetadata {
    let schema = &metadata.schema_descr;
    let fields = schema.fields().iter().map(stored_type).collect();
    FileMetadata {
        // Arrow's own schema has dictionaries and times.
        key_value_metadata: None,
        schema_descr: SchemaDescriptor::new(PlSmallStr::from_str(schema.name()), fields),
        ..metadata.clone()
    }
}

fn stored_type(field: &ParquetType) -> ParquetType {
    match field {
        ParquetType::GroupType { field_info, logical_type, converted_type, fields } => ParquetType::GroupType {
            field_info: field_info.clone(),
            logical_type: *logical_type,
            converted_type: *converted_type,
            fields: fields.iter().map(stored_type).collect(),
        },
        ParquetType::PrimitiveType(primitive) if is_plain(primitive) => field.clone(),
        ParquetType::PrimitiveType(primitive) => {
            ParquetType::PrimitiveType(PrimitiveType { logical_type: None, converted_type: None, ..primitive.clone() })
        }
    }
}

/// Whether a type is a text or an unsigned number, which polars reads in any build.
fn is_plain(primitive: &PrimitiveType) -> bool {
    use PrimitiveConvertedType as Converted;
    use PrimitiveLogicalType as Logical;
    match primitive.physical_type {
        PhysicalType::Int32 => match primitive.logical_type {
            Some(logical) => matches!(logical, Logical::Integer(IntegerType::UInt32)),
            None => matches!(primitive.converted_type, Some(Converted::Uint32)),
        },
        PhysicalType::Int64 => match primitive.logical_type {
            Some(logical) => matches!(logical, Logical::Integer(IntegerType::UInt64)),
            None => matches!(primitive.converted_type, Some(Converted::Uint64)),
        },
        PhysicalType::ByteArray => match primitive.logical_type {
            Some(logical) => matches!(logical, Logical::String),
            None => matches!(primitive.converted_type, Some(Converted::Utf8)),
        },
        PhysicalType::FixedLenByteArray(_) => false,
        _ => true,
    }
}

/// Creates the error for a part of a table that polars rejects.
pub fn broken(path: &Path, error: &PolarsError) -> Error {
    unreadable(path, &error.to_string())
}

fn unreadable(path: &Path, found: &str) -> Error {
    Error::bad_input("the parquet file cannot be read").at(path.display()).found(found).hint("download the file again")
}
