//! The features of a pipeline file, and the features of a graph that they select.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::graph::FeatureSummary;
use crate::pipeline::parameter_checks::{check_column, check_count, first_duplicate};
use crate::pipeline::{did_you_mean, join_names};
use crate::schema::{MAX_COLUMNS, ScalarType};

/// Features of nodes, with the types that they are converted to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a list of features, such as [x], or a mapping from features to types, such as {x: float16}"
)]
pub enum FeatureList {
    /// Features with the types that they are stored with.
    Names(Vec<String>),
    /// Features with the types of a batch.
    Typed(BTreeMap<String, ScalarType>),
}

impl Default for FeatureList {
    fn default() -> Self {
        Self::Names(Vec::new())
    }
}

impl FeatureList {
    /// Whether the list contains no features.
    pub fn is_empty(&self) -> bool {
        self.entries().next().is_none()
    }

    /// The names of the features, with the type that a feature is converted to.
    pub fn entries(&self) -> impl Iterator<Item = (&str, Option<ScalarType>)> {
        let (names, typed) = match self {
            Self::Names(names) => (names.as_slice(), None),
            Self::Typed(typed) => (Default::default(), Some(typed)),
        };
        let typed = typed.into_iter().flatten().map(|(name, dtype)| (name.as_str(), Some(*dtype)));
        names.iter().map(|name| (name.as_str(), None)).chain(typed)
    }

    pub(super) fn check(&self) -> Result<(), String> {
        check_count("features", self.entries().count(), MAX_COLUMNS, "remove some")?;
        for (name, _) in self.entries() {
            check_column("features", name)?;
        }
        match self {
            Self::Names(names) => match first_duplicate(names) {
                Some(twice) => Err(format!("features lists `{twice}` twice; remove one entry")),
                None => Ok(()),
            },
            Self::Typed(_) => Ok(()),
        }
    }
}

impl fmt::Display for FeatureList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entry = |(name, dtype): (&str, Option<ScalarType>)| match dtype {
            Some(dtype) => format!("{name} as {}", dtype.name()),
            None => name.to_owned(),
        };
        f.write_str(&self.entries().map(entry).collect::<Vec<_>>().join(", "))
    }
}

/// A feature that an entry of a pipeline file selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SelectedFeature {
    /// The index of the node type or relation.
    pub(super) owner: usize,
    /// The index among the features of the owner.
    pub(super) feature: usize,
    /// The type of the numbers in a batch.
    pub(super) dtype: ScalarType,
}

/// Returns the features that `name` selects: those with this name of all `owners`, or that of one owner for `OWNER.NAME`.
/// `parameter` is the name of the list in messages.
///
/// # Errors
/// Returns a message if there is no such feature, or its numbers cannot be converted to `dtype`.
pub(super) fn select_features(
    parameter: &str,
    name: &str,
    dtype: Option<ScalarType>,
    owners: &[(String, &[FeatureSummary])],
) -> Result<Vec<SelectedFeature>, String> {
    let (owner_name, feature_name) = match name.split_once('.') {
        Some((owner, feature)) => (Some(owner), feature),
        None => (None, name),
    };
    let mut selected = Vec::new();
    for (owner, (owner_key, features)) in owners.iter().enumerate() {
        if owner_name.is_some_and(|name| name != owner_key) {
            continue;
        }
        let Some(feature) = features.iter().position(|feature| feature.name == feature_name) else {
            continue;
        };
        let stored = features[feature].dtype;
        let dtype = dtype.unwrap_or(stored);
        if !can_convert(stored, dtype) {
            return Err(format!(
                "{parameter}: `{name}` is stored as {}, which cannot be converted to {}; use {0}, or build the graph with another type",
                stored.name(),
                dtype.name()
            ));
        }
        selected.push(SelectedFeature { owner, feature, dtype });
    }
    if selected.is_empty() {
        let known: Vec<String> = owners
            .iter()
            .flat_map(|(owner, features)| features.iter().map(move |feature| (owner, feature)))
            .map(|(owner, feature)| match owner_name {
                Some(_) => format!("{owner}.{}", feature.name),
                None => feature.name.clone(),
            })
            .collect();
        let names = || known.iter().map(String::as_str);
        let hint = did_you_mean(name, names());
        let separator = if hint.is_empty() { ";" } else { "" };
        return Err(format!(
            "{parameter}: the graph has no feature `{name}`{hint}{separator} the features are {}",
            join_names(names())
        ));
    }
    Ok(selected)
}

/// Whether numbers can be converted while they are copied. Floating-point numbers can be converted to each other.
fn can_convert(from: ScalarType, to: ScalarType) -> bool {
    let is_float = |dtype| matches!(dtype, ScalarType::Float16 | ScalarType::Float32 | ScalarType::Float64);
    from == to || is_float(from) && is_float(to)
}
