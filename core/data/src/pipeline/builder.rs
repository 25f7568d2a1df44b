//! Builds a pipeline in Rust: one method per operator with what it requires; the rest by its parameters.

use super::{
    BatchParams, BucketByLength, Burn, Cache, CacheTier, Cast, CenterCrop, DecodeImage, Filter, Format,
    Function, Longer, Mix, Normalize, OnError, Operator, OperatorKind, OrderMode, Pack, Pad, PadTo, Pipeline,
    PipelineError, RandomHorizontalFlip, RandomResizedCrop, RecodeJpeg, Remainder, Rename, Repeat, Resize,
    Select, Shuffle, Size, Source, TensorLayout, Tokenize, Truncate, Wait,
};
use crate::schema::ScalarType;

#[cfg(test)]
mod tests;

impl Pipeline {
    /// Begins a pipeline.
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
    /// A source of this format at one path, glob, prefix or URL.
    pub fn new(format: Format, url: impl Into<String>) -> Self {
        Self { url: vec![url.into()], format, features: Default::default(), credentials: None, mix: None }
    }

    /// Several datasets, mixed.
    pub fn mixed(mix: Mix) -> Self {
        let format = mix.parts.first().map_or(Format::Files, |part| part.source.format);
        Self { url: Vec::new(), format, features: Default::default(), credentials: None, mix: Some(mix) }
    }

    /// The datasets: those of the mix, or this one.
    pub fn datasets(&self) -> Vec<&Self> {
        match &self.mix {
            Some(mix) => mix.parts.iter().map(|part| &part.source).collect(),
            None => vec![self],
        }
    }

    /// TFRecord files of `tf.train.Example`.
    pub fn tfrecord(url: impl Into<String>) -> Self {
        Self::new(Format::TfRecord, url)
    }

    /// Tar files in the WebDataset convention.
    pub fn webdataset(url: impl Into<String>) -> Self {
        Self::new(Format::WebDataset, url)
    }

    /// One row per object, with the columns `bytes` and `path`.
    pub fn files(url: impl Into<String>) -> Self {
        Self::new(Format::Files, url)
    }

    /// Apache Parquet files.
    pub fn parquet(url: impl Into<String>) -> Self {
        Self::new(Format::Parquet, url)
    }

    /// Arrow IPC files.
    pub fn arrow(url: impl Into<String>) -> Self {
        Self::new(Format::Arrow, url)
    }

    /// Files of one JSON object per line.
    pub fn jsonl(url: impl Into<String>) -> Self {
        Self::new(Format::Jsonl, url)
    }

    /// Comma-separated values with a header line.
    pub fn csv(url: impl Into<String>) -> Self {
        Self::new(Format::Csv, url)
    }

    /// One row per line, in the column `text`.
    pub fn text(url: impl Into<String>) -> Self {
        Self::new(Format::Text, url)
    }

    /// Adds another path, glob, prefix or URL.
    #[must_use]
    pub fn and(mut self, url: impl Into<String>) -> Self {
        self.url.push(url.into());
        self
    }

    /// Takes the column from the data's own name for it.
    #[must_use]
    pub fn feature(mut self, column: impl Into<String>, data_name: impl Into<String>) -> Self {
        self.features.insert(column.into(), data_name.into());
        self
    }

    /// Reads with the credentials of this name.
    #[must_use]
    pub fn credentials(mut self, name: impl Into<String>) -> Self {
        self.credentials = Some(name.into());
        self
    }
}

impl From<OperatorKind> for Operator {
    /// The operator, with its parallelism left to the engine.
    fn from(kind: OperatorKind) -> Self {
        Self { kind, parallelism: None }
    }
}

