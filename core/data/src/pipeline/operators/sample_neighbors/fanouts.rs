//! The fanouts of a pipeline file: for all relations, or by relation.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::graph::{Fanout, GraphSummary};
use crate::pipeline::parameter_checks::{check_column_name_length, check_count, check_given};
use crate::pipeline::{did_you_mean, join_names};

/// Maximum number of hops, which is that of a sampler.
const MAX_HOPS: usize = 255;
/// Maximum number of relations, which is that of a graph.
const MAX_RELATIONS: usize = 1 << 16;

/// The number of neighbors that are sampled for each node. -1 samples all neighbors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a list with a number of neighbors for each hop, such as [15, 10], or a mapping from relations to such lists"
)]
pub enum FanoutList {
    /// The fanout of each hop, in every relation.
    AllRelations(Vec<i64>),
    /// The fanout of each hop by relation.
    ByRelation(BTreeMap<String, Vec<i64>>),
}

impl FanoutList {
    /// The number of hops.
    pub fn hops(&self) -> usize {
        match self {
            Self::AllRelations(fanouts) => fanouts.len(),
            Self::ByRelation(relations) => relations.values().next().map_or(0, Vec::len),
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let hops = self.hops();
        if hops == 0 {
            return Err(
                "fanouts is empty; write a number of neighbors for each hop, such as [15, 10]".to_owned()
            );
        }
        if hops > MAX_HOPS {
            return Err(format!("fanouts has {hops} hops; the limit is {MAX_HOPS}"));
        }
        match self {
            Self::AllRelations(fanouts) => check_numbers(fanouts),
            Self::ByRelation(relations) => {
                check_count("relations in fanouts", relations.len(), MAX_RELATIONS, "remove some")?;
                for (relation, fanouts) in relations {
                    check_given("a relation in fanouts", relation, "its key, such as author__writes__paper")?;
                    check_column_name_length("the relation", relation)?;
                    if fanouts.len() != hops {
                        return Err(format!(
                            "fanouts has {} hops for `{relation}`, but {hops} for another relation; write the same number of hops for each relation",
                            fanouts.len()
                        ));
                    }
                    check_numbers(fanouts)?;
                }
                Ok(())
            }
        }
    }

    /// Returns the fanout of each relation of a graph in each hop.
    ///
    /// # Errors
    /// Returns a message that names a relation that the graph does not have.
    pub(super) fn resolve(&self, graph: &GraphSummary) -> Result<Vec<Vec<Fanout>>, String> {
        if let Self::ByRelation(relations) = self
            && let Some(unknown) = relations.keys().find(|key| graph.relation(key).is_none())
        {
            let keys: Vec<String> = graph.relations.iter().map(|relation| relation.key()).collect();
            let known = || keys.iter().map(String::as_str);
            let hint = did_you_mean(unknown, known());
            let separator = if hint.is_empty() { ";" } else { "" };
            return Err(format!(
                "fanouts names the relation `{unknown}`, which the graph does not have{hint}{separator} the relations are {}",
                join_names(known())
            ));
        }
        let fanout = |key: &str, hop: usize| {
            let number = match self {
                Self::AllRelations(fanouts) => fanouts.get(hop),
                Self::ByRelation(relations) => relations.get(key).and_then(|fanouts| fanouts.get(hop)),
            };
            number.map_or(Some(Fanout::Limit(0)), |number| Fanout::from_number(*number))
        };
        let keys: Vec<String> = graph.relations.iter().map(|relation| relation.key()).collect();
        let hop = |hop: usize| keys.iter().map(|key| fanout(key, hop)).collect::<Option<Vec<Fanout>>>();
        let fanouts: Option<Vec<Vec<Fanout>>> = (0..self.hops()).map(hop).collect();
        fanouts.ok_or_else(|| "fanouts has an invalid number of neighbors".to_owned())
    }
}

fn check_numbers(fanouts: &[i64]) -> Result<(), String> {
    match fanouts.iter().find(|number| Fanout::from_number(**number).is_none()) {
        None => Ok(()),
        Some(invalid) => Err(format!(
            "fanouts contains {invalid}; expected a number of neighbors from 0 to 65536, or -1 for all neighbors"
        )),
    }
}

impl fmt::Display for FanoutList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllRelations(fanouts) => write!(f, "{fanouts:?}"),
            Self::ByRelation(relations) => {
                let parts: Vec<String> =
                    relations.iter().map(|(relation, fanouts)| format!("{relation} {fanouts:?}")).collect();
                f.write_str(&parts.join(", "))
            }
        }
    }
}
