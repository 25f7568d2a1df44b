//! A simulated job, with its layout, its costs and the demand of its consumers over time.

use std::sync::Arc;

use feedline_data::ids::Millis;
use feedline_data::layout::Layout;
use feedline_data::manifest::{Block, Manifest, Shard, ShardIndex, ShardRef};
use feedline_data::messages::JobSpec;
use feedline_data::pipeline::{Pipeline, Source};
use feedline_data::schema::{ColumnType, ScalarType, Schema};

use super::scenario;

/// A job of the scenario.
#[derive(Debug)]
pub(super) struct SimulatedJob {
    pub(super) name: String,
    pub(super) definition: Arc<scenario::ScenarioJob>,
    pub(super) layout: Layout,
    /// The name and the CPU seconds per row, at speed 1, of each operator, including the source and the batch operator.
    pub(super) operators: Vec<(String, f64)>,
    /// CPU seconds per row at speed 1, over all operators.
    pub(super) cpu_s_per_row: f64,
}

impl SimulatedJob {
    /// Creates a job with its spec and manifest. `number` is unique in the scenario.
    pub(super) fn new(
        definition: &Arc<scenario::ScenarioJob>,
        name: String,
        number: usize,
    ) -> Result<(Self, JobSpec, Manifest), String> {
        let mut builder = Pipeline::builder(name.as_str()).source(Source::text(format!("{number}")));
        for operator in &definition.operators {
            builder = builder.burn((1e6 * operator.cpu_s) as u64);
        }
        let pipeline = builder.batch(definition.batch_rows).build().map_err(|error| error.to_string())?;
        let manifest = build_manifest(definition, number)?;
        let spec = JobSpec {
            tenant: definition.tenant.clone(),
            name: name.clone(),
            epochs: definition.epochs,
            virtual_consumers: definition.consumers,
            consumers: definition.consumers,
            weight: definition.weight,
            elastic: false,
            ..JobSpec::new(pipeline)
        };
        let layout = Layout::new(&spec.pipeline, &manifest.summary(), spec.epochs, spec.virtual_consumers);
        let mut operators = vec![("source".to_owned(), 0.0)];
        operators.extend(definition.operators.iter().map(|operator| (operator.name.clone(), operator.cpu_s)));
        operators.push(("batch".to_owned(), 0.0));
        let cpu_s_per_row = operators.iter().map(|(_, cpu_s)| cpu_s).sum();
        let job = Self { name, definition: Arc::clone(definition), layout, operators, cpu_s_per_row };
        Ok((job, spec, manifest))
    }

    /// Returns the number of rows that a producer has written by `now`; `None` if all rows exist from the start.
    pub(super) fn arrived_rows(&self, now: Millis) -> Option<u64> {
        let steps = &self.definition.arrival;
        let (first, now_s) = (steps.first()?, now as f64 / 1e3);
        let ends = steps.iter().skip(1).map(|step| f64::from(step.at_s)).chain([f64::INFINITY]);
        let of_step = |(step, end): (&scenario::ScenarioDemand, f64)| {
            (end.min(now_s) - f64::from(step.at_s)).max(0.0) * step.rows_per_s
        };
        debug_assert_eq!(first.at_s, 0);
        Some(steps.iter().zip(ends).map(of_step).sum::<f64>() as u64)
    }

    /// Returns the rows per second that all consumers together could process.
    pub(super) fn demand_rows_per_s(&self, second: u32) -> f64 {
        let begun = self.definition.demand.iter().rev().find(|step| step.at_s <= second);
        begun.map_or(0.0, |step| step.rows_per_s)
    }
}

/// Extracts the number of a job from the URL of its source.
pub(super) fn job_number(source: &Source) -> Option<usize> {
    source.url.first()?.parse().ok()
}

/// Builds a manifest of shards with equal numbers of rows and one block each.
fn build_manifest(definition: &scenario::ScenarioJob, number: usize) -> Result<Manifest, String> {
    let count = u64::from(definition.shards);
    let mut schema = Schema::default();
    schema.set("label", ColumnType::Scalar(ScalarType::Int64));
    let shard = |place: u64| -> Result<Shard, String> {
        let rows = definition.dataset_rows / count + u64::from(place < definition.dataset_rows % count);
        let bytes = rows * definition.store_bytes_per_row;
        let rows = u32::try_from(rows).map_err(|_| {
            format!(
                "a shard of job `{}` has {rows} rows, but the maximum is {}: increase shards",
                definition.name,
                u32::MAX
            )
        })?;
        Ok(Shard::simulated(
            ShardRef {
                url: format!("{number}/{place}"),
                size_bytes: bytes,
                version: "1".to_owned(),
                ..ShardRef::default()
            },
            ShardIndex {
                blocks: vec![Block { rows, offset: 0, bytes, group: 0, row_bytes: Vec::new() }],
                schema: Some(schema.clone()),
                defects: Vec::new(),
                ..ShardIndex::default()
            },
        ))
    };
    Manifest::build((0..count).map(shard).collect::<Result<_, _>>()?)
}
