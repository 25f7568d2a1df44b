//! Builder for pipelines in Rust. The builder method of each operator is in the operator's file.

use super::{
    EndOffset, Format, KafkaOptions, Mix, OnError, Operator, OperatorKind, OrderMode, Partitions, Pipeline,
    PipelineError, Shuffle, Source,
};
use crate::compression::SourceCompression;

#[cfg(test)]
mod tests;

impl Pipeline {
    /// Starts a pipeline.
    ///
    /// ```
    /// use feedline_data::pipeline::{Pipeline, Source};
    ///
    /// let pipeline = Pipeline::builder("imagenet-train")
    ///     .source(Source::tfrecord("data/*.tfrecord").feature("image", "image/encoded"))
    ///     .seed(7)
    ///     .shuffle(4096)
    ///     .random_resized_crop("image", [224, 224])
    ///     .random_horizontal_flip("image")
    ///     .batch(128)
    ///     .build()?;
    /// assert_eq!(pipeline.batch_size(), 128);
    /// # Ok::<(), feedline_data::pipeline::PipelineError>(())
    /// ```
    pub fn builder(name: impl Into<String>) -> PipelineBuilder {
        PipelineBuilder {
            name: name.into(),
            source: None,
            seed: 0,
            shuffle: Shuffle::default(),
            order: OrderMode::default(),
            on_error: OnError::default(),
            operators: Vec::new(),
            misplaced_parallelism: false,
        }
    }
}

impl Source {
    /// Creates a source of this format that reads one path, glob, prefix or URL.
    pub fn new(format: Format, url: impl Into<String>) -> Self {
        Self {
            url: vec![url.into()],
            format,
            features: Default::default(),
            optional: Default::default(),
            credentials: None,
            kafka: None,
            mix: None,
            compression: None,
            partitions: None,
            config: None,
            split: None,
            seeds: None,
            shard_filter: None,
            graph: None,
        }
    }

    /// Creates a mix of several datasets.
    pub fn mixed(mix: Mix) -> Self {
        let format = mix.parts.first().map_or(Format::Files, |part| part.source.format);
        Self { url: Vec::new(), mix: Some(mix), ..Self::new(format, "") }
    }

    /// Returns the datasets of the mix, or the source itself without a mix.
    pub fn datasets(&self) -> Vec<&Self> {
        match &self.mix {
            Some(mix) => mix.parts.iter().map(|part| &part.source).collect(),
            None => vec![self],
        }
    }

    /// Adds another path, glob, prefix or URL.
    #[must_use]
    pub fn with_url(mut self, url: impl Into<String>) -> Self {
        self.url.push(url.into());
        self
    }

    /// Maps the field `data_name` of the data to the column `column`.
    #[must_use]
    pub fn feature(mut self, column: impl Into<String>, data_name: impl Into<String>) -> Self {
        self.features.insert(column.into(), data_name.into());
        self
    }

    /// Maps the field `data_name` of the data to the column `column`. The column is null in shards without the field.
    #[must_use]
    pub fn optional_feature(mut self, column: impl Into<String>, data_name: impl Into<String>) -> Self {
        let column = column.into();
        self.optional.insert(column.clone());
        self.feature(column, data_name)
    }

    /// Sets the topics and the other settings of a Kafka source.
    #[must_use]
    pub fn with_kafka(mut self, options: KafkaOptions) -> Self {
        self.kafka = Some(Box::new(options));
        self
    }

    /// Whether the source grows, so that each job reads the rows that exist when it opens. The index of such a source belongs to one
    /// job and to the jobs that resume from its positions.
    pub fn is_growing(&self) -> bool {
        self.datasets().iter().any(|dataset| dataset.format == Format::Kafka)
    }

    /// The consumer group that receives the offsets of delivered records.
    pub fn commit_group(&self) -> Option<&str> {
        self.kafka.as_ref()?.commit_group.as_deref()
    }

    /// Removes the consumer group, which does not affect rows.
    pub(crate) fn clear_commit_group(&mut self) {
        if let Some(kafka) = &mut self.kafka {
            **kafka = kafka.without_commit_group();
        }
    }

    /// Whether the source has no end, so that its job follows the topics until it is cancelled.
    pub fn is_unbounded(&self) -> bool {
        let mut datasets = self.datasets().into_iter();
        datasets.any(|source| source.kafka.as_ref().is_some_and(|kafka| kafka.until == EndOffset::Unbounded))
    }

