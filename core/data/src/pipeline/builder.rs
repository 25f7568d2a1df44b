//! Builder for pipelines in Rust. The builder method of each operator is in the operator's file.

use super::{
    Format, Mix, OnError, Operator, OperatorKind, OrderMode, Pipeline, PipelineError, Shuffle, Source,
};

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
        Self { url: vec![url.into()], format, features: Default::default(), credentials: None, mix: None }
    }

    /// Creates a mix of several datasets.
    pub fn mixed(mix: Mix) -> Self {
        let format = mix.parts.first().map_or(Format::Files, |part| part.source.format);
        Self { url: Vec::new(), format, features: Default::default(), credentials: None, mix: Some(mix) }
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
