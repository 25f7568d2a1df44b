//! The number of nodes of each type: stated, or that of ids or features, or found in the edges.

use super::edge_input::EdgeInput;
use super::node_table::checked_count;
use super::plan::NodePlan;
use super::run::BuildSettings;
use crate::error::GraphError;

/// Returns the number of nodes of each type. `relations` contains the edges, and the types of their ends.
///
/// # Errors
/// Returns an error if the numbers of a type differ, or the input is invalid.
pub(super) fn count_nodes(
    nodes: &[NodePlan<'_>],
    relations: &[(&EdgeInput, [usize; 2])],
    settings: &BuildSettings,
) -> Result<Vec<u32>, GraphError> {
    let mut counts: Vec<Option<u64>> = Vec::new();
    for plan in nodes {
        counts.push(stated_count(plan)?);
    }
    let mut largest: Vec<u64> = vec![0; nodes.len()];
    for (input, ends) in relations {
        for (end, count) in
            maxima(input, ends.map(|end| counts[end].is_none()), settings)?.into_iter().enumerate()
        {
            largest[ends[end]] = largest[ends[end]].max(count);
        }
    }
    let found = nodes.iter().zip(counts).zip(largest);
    found.map(|((plan, count), largest)| checked_count(plan.name, count.unwrap_or(largest))).collect()
}

/// Returns the number of nodes that ids, features or the user state.
fn stated_count(plan: &NodePlan<'_>) -> Result<Option<u64>, GraphError> {
    let mut count = plan.id_count;
    if let Some(stated) = plan.spec.count {
        if let Some(ids) = count.filter(|&ids| ids != stated) {
            return Err(GraphError::Setting(format!(
                "the node type `{}` has {ids} ids, but `count` is {stated}: correct one of them",
                plan.name
            )));
        }
        count = Some(stated);
    }
    for feature in &plan.features {
        match count {
            Some(count) if count != feature.count() => return Err(feature.wrong_count(count, "nodes")),
            _ => count = Some(feature.count()),
        }
    }
    Ok(count)
}

/// Returns one more than the largest position at each end; 0 for ends that are not needed.
fn maxima(input: &EdgeInput, needed: [bool; 2], settings: &BuildSettings) -> Result<[u64; 2], GraphError> {
    let known = [0, 1].map(|end| if needed[end] { input.maximum(end) } else { Some(-1) });
    if let [Some(source), Some(target)] = known {
        return Ok([source, target].map(|largest| largest.saturating_add(1).unsigned_abs()));
    }
    let states = input.scan(
        settings,
        || [0_u64; 2],
        |largest, edges, rows| {
            for (end, positions) in [&edges.sources, &edges.targets].into_iter().enumerate() {
                if !needed[end] {
                    continue;
                }
                for (edge, &position) in positions.iter().enumerate() {
                    // Negative numbers have the high bit.
                    if position >= 1 << 63 {
                        let reason =
                            format!("the node {} does not exist: nodes are counted from 0", position as i64);
                        return Err(rows.invalid_row(edges.row_in_chunk(edge), reason));
                    }
                    largest[end] = largest[end].max(position + 1);
                }
            }
            Ok(())
        },
    )?;
    let merge = |[source, target]: [u64; 2], state: [u64; 2]| [source.max(state[0]), target.max(state[1])];
    Ok(states.into_iter().fold([0; 2], merge))
}
