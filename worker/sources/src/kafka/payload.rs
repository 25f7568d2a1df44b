//! Decodes the payloads of records to columns.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::ArrayRef;
use feedline_data::pipeline::{Payload, PayloadFormat};
use feedline_data::schema::ColumnType;

use super::decoding::DecodedColumns;
use super::registry::Registry;
use super::schemas::{self, BlockSchemas};
use crate::error::SourceError;
use crate::formats::jsonl;
use crate::formats::tfrecord;
use crate::reader::RowFailure;
use crate::rows::RowSet;
use crate::select::{InferenceNotes, ResolvedColumn};
use crate::views::Views;

/// The column of `payload: bytes`.
const VALUE_COLUMN: &str = "value";
/// The column of `payload: text`.
const TEXT_COLUMN: &str = "text";

/// The ids of the newest schemas of subjects.
pub(super) type NewestSchemas = BTreeMap<String, u32>;

/// Decodes the payloads of one dataset.
pub(super) struct PayloadDecoder {
    payload: Payload,
    registry: Option<Registry>,
    /// The newest schemas that complete listings found.
    newest: Mutex<NewestSchemas>,
}

/// A decoder for the payloads of one block, with the schemas that they refer to.
pub(super) struct BlockDecoder<'a> {
    payload: &'a Payload,
    schemas: Option<BlockSchemas>,
}

impl PayloadDecoder {
    pub(super) fn new(payload: &Payload, registry: Option<Registry>) -> Self {
        Self { payload: payload.clone(), registry, newest: Mutex::default() }
    }

    /// Returns the id of the reader's schema of a topic: the newest schema of its subject, which is requested if `newest` does not
    /// contain it. `None` without a registry.
    pub(super) async fn reader_schema(
        &self,
        topic: &str,
        newest: &mut NewestSchemas,
    ) -> Result<Option<u32>, SourceError> {
        let Some(registry) = &self.registry else { return Ok(None) };
        let subject = self.payload.subject.clone().unwrap_or_else(|| format!("{topic}-value"));
        if let Some(id) = newest.get(&subject) {
            return Ok(Some(*id));
        }
        let id = registry.newest(&subject).await?;
        newest.insert(subject, id);
        Ok(Some(id))
    }

    /// The newest schemas that complete listings found.
    pub(super) fn newest_schemas(&self) -> NewestSchemas {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stores the schemas of a complete listing.
    pub(super) fn store_newest(&self, newest: NewestSchemas) {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner).extend(newest);
    }

    /// Returns the columns; `None` if the samples do not determine them. `schema_id` is the reader's schema.
    pub(super) async fn columns(
        &self,
        samples: &[&[u8]],
        schema_id: Option<u32>,
    ) -> Result<Option<(Vec<ResolvedColumn>, InferenceNotes)>, ColumnsError> {
        if self.payload.format == PayloadFormat::Json && (self.registry.is_none() || schema_id.is_none()) {
            return Ok(json_columns(samples)?);
        }
        let columns = self.typed_columns(samples, schema_id).await?;
        Ok(columns.map(|columns| (columns, InferenceNotes::default())))
    }

    /// Returns the columns of payloads whose encoding determines the types.
    async fn typed_columns(
        &self,
        samples: &[&[u8]],
        schema_id: Option<u32>,
    ) -> Result<Option<Vec<ResolvedColumn>>, ColumnsError> {
        if let (Some(registry), Some(id)) = (&self.registry, schema_id) {
            let reader = schemas::reader_schema(registry, id).await.map_err(ColumnsError::Registry)?;
            return Ok(Some(schemas::columns(&reader, self.payload.message.as_deref())?));
        }
        Ok(match self.payload.format {
            PayloadFormat::Bytes => Some(vec![(VALUE_COLUMN.to_owned(), Ok(ColumnType::Binary))]),
            PayloadFormat::Text => Some(vec![(TEXT_COLUMN.to_owned(), Ok(ColumnType::Utf8))]),
            PayloadFormat::Example => tfrecord::example_columns(samples)?,
            other => {
                return Err(ColumnsError::Data(format!(
                    "`payload: {}` needs a schema registry",
                    other.name()
                )));
            }
        })
    }

    /// Requests the schemas of the payloads of a block.
    pub(super) async fn for_block(
        &self,
        rows: &RowSet,
        schema_id: Option<u32>,
    ) -> Result<BlockDecoder<'_>, SourceError> {
        let schemas = match (&self.registry, schema_id) {
            (Some(registry), Some(id)) => Some(BlockSchemas::load(registry, id, rows).await?),
            _ => None,
        };
        Ok(BlockDecoder { payload: &self.payload, schemas })
    }
}

/// Why the columns are not known.
pub(super) enum ColumnsError {
    /// The registry failed.
    Registry(SourceError),
    /// The samples or the schema cannot be used.
    Data(String),
}

impl From<String> for ColumnsError {
    fn from(reason: String) -> Self {
        Self::Data(reason)
    }
}

impl BlockDecoder<'_> {
    /// Decodes payloads to columns, which are given by their names in the payload and their types.
    pub(super) fn decode(
        &self,
        rows: &RowSet,
        columns: &[(&str, &ColumnType)],
    ) -> Result<DecodedColumns, String> {
        if let Some(schemas) = &self.schemas {
            return schemas.decode(rows, columns, self.payload.message.as_deref());
        }
        match self.payload.format {
            PayloadFormat::Bytes => Ok(views(rows, columns, VALUE_COLUMN, Views::binary)),
            PayloadFormat::Text => Ok(views(rows, columns, TEXT_COLUMN, Views::text)),
            PayloadFormat::Json => jsonl::decode_columns(rows, columns),
            PayloadFormat::Example => Ok(tfrecord::decode_payloads(rows, columns)),
            other => Err(format!("`payload: {}` needs a schema registry", other.name())),
        }
    }
}

fn json_columns(samples: &[&[u8]]) -> Result<Option<(Vec<ResolvedColumn>, InferenceNotes)>, String> {
    if samples.is_empty() {
        return Ok(None);
    }
    match jsonl::infer_columns(samples) {
        None => Err("none of the sampled payloads is a JSON object: check `payload`".to_owned()),
        found => Ok(found),
    }
}

/// Returns a column of the payloads themselves. Other columns are null.
fn views(
    rows: &RowSet,
    columns: &[(&str, &ColumnType)],
    name: &str,
    builder: fn(&[bytes::Bytes], usize) -> Views,
) -> DecodedColumns {
    let mut failures = Vec::new();
    let mut values = builder(&rows.buffers, rows.rows.len());
    for (index, row) in (0..).zip(&rows.rows) {
        if let Err(reason) = values.append(row.span) {
            values.append_null();
            failures.push(RowFailure { row: index, offset: row.offset, reason });
        }
    }
    let values: ArrayRef = values.finish();
    let column = |(column, column_type): &(&str, &ColumnType)| {
        if *column == name {
            Arc::clone(&values)
        } else {
            crate::columns::null_column(column_type, rows.rows.len())
        }
    };
    (columns.iter().map(column).collect(), failures)
}

#[cfg(test)]
mod tests;
