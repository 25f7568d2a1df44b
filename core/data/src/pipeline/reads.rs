//! What a pipeline reads: every URL and path in it, with its place.

use super::check::operator_place;
use super::{OperatorKind, Pipeline, Source};

impl Pipeline {
    /// Every URL and path that is read when the pipeline runs, and where in it that stands. A new operator that reads
    /// something belongs here, so that it is checked before it is read.
    pub fn reads(&self) -> Vec<(String, &str)> {
        let mut reads: Vec<(String, &str)> = Vec::new();
        for (place, dataset) in self.source.datasets().into_iter().enumerate() {
            let name = self.source.place_of(place, "url");
            reads.extend(dataset.url.iter().map(|url| (name.clone(), url.as_str())));
        }
        for (index, operator) in self.operators.iter().enumerate() {
            if let Some((field, url)) = read_by(&operator.kind) {
                reads.push((format!("{}.{field}", operator_place(index, &operator.kind)), url));
            }
        }
        reads
    }
}

impl Source {
    /// What messages call a field of one of its datasets.
    pub(crate) fn place_of(&self, dataset: usize, field: &str) -> String {
        match &self.mix {
            Some(_) => format!("source.mix[{dataset}].{field}"),
            None => format!("source.{field}"),
        }
    }
}

/// The parameter that names what an operator reads, and what stands there.
fn read_by(kind: &OperatorKind) -> Option<(&'static str, &str)> {
    match kind {
        OperatorKind::Tokenize(p) => Some(("tokenizer", &p.tokenizer)),
        // Its place is the worker's, and none that a pipeline could name.
        OperatorKind::Cache(_) => None,
        OperatorKind::DecodeImage(_)
        | OperatorKind::Resize(_)
        | OperatorKind::CenterCrop(_)
        | OperatorKind::RandomResizedCrop(_)
        | OperatorKind::RandomHorizontalFlip(_)
        | OperatorKind::Normalize(_)
        | OperatorKind::Cast(_)
        | OperatorKind::Select(_)
        | OperatorKind::Rename(_)
        | OperatorKind::Filter(_)
        | OperatorKind::Truncate(_)
        | OperatorKind::Pad(_)
        | OperatorKind::RecodeJpeg(_)
        | OperatorKind::Batch(_)
        | OperatorKind::BucketByLength(_)
        | OperatorKind::Pack(_)
        | OperatorKind::Repeat(_)
        | OperatorKind::Burn(_)
        | OperatorKind::Wait(_)
        // What a function reads, it reads with the worker's rights: that is allowed or refused as a whole.
        | OperatorKind::Map(_)
        | OperatorKind::FilterFunction(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::pipeline::{Pipeline, Source};

    #[test]
    fn source_and_tokenizer_are_read() {
        let pipeline = Pipeline::builder("p")
            .source(Source::text("/a/*").and("s3://b/"))
            .wait(1)
            .tokenize("text", "t.json")
            .batch(1)
            .build()
            .unwrap();
        assert_eq!(
            pipeline.reads(),
            [
                ("source.url".to_owned(), "/a/*"),
                ("source.url".to_owned(), "s3://b/"),
                ("operator 2 (tokenize).tokenizer".to_owned(), "t.json")
            ]
        );
    }
}