/// A pipeline being built; see [`Pipeline::builder`].
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
    /// Where rows come from.
    pub fn source(mut self, source: Source) -> Self {
        self.source = Some(source);
        self
    }

    /// Seeds the order and every random operator.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Mixes this many rows with each other; 0 keeps storage order.
    pub fn shuffle(mut self, window: u64) -> Self {
        self.shuffle = Shuffle { window };
        self
    }

    /// How batches are dealt to consumers.
    pub fn order(mut self, order: OrderMode) -> Self {
        self.order = order;
        self
    }

    /// What happens to a row that fails.
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = on_error;
        self
    }

    /// Adds an operator with all its parameters.
    pub fn operator(mut self, kind: OperatorKind) -> Self {
        self.operators.push(kind.into());
        self
    }

    /// Limits the concurrent executions on one worker of the operator added last.
    pub fn parallelism(mut self, parallelism: u32) -> Self {
        match self.operators.last_mut() {
            Some(operator) => operator.parallelism = Some(parallelism),
            None => self.misplaced_parallelism = true,
        }
        self
    }

    /// Decodes JPEG, PNG or WebP bytes.
    pub fn decode_image(self, column: impl Into<String>) -> Self {
        self.operator(OperatorKind::DecodeImage(DecodeImage { column: column.into() }))
    }

    /// Resizes to a height and width, ignoring the aspect ratio.
    pub fn resize(self, column: impl Into<String>, size: Size) -> Self {
        self.operator(OperatorKind::Resize(Resize { column: column.into(), size }))
    }

    /// Cuts the centre of the image as it is.
    pub fn center_crop(self, column: impl Into<String>, size: Size) -> Self {
        self.operator(OperatorKind::CenterCrop(CenterCrop { column: column.into(), size, resize: None }))
    }

    /// Cuts a random area with a random ratio and resizes it; torchvision's defaults.
    pub fn random_resized_crop(self, column: impl Into<String>, size: Size) -> Self {
        self.operator(OperatorKind::RandomResizedCrop(RandomResizedCrop {
            column: column.into(),
            size,
            scale: super::spec::default_scale(),
            ratio: super::spec::default_ratio(),
        }))
    }

    /// Mirrors left and right with probability 0.5.
    pub fn random_horizontal_flip(self, column: impl Into<String>) -> Self {
        self.operator(OperatorKind::RandomHorizontalFlip(RandomHorizontalFlip {
            column: column.into(),
            p: super::spec::default_probability(),
        }))
    }

    /// `(x / 255 - mean) / std` as `float32`, channels last.
    pub fn normalize(
        self,
        column: impl Into<String>,
        mean: impl Into<Vec<f64>>,
        std: impl Into<Vec<f64>>,
    ) -> Self {
        self.operator(OperatorKind::Normalize(Normalize {
            column: column.into(),
            mean: mean.into(),
            std: std.into(),
            dtype: super::spec::default_float(),
            layout: TensorLayout::default(),
        }))
    }

    /// Converts a column's element type.
    pub fn cast(self, column: impl Into<String>, dtype: ScalarType) -> Self {
        self.operator(OperatorKind::Cast(Cast { column: column.into(), dtype }))
    }

    /// Keeps these columns, in this order.
    pub fn select(self, columns: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.operator(OperatorKind::Select(Select { columns: columns.into_iter().map(Into::into).collect() }))
    }

    /// Renames columns, given as (new name, present name).
    pub fn rename(self, columns: impl IntoIterator<Item = (impl Into<String>, impl Into<String>)>) -> Self {
        let columns = columns.into_iter().map(|(new, present)| (new.into(), present.into())).collect();
        self.operator(OperatorKind::Rename(Rename { columns }))
    }

    /// Keeps the rows for which an SQL expression is true.
    pub fn filter(self, predicate: impl Into<String>) -> Self {
        self.operator(OperatorKind::Filter(Filter { predicate: predicate.into() }))
    }

    /// Has a Python function make columns.
    pub fn map(self, function: Function) -> Self {
        self.operator(OperatorKind::Map(function))
    }

    /// Keeps the rows for which a Python function is true.
    pub fn filter_function(self, function: Function) -> Self {
        self.operator(OperatorKind::FilterFunction(function))
    }

    /// Splits text into token ids, in place and with special tokens.
    pub fn tokenize(self, column: impl Into<String>, tokenizer: impl Into<String>) -> Self {
        self.operator(OperatorKind::Tokenize(Tokenize {
            column: column.into(),
            tokenizer: tokenizer.into(),
            output: None,
            add_special_tokens: super::spec::default_true(),
        }))
    }

    /// Cuts lists to a length.
    pub fn truncate(self, column: impl Into<String>, length: u32) -> Self {
        self.operator(OperatorKind::Truncate(Truncate { column: column.into(), length }))
    }

    /// Fills lists with zeros up to a length.
    pub fn pad(self, column: impl Into<String>, length: u32) -> Self {
        self.operator(OperatorKind::Pad(Pad { column: column.into(), length, value: 0 }))
    }

    /// Gives JPEGs an index of their data, by which a crop of one is decoded faster.
    pub fn recode_jpeg(self, column: impl Into<String>) -> Self {
        self.operator(OperatorKind::RecodeJpeg(RecodeJpeg { column: column.into() }))
    }

    /// Keeps the rows that come here, so that later passes begin here.
    pub fn cache(self, tier: CacheTier) -> Self {
        self.operator(OperatorKind::Cache(Cache { tier }))
    }

    /// Groups rows; the last operator. A smaller batch comes at an epoch's end.
    pub fn batch(self, size: u32) -> Self {
        self.operator(OperatorKind::Batch(BatchParams { size, remainder: Remainder::default() }))
    }

    /// Groups rows of about the same length, in batches of about so many tokens; the last operator.
    pub fn bucket_by_length(self, column: impl Into<String>, boundaries: &[u32], tokens: u32) -> Self {
        self.operator(OperatorKind::BucketByLength(BucketByLength {
            columns: vec![column.into()],
            boundaries: boundaries.to_vec(),
            batch_sizes: Vec::new(),
            tokens: Some(tokens),
            pad: PadTo::default(),
            value: 0,
            window: None,
        }))
    }

    /// Packs rows into rows of so many elements, and groups those; the last operator.
    pub fn pack(self, columns: &[&str], length: u32, size: u32) -> Self {
        self.operator(OperatorKind::Pack(Pack {
            columns: columns.iter().map(|&column| column.to_owned()).collect(),
            length,
            size,
            longer: Longer::default(),
            value: 0,
            window: None,
        }))
    }

    /// Passes over the rows several times within an epoch.
    pub fn repeat(self, count: u32) -> Self {
        self.operator(OperatorKind::Repeat(Repeat { count }))
    }

    /// Burns CPU time per row, in microseconds.
    pub fn burn(self, cpu_us: u64) -> Self {
        self.operator(OperatorKind::Burn(Burn { cpu_us }))
    }

    /// Waits per row, in milliseconds.
    pub fn wait(self, ms: u64) -> Self {
        self.operator(OperatorKind::Wait(Wait { ms }))
    }

    /// The pipeline, once [checked](Pipeline::check).
    pub fn build(self) -> Result<Pipeline, PipelineError> {
        let Some(source) = self.source else {
            return Err(PipelineError::new(
                "source: there is none; add one, such as Source::files(\"images/\")",
            ));
        };
        if self.misplaced_parallelism {
            return Err(PipelineError::new(
                "parallelism: it comes before any operator; set it after the one it limits",
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
