//! The registry of operators. One line per operator defines its key in pipeline files, its variant of [`OperatorKind`] and
//! its serialization. The file `operators/KEY.rs` defines its parameters, checks and schema inference.

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
mod sample_neighbors;
mod select;
mod tokenize;
mod truncate;
mod wait;

/// Defines [`OperatorKind`], the operator names and their serialization from lines of `key => Variant(Parameters)`.
macro_rules! operators {
    ($($(#[$doc:meta])+ $name:ident => $kind:ident($parameters:ident),)*) => {
        $(pub use self::$name::*;)*

        /// The kind of an operator, with its parameters.
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

            /// The definition of the operator.
            pub fn definition(&self) -> &dyn OperatorDefinition {
                match self {
                    $(Self::$kind(parameters) => parameters,)*
                }
            }

            /// The definition of the operator, as a mutable reference.
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
    /// Resizes images to a fixed size. The aspect ratio is not preserved.
    resize => Resize(Resize),
    /// Crops the center; torchvision's `CenterCrop`, after `Resize(resize)` if `resize` is set.
    center_crop => CenterCrop(CenterCrop),
    /// Crops a random area with a random aspect ratio and resizes it; torchvision's `RandomResizedCrop`.
    random_resized_crop => RandomResizedCrop(RandomResizedCrop),
    /// Flips images horizontally with a probability; torchvision's `RandomHorizontalFlip`.
    random_horizontal_flip => RandomHorizontalFlip(RandomHorizontalFlip),
    /// Converts images to grayscale with a probability; torchvision's `RandomGrayscale`.
    random_grayscale => RandomGrayscale(RandomGrayscale),
    /// Fills a random rectangle of images with a probability; torchvision's `RandomErasing`.
    random_erasing => RandomErasing(RandomErasing),
    /// `(x / 255 - mean) / std` as float; torchvision's `ToDtype(scale=True)` and `Normalize`.
    normalize => Normalize(Normalize),
    /// Converts the element type of a column.
    cast => Cast(Cast),
    /// Selects columns, in the given order.
    select => Select(Select),
    /// Renames columns.
    rename => Rename(Rename),
    /// Keeps the rows for which an SQL expression is true.
    filter => Filter(Filter),
    /// Splits text into token ids with a Hugging Face `tokenizer.json`.
    tokenize => Tokenize(Tokenize),
    /// Truncates lists to a length.
    truncate => Truncate(Truncate),
    /// Pads lists to a length. The result is a tensor of fixed shape.
    pad => Pad(Pad),
    /// Adds an index to JPEGs, so that the decoder reads only the data of a crop.
    recode_jpeg => RecodeJpeg(RecodeJpeg),
    /// Caches its input rows for later passes.
    cache => Cache(Cache),
    /// Groups rows into batches; the last operator.
    batch => Batch(BatchParams),
    /// Batches rows of similar length; the last operator, instead of `batch`. tf.data's `bucket_by_sequence_length`.
    bucket_by_length => BucketByLength(BucketByLength),
    /// Packs several rows into one row of fixed length, and batches the packed rows; the last operator, instead of `batch`.
    pack => Pack(Pack),
    /// Samples the neighbors of batches of seeds in a graph; the last operator, instead of `batch`. PyG's `NeighborLoader`.
    sample_neighbors => SampleNeighbors(SampleNeighbors),
    /// Makes several passes over the rows in each epoch, each pass in its own order; tf.data's `repeat(count)`.
    repeat => Repeat(Repeat),
    /// Uses CPU time, for benchmarks.
    burn => Burn(Burn),
    /// Waits without using CPU time, for benchmarks.
    wait => Wait(Wait),
    /// Computes columns with a Python function.
    map => Map(MapFunction),
    /// Keeps the rows for which a Python function returns true.
    filter_function => FilterFunction(FilterFunction),
}

/// Operators for benchmarks, which error messages do not suggest.
pub(crate) const BENCHMARK_OPERATORS: [&str; 2] = ["burn", "wait"];

/// The definition of an operator. Errors are one sentence and do not name the operator.
pub trait OperatorDefinition {
    /// Checks the parameters, without the input columns.
    fn check(&self) -> Result<(), String>;

    /// Infers the columns after the operator. [`check`](Self::check) must have accepted the parameters.
    fn infer(&self, input: &Schema) -> Result<Schema, String>;

    /// Describes the key parameters in one line.
    fn summary(&self) -> String;

    /// Replaces the columns required after the operator with the columns required before the operator.
    fn require_inputs(&self, input: &Schema, required: &mut BTreeSet<String>);

    /// Where the operator runs.
    fn role(&self) -> OperatorRole {
        OperatorRole::Row
    }

    /// Whether the output may differ between passes. Rows after a random operator are never cached.
    fn is_random(&self) -> bool {
        false
    }

    /// Whether the operator drops rows, other than failed rows.
    fn drops_rows(&self) -> bool {
        false
    }

    /// Whether the operator changes only the encoding of values. Adding such an operator does not change the random draws of
    /// later operators.
    fn is_encoding_only(&self) -> bool {
        false
    }

    /// The name and value of the parameter that contains the path or URL of a file that workers read. The kernel reads no
    /// other files.
    fn file(&self) -> Option<(&'static str, &str)> {
        None
    }

    /// The path or URL of [`file`](Self::file), as a mutable reference.
    fn file_mut(&mut self) -> Option<&mut String> {
        None
    }

    /// The path or URL of the graph that the operator samples, if it is not the graph of the source.
    fn graph(&self) -> Option<&str> {
        None
    }

    /// The Python function that the operator calls.
    fn function(&self) -> Option<&Function> {
        None
    }

    /// The Python function that the operator calls, as a mutable reference.
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
    /// In the engine, as the last operator, which forms batches.
    Batch,
    /// In the engine, as the last operator, which forms the batches of all consumers together.
    CoordinatedBatch,
    /// In the engine, as the last operator, which forms one record from the rows of each batch.
    IndivisibleBatch,
}

impl OperatorKind {
    /// Whether the output may differ between passes. Rows after a random operator are never cached.
    pub fn is_random(&self) -> bool {
        self.definition().is_random()
    }

    /// The Python function that the operator calls.
    pub fn function(&self) -> Option<&Function> {
        self.definition().function()
    }

    /// Whether the operator drops rows, other than failed rows.
    pub fn drops_rows(&self) -> bool {
        self.definition().drops_rows()
    }

    /// Whether the engine runs the operator outside of stages.
    pub fn is_engine_operator(&self) -> bool {
        self.definition().role() != OperatorRole::Row
    }

    /// Whether the operator forms the batches of all consumers together.
    pub fn is_coordinated(&self) -> bool {
        self.definition().role() == OperatorRole::CoordinatedBatch
    }

    /// Whether the operator forms one record from the rows of each batch, which cannot be divided or joined.
    pub fn is_indivisible(&self) -> bool {
        self.definition().role() == OperatorRole::IndivisibleBatch
    }

    /// Whether the operator forms batches and must therefore be the last operator.
    pub fn is_batching(&self) -> bool {
        !matches!(self.definition().role(), OperatorRole::Row | OperatorRole::Engine)
    }
}
