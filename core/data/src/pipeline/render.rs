//! A pipeline as text: one line for the source, one for the order, one per operator with its key parameters.

use super::{
    BucketByLength, Format, Function, Longer, MixStop, OnError, OperatorKind, OrderMode, PadTo, Pipeline,
    Remainder, Size, Source, TensorLayout,
};

#[cfg(test)]
mod tests;

impl Pipeline {
    /// The graph as text for people and golden tests: lines without trailing spaces, each ended by a newline.
    pub fn render(&self) -> String {
        let names = self.operator_names();
        let width = names.iter().map(String::len).chain(["source".len()]).max().unwrap_or_default();
        let mut text = format!("pipeline {}\n", self.name);
        push_line(&mut text, "", "source", width, &self.source_summary());
        push_line(&mut text, "", "order", width, &self.order_summary());
        for (index, (operator, name)) in self.operators.iter().zip(&names).enumerate() {
            let mut summary = summary(&operator.kind);
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
            MixStop::All => "until all are through",
            MixStop::First => "until the first is through",
            MixStop::Restart => "until all are through, short ones begun again",
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
    if !source.features.is_empty() {
        let features: Vec<String> =
            source.features.iter().map(|(column, data_name)| format!("{column} <- {data_name}")).collect();
        summary.push_str(&format!(" ({})", features.join(", ")));
    }
    if let Some(name) = &source.credentials {
        summary.push_str(&format!(", credentials {name}"));
    }
    summary
}

impl Format {
    /// The name used in pipeline files and messages, such as `tfrecord`.
    pub fn name(self) -> &'static str {
        match self {
            Self::TfRecord => "tfrecord",
            Self::WebDataset => "webdataset",
            Self::Files => "files",
            Self::Parquet => "parquet",
            Self::Arrow => "arrow",
            Self::Jsonl => "jsonl",
            Self::Csv => "csv",
            Self::Text => "text",
        }
    }
}

fn push_line(text: &mut String, number: &str, name: &str, width: usize, summary: &str) {
    let line = format!("{number:>4}  {name:<width$}  {summary}").replace('\n', " ");
    text.push_str(line.trim_end());
    text.push('\n');
}

/// An operator's key parameters on one line.
fn summary(kind: &OperatorKind) -> String {
    match kind {
        OperatorKind::DecodeImage(p) => p.column.clone(),
        OperatorKind::Resize(p) => format!("{} to {}", p.column, pixels(p.size)),
        OperatorKind::CenterCrop(p) => match p.resize {
            Some(side) => format!("{} to {}, shorter side first to {side}", p.column, pixels(p.size)),
            None => format!("{} to {}", p.column, pixels(p.size)),
        },
        OperatorKind::RandomResizedCrop(p) => {
            let ([smallest, largest], [narrowest, widest]) = (p.scale, p.ratio);
            format!(
                "{} to {}, scale {smallest:.4} to {largest:.4}, ratio {narrowest:.4} to {widest:.4}",
                p.column,
                pixels(p.size)
            )
        }
        OperatorKind::RandomHorizontalFlip(p) => format!("{}, p {}", p.column, p.p),
        OperatorKind::Normalize(p) => {
            let layout = match p.layout {
                TensorLayout::Hwc => "hwc",
                TensorLayout::Chw => "chw",
            };
            format!("{} to {} {layout}, mean {:?}, std {:?}", p.column, p.dtype.name(), p.mean, p.std)
        }
        OperatorKind::Cast(p) => format!("{} to {}", p.column, p.dtype.name()),
        OperatorKind::Select(p) => p.columns.join(", "),
        OperatorKind::Rename(p) => {
            let renamed: Vec<String> =
                p.columns.iter().map(|(new, present)| format!("{new} <- {present}")).collect();
            renamed.join(", ")
        }
        OperatorKind::Filter(p) => {
            format!("where {}", p.predicate.split_whitespace().collect::<Vec<_>>().join(" "))
        }
        OperatorKind::Tokenize(p) => {
            let output = p.output.as_ref().map(|output| format!(" into {output}")).unwrap_or_default();
            let special = if p.add_special_tokens { "" } else { ", without special tokens" };
            format!("{}{output} with {}{special}", p.column, p.tokenizer)
        }
        OperatorKind::Truncate(p) => format!("{} to {}", p.column, p.length),
        OperatorKind::Pad(p) => format!("{} to {} with {}", p.column, p.length, p.value),
        OperatorKind::RecodeJpeg(p) => p.column.clone(),
        OperatorKind::Cache(p) => format!("in {}", p.tier.name()),
        OperatorKind::Batch(p) => {
            let remainder = match p.remainder {
                Remainder::Emit => "emit",
                Remainder::Drop => "drop",
                Remainder::Carry => "carry",
            };
            format!("{} rows, remainder {remainder}", p.size)
        }
        OperatorKind::BucketByLength(p) => bucket_summary(p),
        OperatorKind::Pack(p) => {
            let longer = match p.longer {
                Longer::Fail => "fail",
                Longer::Truncate => "truncate",
            };
            let window = p.window.map(|window| format!(", window {window}")).unwrap_or_default();
            format!(
                "{} into {} elements with {}, {} rows, longer {longer}{window}",
                p.columns.join(", "),
                p.length,
                p.value,
                p.size
            )
        }
        OperatorKind::Repeat(p) => format!("{} passes", p.count),
        OperatorKind::Burn(p) => format!("{} us of CPU per row", p.cpu_us),
        OperatorKind::Wait(p) => format!("{} ms per row", p.ms),
        OperatorKind::Map(p) | OperatorKind::FilterFunction(p) => function_summary(p),
    }
}

fn function_summary(function: &Function) -> String {
    let columns = match function.columns.as_slice() {
        [] => "all columns".to_owned(),
        columns => columns.join(", "),
    };
    let outputs: Vec<String> =
        function.outputs.iter().map(|(name, output)| format!("{name}: {}", output.column_type())).collect();
    let makes = if outputs.is_empty() { String::new() } else { format!(" to {}", outputs.join(", ")) };
    let seeded = if function.seeded { ", seeded" } else { "" };
    format!("{} of {columns}{makes}{seeded}", function.function)
}

fn bucket_summary(p: &BucketByLength) -> String {
    let sizes = match p.tokens {
        Some(tokens) => format!("{tokens} tokens"),
        None => format!("rows {:?}", p.batch_sizes),
    };
    let pad = match p.pad {
        PadTo::Longest => format!(", padded to the longest with {}", p.value),
        PadTo::Boundary => format!(", padded to the boundary with {}", p.value),
        PadTo::None => String::new(),
    };
    let window = p.window.map(|window| format!(", window {window}")).unwrap_or_default();
    format!("{} up to {:?}, {sizes}{pad}{window}", p.columns.join(", "), p.boundaries)
}

fn pixels([height, width]: Size) -> String {
    format!("{height}x{width}")
}
