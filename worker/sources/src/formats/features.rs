//! The columns of Parquet and Arrow files, with the features that the Hugging Face library `datasets` stores in the schema's
//! metadata under the key `huggingface`. Files without this metadata have the columns of their Arrow types.
//!
//! An `Image` or `Audio` feature is a struct of `bytes` and `path`. Its column has the name of the feature and contains the
//! bytes. `FEATURE.path` is the column of paths. `FEATURE.bytes` is another name of the bytes. An `Array2D` to `Array5D` with a
//! fixed shape is a tensor. The names of a `ClassLabel` are the column `FEATURE.name`, which is read only if `source.features`
//! lists it. In lists, these columns are lists of bytes, paths and names.

mod convert;
mod parse;

use std::collections::{BTreeMap, HashSet};

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, Field, Fields, Schema as ArrowSchema};
use feedline_data::manifest::{ColumnNotes, ShardRef};
use feedline_data::schema::{ColumnType, ScalarType, Schema};

use super::parquet::fields::{FileColumn, cast_column, file_columns, find_column, resolve_columns};
use crate::columns::{arrow_type, column_type, null_column};
use crate::error::SourceError;
use crate::exact_cast::{merge_failures, row_failures};
use crate::reader::{BlockRead, RowFailure};
use crate::select::{InferenceNotes, ResolvedColumn, Selection, check_unique_names};

use parse::Feature;

/// The metadata key of the features.
const METADATA_KEY: &str = "huggingface";
/// Maximum number of elements of a tensor.
const MAX_TENSOR_ELEMENTS: u64 = i32::MAX as u64;

/// The columns of a shard, and how each is derived from the fields of the file.
#[derive(Debug, Default)]
pub(crate) struct FileColumns {
    columns: Vec<ResolvedColumn>,
    /// Columns that are read only if `source.features` lists them.
    on_request: Vec<ResolvedColumn>,
    /// The derived columns. All other columns have the names of their fields.
    derived: BTreeMap<String, Derived>,
    /// The dotted names of all fields of the file.
    file_names: HashSet<String>,
}

/// A column that differs from the field of the file.
#[derive(Debug, Clone, PartialEq)]
struct Derived {
    /// The dotted name of the field in the file.
    field: String,
    conversion: Conversion,
}

#[derive(Debug, Clone, PartialEq)]
enum Conversion {
    /// The bytes of an image or audio. If the bytes are null, the row fails if this field contains a path.
    Bytes { path: Option<String> },
    /// The names of the classes.
    Names(Vec<String>),
    /// Nested lists with these lengths become a tensor.
    Tensor(Vec<u32>),
}

impl FileColumns {
    /// Derives the columns of a schema.
    ///
    /// # Errors
    /// Returns a message if the features are not valid JSON.
    pub(crate) fn new(schema: &ArrowSchema) -> Result<Self, String> {
        let file_names = file_columns(schema.fields()).into_iter().map(|column| column.name).collect();
        let mut all = Self { file_names, ..Self::default() };
        let features = match schema.metadata().get(METADATA_KEY) {
            Some(json) => parse::features(json)?,
            None => BTreeMap::new(),
        };
        for field in schema.fields() {
            all.add(field.name(), field, features.get(field.name()));
        }
        // A column of the file has precedence over the names of classes.
        let is_class_name = |derived: &Derived| matches!(derived.conversion, Conversion::Names(_));
        for (name, _) in &all.columns {
            if all.derived.get(name).is_some_and(is_class_name) {
                all.derived.remove(name);
                all.on_request.retain(|(other, _)| other != name);
            }
        }
        Ok(all)
    }

    /// The columns that a selection may contain.
    pub(crate) fn resolved(&self, selection: &Selection) -> Vec<ResolvedColumn> {
        let on_request = (!selection.reads_all()).then_some(&self.on_request);
        self.columns.iter().chain(on_request.into_iter().flatten()).cloned().collect()
    }

    /// Returns the selected columns of a shard. A column without a type, in which all values are null, has the type that it has in
    /// other shards.
    pub(crate) fn shard_schema(
        &self,
        shard: &ShardRef,
        file_columns: Vec<FileColumn>,
        selection: &Selection,
    ) -> Result<(Schema, ColumnNotes), SourceError> {
        let selected: Vec<&str> = match selection.reads_all() {
            true => self.columns.iter().map(|(name, _)| name.as_str()).collect(),
            false => selection.features().values().map(String::as_str).collect(),
        };
        // A derived column may have another name than its fields.
        let needed = self.fields(&selected);
        check_unique_names(shard, file_columns.iter().map(|column| column.name.as_str()), |name| {
            needed.contains(&name)
        })?;
        let mut notes = InferenceNotes::default();
        for column in file_columns {
            if let Some(reason) = column.rounding {
                notes.rounded.insert(column.name.clone(), reason);
            }
            if let Some(kind) = column.kind {
                notes.kinds.insert(column.name.clone(), kind);
            }
            if !column.has_type {
                notes.untyped.insert(column.name);
            }
        }
        let (schema, mut notes) = selection.resolve_fixed(shard, &self.resolved(selection), &notes)?;
        // The bytes of an image and the names of classes are not columns of the file.
        notes.ignored.retain(|name| !self.on_request.iter().any(|(other, _)| other == name));
        Ok((schema, notes))
    }

