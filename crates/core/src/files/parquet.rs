//! Reader for columns of Parquet files.
//!
//! Polars is built without small integers, dates, times, decimals and categories, which would double its size. Columns
//! are therefore read in their physical types (a date is a number of days). The schema that [`read`] passes to its
//! callbacks has the logical types.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use polars::io::parquet::read::{FileMetadata, infer_schema};
use polars::prelude::{ArrowSchema, DataFrame, ParquetReader, PlSmallStr, PolarsError, SerReader};
use polars_parquet::parquet::metadata::SchemaDescriptor;
use polars_parquet::parquet::schema::types::{
    IntegerType, ParquetType, PhysicalType, PrimitiveConvertedType, PrimitiveLogicalType, PrimitiveType,
};

use super::limit::TextLimit;
use super::panics;
use crate::error::{Error, Result};

/// Reads the columns that `select` returns, and passes the table and the schema to `convert`. The table has the
/// physical types, and the schema has the logical types.
///
/// Polars panics on some damaged footers (found by flipping bits). Such a panic is converted into an error. A damaged
/// page header can also cause an allocation beyond available memory, which aborts the process and cannot be caught.
///
/// # Errors
/// Fails if the file cannot be read as a table. Propagates errors from `select` and `convert`.
pub fn read<T>(
    file: File,
    path: &Path,
    limit: TextLimit,
    select: impl FnOnce(&ArrowSchema) -> Result<Vec<String>>,
    convert: impl FnOnce(&DataFrame, &ArrowSchema) -> Result<T>,
) -> Result<T> {
    panics::catch(|| {
        let mut reader = ParquetReader::new(file);
        let metadata = reader.get_metadata().map_err(|error| parquet_error(path, &error))?.clone();
        let schema = infer_schema(&metadata).map_err(|error| parquet_error(path, &error))?;
        let columns = select(&schema)?;
        // Decompressed size of the selected columns according to the footer.
        let column_chunks = metadata
            .row_groups
            .iter()
            .flat_map(|group| columns.iter().filter_map(|name| group.columns_under_root_iter(name)).flatten());
        let bytes = column_chunks.map(|chunk| u64::try_from(chunk.uncompressed_size()).unwrap_or(u64::MAX));
        limit.check(path, bytes.fold(0, u64::saturating_add))?;
        reader.set_metadata(Arc::new(with_physical_types(&metadata)));
        convert(&reader.with_columns(Some(columns)).finish().map_err(|error| parquet_error(path, &error))?, &schema)
    })
    .unwrap_or_else(|_| Err(unreadable_error(path, "an invalid table")))
}

/// Returns the footer with logical types removed, except text and unsigned integers.
fn with_physical_types(metadata: &FileMetadata) -> FileMetadata {
    let schema = &metadata.schema_descr;
    let fields = schema.fields().iter().map(physical_type).collect();
    FileMetadata {
        // Remove the embedded Arrow schema, because it contains dictionaries and times.
        key_value_metadata: None,
        schema_descr: SchemaDescriptor::new(PlSmallStr::from_str(schema.name()), fields),
        ..metadata.clone()
    }
}

fn physical_type(field: &ParquetType) -> ParquetType {
    match field {
        ParquetType::GroupType { field_info, logical_type, converted_type, fields } => ParquetType::GroupType {
            field_info: field_info.clone(),
            logical_type: *logical_type,
            converted_type: *converted_type,
            fields: fields.iter().map(physical_type).collect(),
        },
        ParquetType::PrimitiveType(primitive) if is_supported_type(primitive) => field.clone(),
        ParquetType::PrimitiveType(primitive) => {
            ParquetType::PrimitiveType(PrimitiveType { logical_type: None, converted_type: None, ..primitive.clone() })
        }
    }
}

/// Returns whether every polars build supports the logical type of a column: text, unsigned integers of 32 and 64 bits,
/// or no logical type.
fn is_supported_type(primitive: &PrimitiveType) -> bool {
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

/// Creates the error for a table that polars rejects.
pub fn parquet_error(path: &Path, error: &PolarsError) -> Error {
    unreadable_error(path, &error.to_string())
}

fn unreadable_error(path: &Path, found: &str) -> Error {
    Error::bad_input("cannot read the parquet file").at(path.display()).found(found).hint("download the file again")
}
