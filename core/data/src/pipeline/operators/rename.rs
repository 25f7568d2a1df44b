//! `rename`: renames columns.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind};
use crate::pipeline::PipelineBuilder;
use crate::pipeline::column_rules::find_column;
use crate::pipeline::parameter_checks::{check_column, check_count};
use crate::schema::{MAX_COLUMNS, Schema};

/// Parameters of `rename`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rename {
    /// Maps new names to current names.
    pub columns: BTreeMap<String, String>,
}

impl OperatorDefinition for Rename {
    fn check(&self) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        check_count("columns", self.columns.len(), MAX_COLUMNS, "remove some")?;
        if self.columns.is_empty() {
            return Err("columns is empty; write `{new: current}`, or remove this operator".to_owned());
        }
        for (new, current) in &self.columns {
            check_column("new name", new)?;
            check_column("current name", current)?;
            if !seen.insert(current) {
                return Err(format!("column `{current}` has two new names; remove one of them"));
            }
        }
        Ok(())
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        infer_renamed(input, self)
    }

    fn summary(&self) -> String {
        let renamed: Vec<String> =
            self.columns.iter().map(|(new, current)| format!("{new} <- {current}")).collect();
        renamed.join(", ")
    }

    fn require_inputs(&self, _input: &Schema, required: &mut BTreeSet<String>) {
        for new in self.columns.keys() {
            required.remove(new);
        }
        required.extend(self.columns.values().cloned());
    }
}

impl PipelineBuilder {
    /// Renames columns. Each pair contains the new and the current name.
    pub fn rename(self, columns: impl IntoIterator<Item = (impl Into<String>, impl Into<String>)>) -> Self {
        let columns = columns.into_iter().map(|(new, current)| (new.into(), current.into())).collect();
        self.operator(OperatorKind::Rename(Rename { columns }))
    }
}

/// Renames columns in the schema. Renamed columns keep their order, and two columns may swap names.
fn infer_renamed(input: &Schema, p: &Rename) -> Result<Schema, String> {
    let mut output = input.clone();
    for (new, current) in &p.columns {
        find_column(input, current)?;
        let is_taken = input.get(new).is_some() && !p.columns.values().any(|renamed| renamed == new);
        if is_taken {
            return Err(format!(
                "cannot rename `{current}` to `{new}`: column `{new}` already exists; rename that column too, or drop it \
                 with select before rename"
            ));
        }
    }
    for (new, current) in &p.columns {
        if let Some(index) = input.index_of(current) {
            output.fields[index].name.clone_from(new);
        }
    }
    Ok(output)
}
