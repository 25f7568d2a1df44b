//! Renders a pipeline as text: a line for the source, a line for the order, and a line per operator with its key parameters.

use super::{MixStop, OnError, OrderMode, Partitions, Pipeline, Source};

#[cfg(test)]
mod tests;

impl Pipeline {
    /// Renders the pipeline as text for users and golden tests. Each line ends with a newline and has no trailing spaces.
    pub fn render(&self) -> String {
        let names = self.operator_names();
        let width = names.iter().map(String::len).chain(["source".len()]).max().unwrap_or_default();
        let mut text = format!("pipeline {}\n", self.name);
        push_line(&mut text, "", "source", width, &self.source_summary());
        push_line(&mut text, "", "order", width, &self.order_summary());
        for (index, (operator, name)) in self.operators.iter().zip(&names).enumerate() {
            let mut summary = operator.kind.definition().summary();
            if let Some(parallelism) = operator.parallelism {
                summary.push_str(&format!(", parallelism {parallelism}"));
            }
            push_line(&mut text, &(index + 1).to_string(), name, width, &summary);
        }
        text
    }

    fn source_summary(&self) -> String {
        let Some(mix) = &self.source.mix else { return dataset_summary(&self.source) };
        let parts =
            mix.parts.iter().map(|part| format!("{} x {}", part.weight, dataset_summary(&part.source)));
        let stop = match mix.stop {
            MixStop::All => "until all datasets are exhausted",
            MixStop::First => "until the first dataset is exhausted",
            MixStop::Restart => "until all datasets are exhausted, restarting shorter datasets",
        };
        format!("mix of {}; {stop}", parts.collect::<Vec<_>>().join(" + "))
    }

    fn order_summary(&self) -> String {
        let order = match self.order {
            OrderMode::Deterministic => "deterministic",
            OrderMode::Relaxed => "relaxed",
        };
        let on_error = match self.on_error {
            OnError::Fail => "fail",
            OnError::Skip => "skip",
            OnError::Replace => "replace",
        };
        let shuffle = match self.shuffle.window {
            0 => "storage order".to_owned(),
            window => format!("shuffle window {window}"),
        };
        format!("{order}, {shuffle}, seed {}, on error {on_error}", self.seed)
    }
}

fn dataset_summary(source: &Source) -> String {
    let mut summary = format!("{} {}", source.format.name(), source.url.join(", "));
    if let Some(kafka) = &source.kafka {
        summary.push_str(&format!(
            ", topics {}, payload {}",
            kafka.topics.join(", "),
            kafka.payload.format.name()
        ));
    }
    if !source.features.is_empty() {
        let feature = |(column, data_name): (&String, &String)| {
            let optional = if source.optional.contains(column) { " if present" } else { "" };
            format!("{column} <- {data_name}{optional}")
        };
        let features: Vec<String> = source.features.iter().map(feature).collect();
        summary.push_str(&format!(" ({})", features.join(", ")));
    }
    if let Some(name) = &source.credentials {
        summary.push_str(&format!(", credentials {name}"));
    }
    if let Some(compression) = source.compression {
        summary.push_str(&format!(", compression {}", compression.name()));
    }
    if source.partitions == Some(Partitions::Hive) {
        summary.push_str(", partitions hive");
    }
    for (key, value) in [("config", &source.config), ("split", &source.split), ("seeds", &source.seeds)] {
        if let Some(value) = value {
            summary.push_str(&format!(", {key} {value}"));
        }
    }
    summary
}

fn push_line(text: &mut String, number: &str, name: &str, width: usize, summary: &str) {
    let line = format!("{number:>4}  {name:<width$}  {summary}").replace('\n', " ");
    text.push_str(line.trim_end());
    text.push('\n');
}
