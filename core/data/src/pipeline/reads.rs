//! The URLs and paths that a pipeline reads, each with its field.

use super::check_error::operator_path;
use super::{Pipeline, Source};

impl Pipeline {
    /// Returns every URL and path that the pipeline reads, with the name of its field. Files that a Python function opens
    /// are not included: a function has the access rights of the worker process.
    pub fn read_locations(&self) -> Vec<(String, &str)> {
        let mut reads: Vec<(String, &str)> = Vec::new();
        for (place, dataset) in self.source.datasets().into_iter().enumerate() {
            let name = self.source.field_path(place, "url");
            reads.extend(dataset.url.iter().map(|url| (name.clone(), url.as_str())));
            if let Some(registry) = dataset.kafka.as_ref().and_then(|kafka| kafka.payload.registry.as_ref()) {
                reads.push((self.source.field_path(place, "payload.registry"), registry));
            }
        }
        for (index, operator) in self.operators.iter().enumerate() {
            if let Some((field, url)) = operator.kind.definition().file() {
                reads.push((format!("{}.{field}", operator_path(index, &operator.kind)), url));
            }
            if let Some(url) = operator.kind.definition().graph() {
                reads.push((format!("{}.graph", operator_path(index, &operator.kind)), url));
            }
        }
        reads
    }
}

impl Source {
    /// Returns the path of a dataset's field for messages, such as `source.mix[0].url`.
    pub(crate) fn field_path(&self, dataset: usize, field: &str) -> String {
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
            .source(Source::text("/a/*").with_url("s3://b/"))
            .wait(1)
            .tokenize("text", "t.json")
            .batch(1)
            .build()
            .unwrap();
        assert_eq!(
            pipeline.read_locations(),
            [
                ("source.url".to_owned(), "/a/*"),
                ("source.url".to_owned(), "s3://b/"),
                ("operator 2 (tokenize).tokenizer".to_owned(), "t.json")
            ]
        );
    }
}