    /// Returns an unbounded source as one that ends with the records that its topics retain. Other sources stay the same.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        if self.is_unbounded()
            && let Some(kafka) = &mut self.kafka
        {
            **kafka = kafka.retained();
        }
        self
    }

    /// Whether some rows of the source may have no record, so that the number of rows of a batch is not known beforehand.
    pub fn may_have_absent_rows(&self) -> bool {
        self.has_topics()
    }

    /// Whether a dataset of the source consists of topics.
    pub fn has_topics(&self) -> bool {
        self.datasets().iter().any(|dataset| dataset.format == Format::Kafka)
    }

    /// Declares the compression of all objects, instead of determining it from their first bytes.
    #[must_use]
    pub fn compression(mut self, compression: SourceCompression) -> Self {
        self.compression = Some(compression);
        self
    }

    /// Sets how columns are derived from the names of directories.
    #[must_use]
    pub fn partitions(mut self, partitions: Partitions) -> Self {
        self.partitions = Some(partitions);
        self
    }

    /// Sets the configuration of a Hugging Face dataset.
    #[must_use]
    pub fn config(mut self, config: impl Into<String>) -> Self {
        self.config = Some(config.into());
        self
    }

    /// Sets the split of a Hugging Face dataset.
    #[must_use]
    pub fn split(mut self, split: impl Into<String>) -> Self {
        self.split = Some(split.into());
        self
    }

    /// Sets the seed set of a graph.
    #[must_use]
    pub fn seeds(mut self, seeds: impl Into<String>) -> Self {
        self.seeds = Some(seeds.into());
        self
    }

    /// The folders of the graphs of the source.
    pub fn graph_urls(&self) -> impl Iterator<Item = &str> {
        let datasets = self.datasets().into_iter().filter(|dataset| dataset.format == Format::Graph);
        datasets.flat_map(|dataset| dataset.url.iter().map(String::as_str))
    }

    /// Sets the name of the credentials for reading the objects.
    #[must_use]
    pub fn credentials(mut self, name: impl Into<String>) -> Self {
        self.credentials = Some(name.into());
        self
    }
}

impl From<OperatorKind> for Operator {
    /// Creates an operator without a `parallelism` setting.
    fn from(kind: OperatorKind) -> Self {
        Self { kind, parallelism: None }
    }
}

/// A builder of pipelines; see [`Pipeline::builder`].
#[derive(Debug, Clone)]
#[must_use]
pub struct PipelineBuilder {
    name: String,
    source: Option<Source>,
    seed: u64,
    shuffle: Shuffle,
    order: OrderMode,
    on_error: OnError,
    operators: Vec<Operator>,
    misplaced_parallelism: bool,
}

impl PipelineBuilder {
    /// Sets the source of the rows.
    pub fn source(mut self, source: Source) -> Self {
        self.source = Some(source);
        self
    }

    /// Sets the seed of the row order and of every random operator.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Shuffles rows within windows of `window` rows; 0 keeps storage order.
    pub fn shuffle(mut self, window: u64) -> Self {
        self.shuffle = Shuffle { window };
        self
    }

    /// Sets how batches are assigned to consumers.
    pub fn order(mut self, order: OrderMode) -> Self {
        self.order = order;
        self
    }

    /// Sets what happens to a row that fails.
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = on_error;
        self
    }

    /// Adds an operator with all of its parameters.
    pub fn operator(mut self, kind: OperatorKind) -> Self {
        self.operators.push(kind.into());
        self
    }

    /// Limits the concurrent executions of the last added operator on one worker.
    pub fn parallelism(mut self, parallelism: u32) -> Self {
        match self.operators.last_mut() {
            Some(operator) => operator.parallelism = Some(parallelism),
            None => self.misplaced_parallelism = true,
        }
        self
    }

    /// [Checks](Pipeline::check) and returns the pipeline.
    pub fn build(self) -> Result<Pipeline, PipelineError> {
        let Some(source) = self.source else {
            return Err(PipelineError::new(
                "source: the pipeline has no source; add one, such as Source::files(\"images/\")",
            ));
        };
        if self.misplaced_parallelism {
            return Err(PipelineError::new(
                "parallelism: no operator has been added; call `parallelism` after the operator that it limits",
            ));
        }
        let pipeline = Pipeline {
            name: self.name,
            source,
            seed: self.seed,
            shuffle: self.shuffle,
            order: self.order,
            on_error: self.on_error,
            operators: self.operators,
        };
        pipeline.check()?;
        Ok(pipeline)
    }
}