    /// Returns the fields of the file that these columns need, without the columns that the file does not have.
    pub(crate) fn fields<'a>(&'a self, names: &[&'a str]) -> Vec<&'a str> {
        let mut fields = Vec::with_capacity(names.len());
        for name in names {
            let Some(derived) = self.derived.get(*name) else {
                fields.push(*name);
                continue;
            };
            fields.push(derived.field.as_str());
            if let Conversion::Bytes { path: Some(path) } = &derived.conversion {
                fields.push(path);
            }
        }
        fields.retain(|field| self.file_names.contains(*field));
        fields
    }

    /// Returns the columns of a decoded batch with the requested types, and the rows that cannot be read. Columns that the file does
    /// not have are null: the coordinator has checked that they are optional, or columns of other datasets of a mix.
    ///
    /// # Errors
    /// Returns a message if the values of a column have a type that cannot be converted.
    pub(crate) fn columns(
        &self,
        data: &RecordBatch,
        read: &BlockRead<'_>,
        names: &[&str],
    ) -> Result<(Vec<ArrayRef>, Vec<RowFailure>), String> {
        let mut columns = Vec::with_capacity(names.len());
        let mut failures = Vec::new();
        for (field, name) in read.schema.fields.iter().zip(names) {
            let target = arrow_type(&field.column_type);
            let derived = self.derived.get(*name);
            let place = derived.map_or(*name, |derived| derived.field.as_str());
            let Some(found) = find_column(data, place) else {
                if self.file_names.contains(place) {
                    return Err(format!("the rows have no column `{name}`"));
                }
                columns.push(null_column(&field.column_type, data.num_rows()));
                continue;
            };
            let in_column = |reason: String| format!("column `{name}`: {reason}");
            let column = match derived.map(|derived| &derived.conversion) {
                None => cast_column(&found, &field.column_type, &target),
                Some(Conversion::Bytes { path }) => {
                    let paths = path.as_ref().and_then(|path| find_column(data, path));
                    for (row, reason) in convert::rows_without_bytes(&found, paths.as_ref()) {
                        failures.push(RowFailure {
                            row,
                            offset: read.block.offset,
                            reason: in_column(reason),
                        });
                    }
                    cast_column(&found, &field.column_type, &target)
                }
                Some(Conversion::Names(names)) => {
                    convert::class_names(&found, names).and_then(|(found, unnamed)| {
                        let (column, _) = cast_column(&found, &field.column_type, &target)?;
                        Ok((column, unnamed))
                    })
                }
                // An index of an earlier release contains lists.
                Some(Conversion::Tensor(_)) if matches!(field.column_type, ColumnType::List(_)) => {
                    cast_column(&found, &field.column_type, &target)
                }
                Some(Conversion::Tensor(shape)) => {
                    convert::tensors(&found, shape).and_then(|(tensors, mut inexact)| {
                        let (column, more) = cast_column(&tensors, &field.column_type, &target)?;
                        inexact.extend(more);
                        inexact.sort_by_key(|inexact| inexact.row);
                        Ok((column, inexact))
                    })
                }
            };
            let (column, inexact) = column.map_err(in_column)?;
            failures.extend(row_failures(name, inexact, |_| read.block.offset));
            columns.push(column);
        }
        merge_failures(&mut failures);
        Ok((columns, failures))
    }

    fn add(&mut self, name: &str, field: &Field, feature: Option<&Feature>) {
        match (feature, field.data_type()) {
            (Some(Feature::Media), DataType::Struct(inner)) if inner.find("bytes").is_some() => {
                self.add_media(name, inner);
            }
            (Some(Feature::ClassLabel(names)), _) => {
                self.columns.push((name.to_owned(), column_type(field.data_type())));
                let derived =
                    Derived { field: name.to_owned(), conversion: Conversion::Names(names.clone()) };
                let of_names = format!("{name}.name");
                self.on_request.push((of_names.clone(), Ok(ColumnType::Utf8)));
                self.derived.insert(of_names, derived);
            }
            (Some(Feature::Array(Some(shape))), data_type) => {
                if let Ok(scalar) = tensor_scalar(data_type, shape) {
                    let conversion = Conversion::Tensor(shape.clone());
                    self.derived.insert(name.to_owned(), Derived { field: name.to_owned(), conversion });
                    self.columns
                        .push((name.to_owned(), Ok(ColumnType::Tensor { scalar, shape: shape.clone() })));
                } else {
                    self.add_plain(name, field);
                }
            }
            (Some(Feature::Struct(features)), DataType::Struct(inner)) => {
                for field in inner {
                    self.add(&format!("{name}.{}", field.name()), field, features.get(field.name()));
                }
            }
            (Some(Feature::List(item)), _) => self.add_list(name, field, item),
            (Some(Feature::Unsupported(kind)), _) => {
                self.columns.push((name.to_owned(), Err(unsupported(kind))));
            }
            _ => self.add_plain(name, field),
        }
    }

    fn add_media(&mut self, name: &str, inner: &Fields) {
        let bytes = format!("{name}.bytes");
        let path = inner.find("path").map(|_| format!("{name}.path"));
        let binary = inner.find("bytes").map(|(_, field)| column_type(field.data_type()));
        let column_type = binary.unwrap_or(Ok(ColumnType::Binary));
        let derived = Derived { field: bytes.clone(), conversion: Conversion::Bytes { path: path.clone() } };
        self.columns.push((name.to_owned(), column_type.clone()));
        self.columns.extend(path.map(|path| (path, Ok(ColumnType::Utf8))));
        self.on_request.push((bytes.clone(), column_type));
        self.derived.insert(bytes, derived.clone());
        self.derived.insert(name.to_owned(), derived);
    }

    /// Adds the columns of a list. Media and class labels in its items are lists of bytes and of names.
    fn add_list(&mut self, name: &str, field: &Field, item: &Feature) {
        let mut items = BTreeMap::new();
        collect_items(name, item, &mut items);
        let leaves = resolve_columns(&Fields::from(vec![field.clone().with_name(name)]));
        for (leaf, column_type) in &leaves {
            let is_within = |root: &str| {
                leaf.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            match items.iter().find(|(root, _)| is_within(root)) {
                Some((root, Feature::Unsupported(kind))) => {
                    self.columns.push((root.clone(), Err(unsupported(kind))));
                }
                Some((root, Feature::Media)) if *leaf == format!("{root}.bytes") => {
                    let path = format!("{root}.path");
                    let path = leaves.iter().any(|(leaf, _)| *leaf == path).then_some(path);
                    let derived = Derived { field: leaf.clone(), conversion: Conversion::Bytes { path } };
                    self.columns.push((root.clone(), column_type.clone()));
                    self.on_request.push((leaf.clone(), column_type.clone()));
                    self.derived.insert(leaf.clone(), derived.clone());
                    self.derived.insert(root.clone(), derived);
                }
                Some((_, Feature::ClassLabel(names))) => {
                    self.columns.push((leaf.clone(), column_type.clone()));
                    let of_names = format!("{leaf}.name");
                    self.on_request.push((of_names.clone(), column_type.clone().map(text_items)));
                    let conversion = Conversion::Names(names.clone());
                    self.derived.insert(of_names, Derived { field: leaf.clone(), conversion });
                }
                _ => self.columns.push((leaf.clone(), column_type.clone())),
            }
        }
    }

    /// Adds the columns of a field without a feature.
    fn add_plain(&mut self, name: &str, field: &Field) {
        let renamed = field.clone().with_name(name);
        self.columns.extend(resolve_columns(&Fields::from(vec![renamed])));
    }
}

fn unsupported(kind: &str) -> String {
    format!("the feature `{kind}` of Hugging Face is not supported")
}

/// Collects the features in the items of a list by their dotted names.
fn collect_items<'a>(name: &str, item: &'a Feature, items: &mut BTreeMap<String, &'a Feature>) {
    match item {
        Feature::List(item) => collect_items(name, item, items),
        Feature::Struct(features) => {
            for (field, feature) in features {
                collect_items(&format!("{name}.{field}"), feature, items);
            }
        }
        // An array in a list is a list.
        Feature::Plain | Feature::Array(_) => {}
        Feature::Media | Feature::ClassLabel(_) | Feature::Unsupported(_) => {
            items.insert(name.to_owned(), item);
        }
    }
}

/// Replaces the type of the items of lists by text.
fn text_items(column_type: ColumnType) -> ColumnType {
    match column_type {
        ColumnType::List(item) => ColumnType::List(Box::new(text_items(*item))),
        ColumnType::Tensor { .. } => ColumnType::List(Box::new(ColumnType::Utf8)),
        _ => ColumnType::Utf8,
    }
}

/// The element type of nested lists that form a tensor.
fn tensor_scalar(data_type: &DataType, shape: &[u32]) -> Result<ScalarType, String> {
    let elements = shape.iter().try_fold(1_u64, |product, &extent| product.checked_mul(extent.into()));
    if elements.is_none_or(|elements| elements > MAX_TENSOR_ELEMENTS) {
        return Err("the shape is too large".to_owned());
    }
    let mut inner = data_type;
    for _ in shape {
        inner = match inner {
            DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
                item.data_type()
            }
            _ => return Err("the lists have fewer dimensions than the shape".to_owned()),
        };
    }
    match column_type(inner)? {
        ColumnType::Scalar(scalar) => Ok(scalar),
        other => Err(format!("the elements are {other}")),
    }
}

#[cfg(test)]
mod tests;
