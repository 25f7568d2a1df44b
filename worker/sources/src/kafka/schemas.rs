//! Decodes payloads that refer to schemas in a registry. The reader's schema determines the columns; the writer's schema of each
//! payload determines its encoding.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::compute::interleave;
use feedline_data::schema::ColumnType;
use futures::{StreamExt, TryStreamExt, stream};

use super::decoding::{DecodedColumns, GroupDecoding, failed_group};
use super::registry::{RegisteredSchema, Registry, SchemaLanguage};
use super::{avro, json_schema, protobuf, wire};
use crate::columns::null_column;
use crate::error::SourceError;
use crate::object::BufferSpan;
use crate::reader::RowFailure;
use crate::rows::{EncodedRow, RowSet};
use crate::select::ResolvedColumn;

/// Number of schemas that are requested at a time.
const CONCURRENT_REQUESTS: usize = 8;

/// The schemas of the payloads of one block.
pub(super) struct BlockSchemas {
    pub(super) reader: Arc<RegisteredSchema>,
    /// The writers' schemas by id; `None` for ids that the registry does not know.
    pub(super) writers: BTreeMap<u32, Option<Arc<RegisteredSchema>>>,
}

impl BlockSchemas {
    /// Requests the schemas of the payloads.
    pub(super) async fn load(registry: &Registry, reader: u32, rows: &RowSet) -> Result<Self, SourceError> {
        let reader = reader_schema(registry, reader).await?;
        let ids: BTreeSet<u32> =
            (0..rows.rows.len()).filter_map(|index| wire::schema_id(rows.bytes(index)).ok()).collect();
        let load = |id: u32| async move { registry.schema(id).await.map(|schema| (id, schema)) };
        let writers = stream::iter(ids).map(load).buffer_unordered(CONCURRENT_REQUESTS).try_collect().await?;
        Ok(Self { reader, writers })
    }

    /// Decodes payloads. Payloads with the same schema are decoded together.
    pub(super) fn decode(
        &self,
        rows: &RowSet,
        columns: &[(&str, &ColumnType)],
        message: Option<&str>,
    ) -> Result<DecodedColumns, String> {
        let mut failures = Vec::new();
        let mut groups: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (index, row) in rows.rows.iter().enumerate() {
            let known = wire::schema_id(rows.bytes(index)).and_then(|id| match self.writers.get(&id) {
                Some(Some(_)) => Ok(id),
                _ => Err(format!("schema {id} of the payload does not exist in the registry")),
            });
            match known {
                Ok(id) => groups.entry(id).or_default().push(index),
                Err(reason) => failures.push(RowFailure { row: index as u32, offset: row.offset, reason }),
            }
        }
        let mut decoded: Vec<Vec<ArrayRef>> = Vec::with_capacity(groups.len() + 1);
        // The first group has the placeholder of failed rows.
        decoded.push(columns.iter().map(|(_, column_type)| null_column(column_type, 1)).collect());
        let mut places = vec![(0, 0); rows.rows.len()];
        for (id, members) in &groups {
            let Some(Some(writer)) = self.writers.get(id) else { continue };
            let group = GroupDecoding { reader: &self.reader, writer, message };
            let bodies = bodies(rows, members);
            let (arrays, group_failures) = decode_group(&group, &bodies, columns)?;
            for (place, index) in members.iter().enumerate() {
                places[*index] = (decoded.len(), place);
            }
            let own =
                |failure: RowFailure| RowFailure { row: members[failure.row as usize] as u32, ..failure };
            failures.extend(group_failures.into_iter().map(own));
            decoded.push(arrays);
        }
        failures.sort_by_key(|failure| failure.row);
        let column = |number: usize| {
            let parts: Vec<&dyn Array> = decoded.iter().map(|arrays| arrays[number].as_ref()).collect();
            interleave(&parts, &places).map_err(|error| error.to_string())
        };
        Ok(((0..columns.len()).map(column).collect::<Result<_, _>>()?, failures))
    }
}

/// Requests the reader's schema.
pub(super) async fn reader_schema(
    registry: &Registry,
    id: u32,
) -> Result<Arc<RegisteredSchema>, SourceError> {
    let found = registry.schema(id).await?;
    found.ok_or_else(|| SourceError::Url {
        url: format!("schema {id}"),
        reason: "the registry no longer contains the reader's schema: open a new job".to_owned(),
    })
}

/// Returns the columns of the reader's schema.
pub(super) fn columns(
    reader: &RegisteredSchema,
    message: Option<&str>,
) -> Result<Vec<ResolvedColumn>, String> {
    match reader.language {
        SchemaLanguage::Avro => avro::columns(reader),
        SchemaLanguage::Protobuf => protobuf::columns(reader, message),
        SchemaLanguage::Json => json_schema::columns(reader),
    }
}

fn decode_group(
    group: &GroupDecoding<'_>,
    bodies: &RowSet,
    columns: &[(&str, &ColumnType)],
) -> Result<DecodedColumns, String> {
    if group.writer.language != group.reader.language {
        let reason = group.mismatch("the schemas have different languages");
        return Ok(failed_group(bodies, columns, &reason));
    }
    match group.reader.language {
        SchemaLanguage::Avro => avro::decode(group, bodies, columns),
        SchemaLanguage::Protobuf => protobuf::decode(group, bodies, columns),
        SchemaLanguage::Json => json_schema::decode(group, bodies, columns),
    }
}

/// Returns some payloads without their prefix.
fn bodies(rows: &RowSet, members: &[usize]) -> RowSet {
    let body = |index: &usize| {
        let row = rows.rows[*index];
        let span = BufferSpan {
            start: row.span.start + wire::PREFIX_BYTES,
            len: row.span.len - wire::PREFIX_BYTES,
            ..row.span
        };
        EncodedRow { span, ..row }
    };
    RowSet { buffers: rows.buffers.clone(), rows: members.iter().map(body).collect() }
}
