//! Parses the features of a Hugging Face dataset, in the JSON form of `datasets.Features.to_dict`.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// The features of a dataset or of a struct by name.
pub(super) type Features = BTreeMap<String, Feature>;

/// A feature as far as it affects columns.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Feature {
    /// A value, list or text whose Arrow type says everything.
    Plain,
    /// `Image` or `Audio`: bytes and a path.
    Media,
    /// Class indexes and the names of the classes.
    ClassLabel(Vec<String>),
    /// `Array2D` to `Array5D`; `None` if an extent is not fixed.
    Array(Option<Vec<u32>>),
    Struct(Features),
    /// A list of items with a feature other than `Plain`.
    List(Box<Feature>),
    /// A feature of this name that Feedline does not read.
    Unsupported(String),
}

/// Parses the metadata of a schema.
pub(super) fn features(json: &str) -> Result<Features, String> {
    let invalid = |reason: &dyn std::fmt::Display| {
        format!(
            "the metadata `huggingface` of the schema is invalid ({reason}): write the file again with the library `datasets`"
        )
    };
    let value: Value = serde_json::from_str(json).map_err(|error| invalid(&error))?;
    match value.pointer("/info/features") {
        None | Some(Value::Null) => Ok(Features::new()),
        Some(Value::Object(features)) => Ok(struct_features(features)),
        Some(_) => Err(invalid(&"its features are not a mapping")),
    }
}

fn struct_features(features: &Map<String, Value>) -> Features {
    features.iter().map(|(name, value)| (name.clone(), feature(value))).collect()
}

fn feature(value: &Value) -> Feature {
    let Value::Object(map) = value else { return Feature::Plain };
    let Some(Value::String(kind)) = map.get("_type") else { return Feature::Struct(struct_features(map)) };
    match kind.as_str() {
        "Value" | "Translation" | "TranslationVariableLanguages" => Feature::Plain,
        "Sequence" | "List" | "LargeList" => match map.get("feature").map_or(Feature::Plain, feature) {
            Feature::Plain => Feature::Plain,
            item => Feature::List(Box::new(item)),
        },
        "Image" | "Audio" => Feature::Media,
        "ClassLabel" => Feature::ClassLabel(class_names(map)),
        "Array2D" | "Array3D" | "Array4D" | "Array5D" => Feature::Array(shape(map)),
        other => Feature::Unsupported(other.chars().take(40).collect()),
    }
}

fn class_names(map: &Map<String, Value>) -> Vec<String> {
    let names = map.get("names").and_then(Value::as_array);
    names.into_iter().flatten().filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

fn shape(map: &Map<String, Value>) -> Option<Vec<u32>> {
    let extents = map.get("shape")?.as_array()?;
    extents.iter().map(|extent| extent.as_u64().and_then(|extent| extent.try_into().ok())).collect()
}
