//! What `feedline explain` found: as a table with sentences, or as one line of JSON.

use feedline_data::view::Bottleneck;
use feedline_planner::model::{JobModel, OperatorModel, Remedy, bottleneck, remedies};
use feedline_planner::plan::Plan;
use serde::Serialize;

use super::trace::TraceResult;
use crate::size::{show_bytes, show_rate};
use crate::table;

/// Everything that was found. Field names are those of the JSON form.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Explanation {
    /// The pipeline's name.
    pipeline: String,
    /// Rows that were delivered while it was traced.
    rows: u64,
    /// Rows per second while it was traced.
    measured_rows_per_s: f64,
    /// Rows per second that the model allows.
    bound_rows_per_s: Option<f64>,
    /// What gives that bound.
    bottleneck: Option<Bottleneck>,
    /// Operators in order, the source first.
    operators: Vec<OperatorLine>,
    /// What would help, the best first.
    remedies: Vec<Remedy>,
    /// What the planner would do with this job alone on these workers.
    plan: Option<Plan>,
}

/// One operator.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct OperatorLine {
    name: String,
    /// Rows of this operator per second of CPU time; `None` where it took none.
    rows_per_core_s: Option<f64>,
    /// CPU time per row delivered, in seconds.
    cpu_s_per_row: f64,
    /// Time without CPU per row delivered, in seconds.
    latency_s_per_row: f64,
    /// Rows that come to it per row delivered.
    visit_ratio: f64,
    /// Bytes that it gives per row delivered.
    bytes_per_row: f64,
    /// Bytes of the whole dataset behind it, where rows could be kept.
    dataset_bytes: Option<f64>,
    /// Whether rows may be kept behind it.
    is_cacheable: bool,
    /// Its part of the operators' CPU time.
    cpu_share: f64,
    /// Executions at a time, mean.
    active: f64,
    /// Limit of them that the file pins.
    parallelism: Option<u32>,
}

impl OperatorLine {
    fn new(operator: &OperatorModel, place: usize, model: &JobModel) -> Self {
        let cpu_s = operator.cpu_s_on("");
        let cut = model.cuts.iter().find(|cut| cut.after == place);
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
    /// What the model says of what was traced.
    pub(super) fn new(pipeline: &str, traced: TraceResult) -> Self {
        let TraceResult { rows, rows_per_s, model, allocation, rooms, plan, .. } = traced;
        let bottleneck = bottleneck(&model, &allocation);
        let operators = model.operators.iter().enumerate();
        Self {
            pipeline: pipeline.to_owned(),
            rows,
            measured_rows_per_s: rows_per_s,
            bound_rows_per_s: bottleneck.as_ref().map(|bound| bound.rows_per_s),
            bottleneck,
            operators: operators
                .map(|(place, operator)| OperatorLine::new(operator, place, &model))
                .collect(),
            remedies: remedies(&model, &allocation, &rooms),
            plan,
        }
    }

    /// One line of JSON.
    pub(super) fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self).map(|line| line + "\n")
    }

    /// For people.
    pub(super) fn to_text(&self) -> String {
        let mut text = format!("{}: {} rows traced\n\n{}\n", self.pipeline, self.rows, self.operator_table());
        text.push_str(&format!("measured    {} rows/s\n", show_rate(self.measured_rows_per_s)));
        if let Some(Bottleneck { kind, operator, rows_per_s, why }) = &self.bottleneck {
            let operator = operator.as_ref().map(|name| format!(" of {name}")).unwrap_or_default();
            text.push_str(&format!("bound       {} rows/s\n", show_rate(*rows_per_s)));
            text.push_str(&format!("bottleneck  {}{operator}: {why}\n", kind.name()));
        }
        if self.remedies.is_empty() {
            text.push_str("\nnothing that is known here would make it faster\n");
        } else {
            text.push_str("\nwhat would help\n");
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
        text
    }

    fn remedy_line(&self, remedy: &Remedy) -> Vec<String> {
        let gain = self
            .bound_rows_per_s
            .filter(|bound| *bound > 0.0)
            .map_or(0.0, |bound| 100.0 * (remedy.predicted_rows_per_s / bound - 1.0));
        vec![
            format!("  {}", remedy.action),
            format!("{} rows/s", show_rate(remedy.predicted_rows_per_s)),
            format!("+{gain:.0} %"),
            if remedy.from_second_pass { "from the second pass on" } else { "" }.to_owned(),
        ]
    }

    fn operator_table(&self) -> String {
        let head = [
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
                operator.rows_per_core_s.map_or_else(|| "-".to_owned(), show_rate),
                show_seconds(operator.cpu_s_per_row),
                show_seconds(operator.latency_s_per_row),
                format!("{:.2}", operator.visit_ratio),
                show_bytes(operator.bytes_per_row),
                match operator.dataset_bytes {
                    Some(bytes) if operator.is_cacheable => show_bytes(bytes),
                    Some(_) => "random".to_owned(),
                    None => "-".to_owned(),
                },
                format!("{:.1}{pinned}", operator.active),
                format!("{:.0} %", 100.0 * operator.cpu_share),
            ]
        });
        let head = head.map(str::to_owned).to_vec();
        table::render(&[head].into_iter().chain(rows).collect::<Vec<_>>(), &[0])
    }
}

fn show_seconds(seconds: f64) -> String {
    match seconds {
        0.0 => "-".to_owned(),
        s if s < 1e-6 => format!("{:.0} ns", s * 1e9),
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

#[cfg(test)]
mod tests;
