//! The seeds of a batch: the ids in the rows of a group, checked, and the other columns of the rows.

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array};
use arrow::compute::{cast, filter};
use arrow::datatypes::{DataType, Field, Int64Type};
use feedline_data::graph::{BatchSeeds, Seed, SeedEdge, SeedRow};
use feedline_data::pipeline::{GraphBatchPlan, GraphColumnContent};

use crate::engine::chunk::WorkChunk;
use crate::engine::failures::{FailedRow, GroupFailures};
use crate::engine::graph_job::GraphJob;
use crate::engine::round::join_column;

/// The rows of a group that remain after the operators.
pub(super) struct GatheredSeeds {
    /// The index of each row in the group.
    pub(super) indexes: Vec<usize>,
    /// The ids of the seeds: a column for `node`, or for `source` and `target`.
    ids: Vec<Int64Array>,
    /// The time of each row.
    times: Option<Int64Array>,
    /// The columns that become lists, in the order of the plan.
    pub(super) columns: Vec<ArrayRef>,
}

/// The input of a sampler.
#[derive(Debug, Default)]
pub(super) struct SamplerInput {
    rows: Vec<SeedRow>,
    seeds: Vec<Seed>,
    excluded: Vec<SeedEdge>,
}

impl SamplerInput {
    pub(super) fn as_seeds(&self) -> BatchSeeds<'_> {
        BatchSeeds { rows: &self.rows, seeds: &self.seeds, excluded: &self.excluded }
    }
}

impl GatheredSeeds {
    /// Joins the columns of all chunks.
    pub(super) fn gather(graph: &GraphJob, chunks: &[WorkChunk]) -> Result<Self, String> {
        let plan = &graph.plan;
        let integers = |name: &str| {
            let column = join_column(chunks, &Field::new(name, DataType::Int64, true))?;
            // Numbers that do not fit become null.
            let column =
                cast(&column, &DataType::Int64).map_err(|error| format!("column `{name}`: {error}"))?;
            Ok::<_, String>(column.as_primitive::<Int64Type>().clone())
        };
        let mut columns = Vec::new();
        for (column, field) in plan.columns.iter().zip(graph.schema.fields()) {
            if column.content != GraphColumnContent::RowColumn {
                continue;
            }
            let DataType::List(item) = field.data_type() else {
                return Err(format!("column `{}` is not a list; please report this", column.name));
            };
            columns.push(join_column(chunks, &item.as_ref().clone().with_name(&column.name))?);
        }
        Ok(Self {
            indexes: chunks.iter().flat_map(WorkChunk::indexes).collect(),
            ids: plan.seeds.iter().map(|(name, _)| integers(name)).collect::<Result<_, _>>()?,
            times: plan.time_column.as_deref().map(integers).transpose()?,
            columns,
        })
    }

    /// The number of rows.
    pub(super) fn len(&self) -> usize {
        self.indexes.len()
    }

    /// The nodes of each seed column. All ids are valid.
    pub(super) fn nodes(&self) -> Vec<Vec<u32>> {
        self.ids.iter().map(|ids| ids.values().iter().map(|id| *id as u32).collect()).collect()
    }

    /// Removes the rows whose ids are not nodes of the graph, or that have no time, and adds them to the failed rows.
    pub(super) fn remove_invalid(
        &mut self,
        graph: &GraphJob,
        failed: &mut GroupFailures,
    ) -> Result<(), String> {
        let keep: Vec<bool> = (0..self.len())
            .map(|row| match self.invalid_value(graph, row) {
                None => true,
                Some(reason) => {
                    let failure = FailedRow { offset: None, reason };
                    failed.entry(self.indexes[row]).or_insert(failure);
                    false
                }
            })
            .collect();
        if keep.iter().all(|keep| *keep) {
            return Ok(());
        }
        let mut kept = keep.iter();
        self.indexes.retain(|_| kept.next().copied().unwrap_or(false));
        let mask = BooleanArray::from(keep);
        let filtered = |array: &dyn Array| filter(array, &mask).map_err(|error| error.to_string());
        for ids in self.ids.iter_mut().chain(&mut self.times) {
            *ids = filtered(&*ids)?.as_primitive::<Int64Type>().clone();
        }
        for column in &mut self.columns {
            *column = filtered(column.as_ref())?;
        }
        Ok(())
    }

    /// Returns the reason why a row cannot be a seed.
    fn invalid_value(&self, graph: &GraphJob, row: usize) -> Option<String> {
        let counts = graph.graph.node_counts();
        for ((name, node_type), ids) in graph.plan.seeds.iter().zip(&self.ids) {
            let count = counts.get(usize::from(*node_type)).copied().unwrap_or(0);
            if ids.is_null(row) {
                return Some(format!("column `{name}` is null or not a node id"));
            }
            let id = ids.value(row);
            if !(0..i64::from(count)).contains(&id) {
                return Some(format!(
                    "column `{name}` is {id}, but the graph has {count} nodes of this type"
                ));
            }
        }
        let name = graph.plan.time_column.as_deref()?;
        let is_missing = self.times.as_ref().is_some_and(|times| times.is_null(row));
        is_missing.then(|| format!("column `{name}` is null or not a time"))
    }

    /// Returns the input of the sampler. `first` is the offset of the group in the row sequence of the epoch.
    pub(super) fn input(&self, plan: &GraphBatchPlan, epoch: u32, first: u64) -> SamplerInput {
        let mut input = SamplerInput::default();
        for (row, index) in (0_u32..).zip(&self.indexes) {
            let time = self.times.as_ref().map_or(0, |times| times.value(row as usize));
            input.rows.push(SeedRow { epoch, position: first + *index as u64, time });
            // The ids are checked.
            let node = |slot: usize| self.ids.get(slot).map_or(0, |ids| ids.value(row as usize) as u32);
            for (slot, (_, node_type)) in plan.seeds.iter().enumerate() {
                let seed = Seed { node_type: *node_type, slot: slot as u16, row, node: node(slot) };
                input.seeds.push(seed);
            }
            let Some(excluded) = plan.excluded else { continue };
            let (source, target) = (node(0), node(1));
            input.excluded.push(SeedEdge { relation: excluded.relation, row, source, target });
            if let Some(relation) = excluded.reverse {
                input.excluded.push(SeedEdge { relation, row, source: target, target: source });
            }
        }
        input
    }
}
