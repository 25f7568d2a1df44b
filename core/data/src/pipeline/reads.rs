//! What a pipeline reads: every URL and path in it, with its place.

use super::check::operator_place;
use super::{Pipeline, Source};

impl Pipeline {
    /// Every URL and path that is read when the pipeline runs, each with its place in the pipeline. What a Python function
    /// reads is not among them: it reads with the worker's rights.
    pub fn reads(&self) -> Vec<(String, &str)> {
        let mut reads: Vec<(String, &str)> = Vec::new();
        for (place, dataset) in self.source.datasets().into_iter().enumerate() {
            let name = self.source.place_of(place, "url");
            reads.extend(dataset.url.iter().map(|url| (name.clone(), url.as_str())));
        }
        for (index, operator) in self.operators.iter().enumerate() {
            if let Some((field, url)) = operator.kind.definition().file() {
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
