//! The report of `feedline explain`, as text or as JSON.

use feedline_data::view::Bottleneck;
use feedline_planner::model::{GraphModel, JobModel, OperatorModel, Remedy, bottleneck, remedies};
use feedline_planner::plan::Plan;
use serde::Serialize;

use super::long_runs::LongRuns;
use super::sampled_graphs;
use super::seconds::format_seconds;
use super::trace::TraceResult;
use crate::size::{format_bytes, format_rate};
use crate::table;

/// The whole report. Field names are the keys of the JSON report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Explanation {
    /// The pipeline's name.
    pipeline: String,
    /// Rows delivered during the trace.
    rows: u64,
    /// Rows per second during the trace.
    measured_rows_per_s: f64,
    /// Maximum rows per second according to the model.
    bound_rows_per_s: Option<f64>,
    /// The resource that limits the rate.
    bottleneck: Option<Bottleneck>,
    /// Operators in order, beginning with the source.
    operators: Vec<OperatorLine>,
    /// The batches of a pipeline that samples a graph.
    #[serde(skip_serializing_if = "Option::is_none")]
    graph: Option<GraphModel>,
    /// Possible improvements, the best first.
    remedies: Vec<Remedy>,
    /// The plan for this job alone on these workers.
    plan: Option<Plan>,
    /// Compressed files that can only be decompressed from their start.
    #[serde(skip_serializing_if = "Option::is_none")]
    long_runs: Option<LongRuns>,
}

/// The costs of one operator.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct OperatorLine {
    name: String,
    /// Rows that the operator processes per second of CPU time; `None` if it used no CPU time.
    rows_per_core_s: Option<f64>,
    /// CPU time per delivered row, in seconds.
    cpu_s_per_row: f64,
    /// Waiting time per delivered row, in seconds.
    latency_s_per_row: f64,
    /// Input rows per delivered row.
    visit_ratio: f64,
    /// Output bytes per delivered row.
    bytes_per_row: f64,
    /// Output bytes of this operator for the whole dataset; `None` if it is not a cache point.
    dataset_bytes: Option<f64>,
    /// Whether the output rows can be cached.
    is_cacheable: bool,
    /// The operator's share of the CPU time of all operators.
    cpu_share: f64,
    /// Mean number of concurrent executions.
    active: f64,
    /// Maximum number of concurrent executions, if the pipeline pins it.
    parallelism: Option<u32>,
}

impl OperatorLine {
    fn new(operator: &OperatorModel, index: usize, model: &JobModel) -> Self {
        let cpu_s = operator.cpu_s_on("");
        let cut = model.cache_points.iter().find(|cut| cut.operator_index == index);
        Self {
            name: operator.name.clone(),
            rows_per_core_s: (cpu_s > 0.0).then(|| operator.visit_ratio / cpu_s),
            cpu_s_per_row: cpu_s,
            latency_s_per_row: operator.latency_s,
            visit_ratio: operator.visit_ratio,
            bytes_per_row: operator.bytes_out,
            dataset_bytes: cut.map(|cut| cut.bytes),
            is_cacheable: cut.is_some_and(|cut| cut.is_cacheable),
            cpu_share: operator.cpu_share,
            active: operator.mean_active,
            parallelism: operator.parallelism,
        }
    }
}

impl Explanation {
    /// Builds the report of a trace.
    pub(super) fn new(pipeline: &str, traced: TraceResult) -> Self {
        let TraceResult { rows, rows_per_s, model, resources, cache_capacities, plan, long_runs, .. } =
            traced;
        let bottleneck = bottleneck(&model, &resources);
        let operators = model.operators.iter().enumerate();
        Self {
            pipeline: pipeline.to_owned(),
            rows,
            measured_rows_per_s: rows_per_s,
            bound_rows_per_s: bottleneck.as_ref().map(|bound| bound.rows_per_s),
            bottleneck,
            operators: operators
                .map(|(index, operator)| OperatorLine::new(operator, index, &model))
                .collect(),
            remedies: remedies(&model, &resources, &cache_capacities),
            graph: model.graph,
            plan,
            long_runs,
        }
    }

    /// Formats the report as text.
    pub(super) fn to_text(&self) -> String {
        let mut text = format!("{}: {} rows traced\n\n{}\n", self.pipeline, self.rows, self.operator_table());
        if let Some(graph) = &self.graph {
            text.push_str(&sampled_graphs::render(graph));
            text.push('\n');
        }
        text.push_str(&format!("measured    {} rows/s\n", format_rate(self.measured_rows_per_s)));
        if let Some(Bottleneck { kind, operator, rows_per_s, explanation: why }) = &self.bottleneck {
            let operator = operator.as_ref().map(|name| format!(" of {name}")).unwrap_or_default();
            text.push_str(&format!("bound       {} rows/s\n", format_rate(*rows_per_s)));
            text.push_str(&format!("bottleneck  {}{operator}: {why}\n", kind.name()));
        }
        if self.remedies.is_empty() {
            text.push_str("\nno known change would increase the rate\n");
        } else {
            text.push_str("\npossible improvements\n");
            let rows: Vec<Vec<String>> =
                self.remedies.iter().map(|remedy| self.remedy_line(remedy)).collect();
            text.push_str(&table::render(&rows, &[0, 3]));
        }
        if let Some(plan) = self.plan.as_ref().filter(|plan| !plan.reasons.is_empty()) {
            text.push_str("\nplan\n");
            for reason in &plan.reasons {
                text.push_str(&format!("  {reason}\n"));
            }
        }
        if let Some(runs) = &self.long_runs {
            text.push_str(&runs.to_text());
        }
        text
    }

    fn remedy_line(&self, remedy: &Remedy) -> Vec<String> {
        let gain = self
            .bound_rows_per_s
            .filter(|bound| *bound > 0.0)
            .map_or(0.0, |bound| 100.0 * (remedy.predicted_rows_per_s / bound - 1.0));
        vec![
            format!("  {}", remedy.action),
            format!("{} rows/s", format_rate(remedy.predicted_rows_per_s)),
            format!("+{gain:.0} %"),
            if remedy.from_second_pass { "from the second pass on" } else { "" }.to_owned(),
        ]
    }

    fn operator_table(&self) -> String {
        let header = [
            "operator",
            "rows/core s",
            "cpu/row",
            "wait/row",
            "visits",
            "bytes/row",
            "dataset",
            "active",
            "cpu",
        ];
        let rows = self.operators.iter().map(|operator| {
            let pinned = operator.parallelism.map(|limit| format!(" of {limit}")).unwrap_or_default();
            vec![
                operator.name.clone(),
                operator.rows_per_core_s.map_or_else(|| "-".to_owned(), format_rate),
                format_seconds(operator.cpu_s_per_row),
                format_seconds(operator.latency_s_per_row),
                format!("{:.2}", operator.visit_ratio),
                format_bytes(operator.bytes_per_row),
                match operator.dataset_bytes {
                    Some(bytes) if operator.is_cacheable => format_bytes(bytes),
                    Some(_) => "random".to_owned(),
                    None => "-".to_owned(),
                },
                format!("{:.1}{pinned}", operator.active),
                format!("{:.0} %", 100.0 * operator.cpu_share),
            ]
        });
        table::render_with_header(header, rows, &[0])
    }
}

#[cfg(test)]
mod tests;
