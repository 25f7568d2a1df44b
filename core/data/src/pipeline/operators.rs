//! The registry of operators: one line per operator, which makes its key in pipeline files, its variant of
//! [`OperatorKind`] and its serde. What an operator means lies in its own file, `operators/KEY.rs`.

use std::collections::BTreeSet;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use super::Function;
use crate::schema::Schema;

mod batch;
mod bucket_by_length;
mod burn;
mod cache;
mod cast;
mod center_crop;
mod decode_image;
mod filter;
mod filter_function;
mod map;
mod normalize;
mod pack;
mod pad;
mod random_erasing;
mod random_grayscale;
mod random_horizontal_flip;
mod random_resized_crop;
mod recode_jpeg;
mod rename;
mod repeat;
mod resize;
mod select;
mod tokenize;
mod truncate;
mod wait;

/// Makes [`OperatorKind`], its names and its serde from lines of `key => Variant(Parameters)`.
macro_rules! operators {
    ($($(#[$doc:meta])+ $name:ident => $kind:ident($parameters:ident),)*) => {
        $(pub use self::$name::*;)*

        /// What an operator does.
        #[derive(Debug, Clone, PartialEq, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum OperatorKind {
            $($(#[$doc])+ $kind($parameters),)*
        }

        /// The names of all operators, in the order of [`OperatorKind`].
        pub const OPERATOR_NAMES: &[&str] = &[$(stringify!($name)),*];

        impl OperatorKind {
            /// The operator's key in a pipeline file.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$kind(_) => stringify!($name),)*
                }
            }

            /// What the operator means.
            pub fn definition(&self) -> &dyn OperatorDefinition {
                match self {
                    $(Self::$kind(parameters) => parameters,)*
                }
            }

            /// What the operator means, to change it.
            pub fn definition_mut(&mut self) -> &mut dyn OperatorDefinition {
                match self {
                    $(Self::$kind(parameters) => parameters,)*
                }
            }

            pub(super) fn serialize_parameters<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self {
                    $(Self::$kind(parameters) => parameters.serialize(serializer),)*
                }
            }

            pub(super) fn deserialize_parameters<'de, D: Deserializer<'de>>(
                name: &str,
                deserializer: D,
            ) -> Result<Self, D::Error> {
                $(if name == stringify!($name) {
                    return <$parameters>::deserialize(deserializer).map(Self::$kind);
                })*
                Err(D::Error::unknown_variant(name, OPERATOR_NAMES))
            }
        }
    };
}

operators! {
    /// Decodes JPEG, PNG or WebP bytes.
    decode_image => DecodeImage(DecodeImage),
    /// Resizes to a fixed size and ignores the aspect ratio.
    resize => Resize(Resize),
    /// Crops the centre; torchvision's `CenterCrop` after `Resize(resize)` when `resize` is given.
    center_crop => CenterCrop(CenterCrop),
    /// Crops a random area with a random ratio and resizes it; torchvision's `RandomResizedCrop`.
    random_resized_crop => RandomResizedCrop(RandomResizedCrop),
    /// Mirrors left and right with a probability; torchvision's `RandomHorizontalFlip`.
    random_horizontal_flip => RandomHorizontalFlip(RandomHorizontalFlip),
    /// Turns images grey with a probability; torchvision's `RandomGrayscale`.
    random_grayscale => RandomGrayscale(RandomGrayscale),
    /// Fills a random rectangle with a value, with a probability; torchvision's `RandomErasing`.
    random_erasing => RandomErasing(RandomErasing),
    /// `(x / 255 - mean) / std` as float; torchvision's `ToDtype(scale=True)` and `Normalize`.
    normalize => Normalize(Normalize),
    /// Converts the element type of a column.
    cast => Cast(Cast),
    /// Keeps these columns, in this order.
    select => Select(Select),
    /// Renames columns.
    rename => Rename(Rename),
    /// Keeps the rows for which an SQL expression is true.
    filter => Filter(Filter),
    /// Splits text into token ids with a Hugging Face `tokenizer.json`.
    tokenize => Tokenize(Tokenize),
    /// Truncates lists to a length.
    truncate => Truncate(Truncate),
    /// Pads lists to a length, which gives a fixed-shape tensor.
    pad => Pad(Pad),
    /// Adds an index to JPEGs, with which a decoder reads a crop faster.
    recode_jpeg => RecodeJpeg(RecodeJpeg),
    /// Caches the rows that reach it, so that later passes begin here.
    cache => Cache(Cache),
    /// Groups rows; must be the last operator.
    batch => Batch(BatchParams),
    /// Groups rows of similar length; the last operator, in place of `batch`. tf.data's `bucket_by_sequence_length`.
    bucket_by_length => BucketByLength(BucketByLength),
    /// Packs several rows into one of a fixed length, and groups those; the last operator, in place of `batch`.
    pack => Pack(Pack),
    /// Passes over the rows several times within an epoch, each in its own order; tf.data's `repeat(count)`.
    repeat => Repeat(Repeat),
    /// Burns CPU time, for measurements.
    burn => Burn(Burn),
    /// Waits without CPU, for measurements.
    wait => Wait(Wait),
    /// Computes columns with a Python function.
    map => Map(MapFunction),
    /// Keeps the rows for which a Python function returns true.
    filter_function => FilterFunction(FilterFunction),
}

