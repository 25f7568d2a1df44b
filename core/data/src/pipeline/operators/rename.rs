//! `rename`: renames columns.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind};
use crate::pipeline::PipelineBuilder;
use crate::pipeline::column_rules::column;
use crate::pipeline::parameter_checks::{column_name, few, named};
use crate::schema::MAX_COLUMNS;
use crate::schema::Schema;

/// Parameters of `rename`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rename {
    /// New name -> present name.
    pub columns: BTreeMap<String, String>,
}

impl OperatorDefinition for Rename {
    fn check(&self) -> Result<(), String> {
        let mut present = BTreeSet::new();
        few("columns", self.columns.len(), MAX_COLUMNS, "leave some out")?;
        if self.columns.is_empty() {
            return Err("columns is empty; write `{new: present}`, or remove this operator".to_owned());
        }
        for (new, old) in &self.columns {
            column_name("a column", new)?;
            column_name("a column", old)?;
            named("a new name", new)?;
            named("a present name", old)?;
            if !present.insert(old) {
                return Err(format!("`{old}` is given two new names; keep one of them"));
            }
        }
        Ok(())
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        renamed(input, self)
    }

    fn summary(&self) -> String {
        let renamed: Vec<String> =
            self.columns.iter().map(|(new, present)| format!("{new} <- {present}")).collect();
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
    /// Renames columns, given as (new name, present name).
    pub fn rename(self, columns: impl IntoIterator<Item = (impl Into<String>, impl Into<String>)>) -> Self {
        let columns = columns.into_iter().map(|(new, present)| (new.into(), present.into())).collect();
        self.operator(OperatorKind::Rename(Rename { columns }))
    }
}

/// Renames in place: a column keeps its position, and names may be exchanged.
fn renamed(input: &Schema, p: &Rename) -> Result<Schema, String> {
    let mut output = input.clone();
    for (new, present) in &p.columns {
        column(input, present)?;
        let stays = input.index_of(new).is_some() && !p.columns.values().any(|renamed| renamed == new);
        if stays {
            return Err(format!(
                "`{present}` cannot become `{new}`: there is a column `{new}` already; rename that one too, or drop it \
                 with select before"
            ));
        }
    }
    for (new, present) in &p.columns {
        if let Some(index) = input.index_of(present) {
            output.fields[index].name.clone_from(new);
        }
    }
    Ok(output)
}
