//! The negatives of links in a pipeline file.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::graph::{GraphSummary, MAX_NEGATIVES, NegativeMode, NegativeRule, NegativeWeights};
use crate::pipeline::parameter_checks::{MAX_BATCH_ROWS, check_range};

/// The pairs of nodes that are drawn for each link, which a model is trained to distinguish from links.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NegativeSampling {
    /// Whether a negative is a source and a target, or a target for the source of the link.
    pub mode: NegativeMode,
    /// The number of negatives of each link.
    #[serde(default = "one")]
    pub amount: u32,
    /// Whether a pair that is an edge of the relation is never a negative.
    #[serde(default)]
    pub strict: bool,
    /// The probabilities of the nodes.
    #[serde(default)]
    pub by: NegativeWeights,
}

fn one() -> u32 {
    1
}

impl NegativeSampling {
    /// Checks the parameters. `size` is the number of links in a batch.
    pub(super) fn check(&self, size: u32) -> Result<(), String> {
        check_range("negatives.amount", self.amount, 1, MAX_NEGATIVES)?;
        let pairs = u64::from(size) * (1 + u64::from(self.amount));
        if pairs > u64::from(MAX_BATCH_ROWS) {
            return Err(format!(
                "a batch would have {pairs} links and negatives; the limit is {MAX_BATCH_ROWS}; use a smaller size or a smaller negatives.amount"
            ));
        }
        Ok(())
    }

    /// Returns the rule for the links of a relation.
    ///
    /// # Errors
    /// Returns a message if the graph does not contain the degrees of the nodes.
    pub(super) fn resolve(&self, relation: usize, graph: &GraphSummary) -> Result<NegativeRule, String> {
        let mut reverse = relation;
        if self.by == NegativeWeights::Degree {
            if self.mode == NegativeMode::Binary {
                reverse = graph.reverse_of(relation).ok_or_else(|| {
                    let relation = &graph.relations[relation];
                    format!(
                        "negatives.by is degree^0.75, but the graph has no relation `rev_{}` from `{}` to `{}` with the degrees of the sources; use `mode: triplet` or `by: uniform`",
                        relation.name, relation.target, relation.source
                    )
                })?;
            }
            let mut relations = [relation, reverse].into_iter().map(|index| &graph.relations[index]);
            if let Some(empty) = relations.find(|relation| relation.edges == 0) {
                return Err(format!(
                    "negatives.by is degree^0.75, but the relation `{}` has no edges; use `by: uniform`",
                    empty.key()
                ));
            }
        }
        let NegativeSampling { mode, amount, strict, by } = *self;
        // The check of a description limits the number of relations.
        Ok(NegativeRule { mode, amount, strict, by, relation: relation as u16, reverse: reverse as u16 })
    }
}

impl fmt::Display for NegativeSampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let strict = if self.strict { "strict " } else { "" };
        let mode = match self.mode {
            NegativeMode::Binary => "binary",
            NegativeMode::Triplet => "triplet",
        };
        write!(f, "{} {strict}{mode} negatives", self.amount)?;
        match self.by {
            NegativeWeights::Uniform => Ok(()),
            NegativeWeights::Degree => f.write_str(" by degree^0.75"),
        }
    }
}
