//! JSON payloads with a JSON Schema. The reader's schema determines the columns.

use feedline_data::schema::{ColumnType, ScalarType};
use serde_json::Value;

use super::decoding::{DecodedColumns, GroupDecoding};
use super::registry::RegisteredSchema;
use crate::formats::jsonl;
use crate::rows::RowSet;
use crate::select::ResolvedColumn;

/// Maximum number of references that are followed for one type.
const MAX_REFERENCES: usize = 32;

/// Returns the columns: the properties of the object.
pub(super) fn columns(reader: &RegisteredSchema) -> Result<Vec<ResolvedColumn>, String> {
    let invalid = |reason: &str| format!("schema {} is not a JSON Schema of an object: {reason}", reader.id);
    let root: Value = serde_json::from_str(&reader.text).map_err(|error| invalid(&error.to_string()))?;
    let documents = Documents { others: parse_references(reader) };
    let resolved = documents.resolve(&root, &root);
    let (document, object) = resolved.ok_or_else(|| invalid("its references cannot be resolved"))?;
    let properties = object.get("properties").and_then(Value::as_object);
    let properties = properties.ok_or_else(|| invalid("it has no `properties`"))?;
    Ok(properties
        .iter()
        .map(|(name, property)| (name.clone(), documents.column_type(document, property, 0)))
        .collect())
}

/// Decodes payloads of one writer's schema.
pub(super) fn decode(
    group: &GroupDecoding<'_>,
    rows: &RowSet,
    columns: &[(&str, &ColumnType)],
) -> Result<DecodedColumns, String> {
    let (arrays, mut failures) = jsonl::decode_columns(rows, columns)?;
    for failure in &mut failures {
        failure.reason = group.mismatch(&failure.reason);
    }
    Ok((arrays, failures))
}

fn parse_references(reader: &RegisteredSchema) -> Vec<(String, Value)> {
    let parsed =
        reader.references.iter().map(|(name, text)| Some((name.clone(), serde_json::from_str(text).ok()?)));
    parsed.flatten().collect()
}

/// The schemas that a schema refers to.
struct Documents {
    others: Vec<(String, Value)>,
}

impl Documents {
    /// Follows references of a schema in a document. Returns the document and the schema that they lead to; `None` if one is missing
    /// or they form a cycle.
    fn resolve<'a>(
        &'a self,
        mut document: &'a Value,
        mut schema: &'a Value,
    ) -> Option<(&'a Value, &'a Value)> {
        for _ in 0..MAX_REFERENCES {
            let Some(reference) = schema.get("$ref").and_then(Value::as_str) else {
                return Some((document, schema));
            };
            let (name, path) = reference.split_once('#').unwrap_or((reference, ""));
            if !name.is_empty() {
                let other = self.others.iter().find(|(known, _)| known == name);
                document = other.map(|(_, other)| other)?;
            }
            schema = document.pointer(path)?;
        }
        None
    }

    fn column_type(&self, document: &Value, property: &Value, depth: usize) -> Result<ColumnType, String> {
        if depth > MAX_REFERENCES {
            return Err("the type is nested too deep".to_owned());
        }
        let resolved = self.resolve(document, property);
        let (document, property) = resolved.ok_or("its reference cannot be resolved")?;
        if let Some(options) =
            property.get("oneOf").or_else(|| property.get("anyOf")).and_then(Value::as_array)
        {
            let is_null = |option: &&Value| option.get("type").and_then(Value::as_str) == Some("null");
            return match options.iter().filter(|option| !is_null(option)).collect::<Vec<_>>()[..] {
                [only] => self.column_type(document, only, depth + 1),
                _ => Err("several types are not supported".to_owned()),
            };
        }
        match type_name(property)? {
            "integer" => Ok(ColumnType::Scalar(ScalarType::Int64)),
            "number" => Ok(ColumnType::Scalar(ScalarType::Float64)),
            "boolean" => Ok(ColumnType::Scalar(ScalarType::Bool)),
            "string" => Ok(ColumnType::Utf8),
            "array" => {
                let items = property.get("items").ok_or("an array without `items` is not supported")?;
                Ok(ColumnType::List(Box::new(self.column_type(document, items, depth + 1)?)))
            }
            other => Err(format!("the type `{other}` is not supported")),
        }
    }
}

/// The only type of a property other than `null`.
fn type_name(property: &Value) -> Result<&str, String> {
    match property.get("type") {
        Some(Value::String(name)) => Ok(name),
        Some(Value::Array(names)) => {
            let names: Vec<&str> =
                names.iter().filter_map(Value::as_str).filter(|name| *name != "null").collect();
            match names[..] {
                [only] => Ok(only),
                _ => Err("several types are not supported".to_owned()),
            }
        }
        _ if property.get("enum").is_some_and(|values| {
            values.as_array().is_some_and(|values| values.iter().all(Value::is_string))
        }) =>
        {
            Ok("string")
        }
        _ => Err("a property without `type` is not supported".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::registry::SchemaLanguage;
    use super::*;

    fn types(text: &str) -> Result<Vec<String>, String> {
        let other =
            r##"{"definitions": {"t": {"type": "number"}, "s": {"$ref": "#/definitions/t"}}}"##.to_owned();
        let reader = RegisteredSchema {
            protobuf: Default::default(),
            id: 4,
            language: SchemaLanguage::Json,
            text: text.to_owned(),
            references: vec![("other.json".to_owned(), other)],
        };
        let show = |(name, column_type): ResolvedColumn| match column_type {
            Ok(column_type) => format!("{name}: {column_type}"),
            Err(reason) => format!("{name}! {reason}"),
        };
        Ok(columns(&reader)?.into_iter().map(show).collect())
    }

    #[test]
    fn properties_are_columns() {
        let found = types(
            r##"{"type": "object", "definitions": {"s": {"type": "string"}}, "properties": {
                "a": {"type": "integer"}, "b": {"type": ["null", "boolean"]}, "c": {"$ref": "#/definitions/s"},
                "d": {"type": "array", "items": {"$ref": "other.json#/definitions/t"}}, "e": {"enum": ["x", "y"]},
                "f": {"oneOf": [{"type": "null"}, {"type": "string"}]}, "g": {"type": "object"}, "h": {"$ref": "none.json"}, "i": {},
                "j": {"$ref": "other.json#/definitions/s"}}}"##,
        );
        assert_eq!(
            found.unwrap(),
            [
                "a: int64",
                "b: bool",
                "c: text",
                "d: list of float64",
                "e: text",
                "f: text",
                "g! the type `object` is not supported",
                "h! its reference cannot be resolved",
                "i! a property without `type` is not supported",
                "j: float64"
            ]
        );
        assert!(types(r##"{"$ref": "#"}"##).unwrap_err().contains("schema 4"));
        assert!(types("{").unwrap_err().contains("schema 4"));
    }
}