/// Operators for measurements, which messages do not suggest.
pub(crate) const MEASUREMENT_OPERATORS: [&str; 2] = ["burn", "wait"];

/// What the pipeline needs to know of an operator. The error of a check is one sentence without its place.
pub trait OperatorDefinition {
    /// Checks the parameters alone.
    fn check(&self) -> Result<(), String>;

    /// The columns after the operator, whose parameters [`check`](Self::check) has accepted.
    fn infer(&self, input: &Schema) -> Result<Schema, String>;

    /// The key parameters on one line.
    fn summary(&self) -> String;

    /// Turns the columns required after the operator into those required before it.
    fn require_inputs(&self, input: &Schema, required: &mut BTreeSet<String>);

    /// Where it runs.
    fn role(&self) -> OperatorRole {
        OperatorRole::Row
    }

    /// Whether it draws anew in each pass, or may compute something else the next time: nothing after it is cached.
    fn is_random(&self) -> bool {
        false
    }

    /// Whether it drops rows that have not failed.
    fn drops_rows(&self) -> bool {
        false
    }

    /// Whether it changes only how values are encoded: later operators draw the same random numbers with and without it.
    fn is_encoding_only(&self) -> bool {
        false
    }

    /// The parameter that names a file which workers read, and the file's path or URL. A kernel can read no other file.
    fn file(&self) -> Option<(&'static str, &str)> {
        None
    }

    /// The path or URL of [`file`](Self::file).
    fn file_mut(&mut self) -> Option<&mut String> {
        None
    }

    /// The Python function that it calls.
    fn function(&self) -> Option<&Function> {
        None
    }

    /// The Python function that it calls.
    fn function_mut(&mut self) -> Option<&mut Function> {
        None
    }
}

/// Where an operator runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperatorRole {
    /// In a stage, on the rows of a chunk.
    Row,
    /// In the engine, between stages.
    Engine,
    /// In the engine, as the last operator: it makes batches.
    Batch,
    /// In the engine, as the last operator: it makes batches for all consumers together.
    CoordinatedBatch,
}

impl OperatorKind {
    /// Whether it draws anew in each pass, or may compute something else the next time: nothing after it is cached.
    pub fn is_random(&self) -> bool {
        self.definition().is_random()
    }

    /// The Python function that it calls, if it does.
    pub fn function(&self) -> Option<&Function> {
        self.definition().function()
    }

    /// Whether it drops rows that have not failed.
    pub fn drops_rows(&self) -> bool {
        self.definition().drops_rows()
    }

    /// Whether the engine runs it: it is not among the operators of a stage.
    pub fn is_engines(&self) -> bool {
        self.definition().role() != OperatorRole::Row
    }

    /// Whether it makes batches for all consumers together.
    pub fn is_coordinated(&self) -> bool {
        self.definition().role() == OperatorRole::CoordinatedBatch
    }

    /// Whether it makes batches, and so is the last operator.
    pub fn is_batching(&self) -> bool {
        matches!(self.definition().role(), OperatorRole::Batch | OperatorRole::CoordinatedBatch)
    }
}
