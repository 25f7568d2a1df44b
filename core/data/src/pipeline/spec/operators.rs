//! The parameters of operators.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::schema::ScalarType;

/// Height and width in pixels.
pub type Size = [u32; 2];

/// Parameters of `decode_image`. Output: the column becomes an image, `uint8`, RGB.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecodeImage {
    /// Column of encoded bytes.
    pub column: String,
}

/// Parameters of `resize`. Bilinear with antialiasing, as Pillow and torchvision (`antialias=True`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// Column of encoded bytes or decoded images.
    pub column: String,
    /// Height and width of the result.
    pub size: Size,
}

/// Parameters of `center_crop`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CenterCrop {
    /// Column of encoded bytes or decoded images.
    pub column: String,
    /// Height and width of the result.
    pub size: Size,
    /// Shorter side that the image is resized to first, in pixels; without it the crop is cut from the image as it is
    /// (padded with zeros where the image is smaller, as torchvision does).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resize: Option<u32>,
}

/// Parameters of `random_resized_crop`; defaults are torchvision's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomResizedCrop {
    /// Column of encoded bytes or decoded images.
    pub column: String,
    /// Height and width of the result.
    pub size: Size,
    /// Bounds of the crop's share of the image's area.
    #[serde(default = "default_scale")]
    pub scale: [f64; 2],
    /// Bounds of the crop's width / height.
    #[serde(default = "default_ratio")]
    pub ratio: [f64; 2],
}

/// Parameters of `random_horizontal_flip`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomHorizontalFlip {
    /// Column of images or image tensors.
    pub column: String,
    /// Probability of a flip.
    #[serde(default = "default_probability")]
    pub p: f64,
}

/// Parameters of `normalize`. Output: a tensor of `dtype`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalize {
    /// Column of image tensors, `uint8`, height x width x channels.
    pub column: String,
    /// Mean per channel on the scale 0 to 1.
    pub mean: Vec<f64>,
    /// Standard deviation per channel on the scale 0 to 1.
    pub std: Vec<f64>,
    /// Element type of the result: `float32` or `float16`.
    #[serde(default = "default_float")]
    pub dtype: ScalarType,
    /// Axis order of the result.
    #[serde(default)]
    pub layout: TensorLayout,
}

/// Axis order of an image tensor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TensorLayout {
    /// Height, width, channel.
    #[default]
    Hwc,
    /// Channel, height, width, as PyTorch models take it.
    Chw,
}

/// Parameters of `cast`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cast {
    /// Column of scalars, lists or tensors; or text holding numbers.
    pub column: String,
    /// New element type.
    pub dtype: ScalarType,
}

/// Parameters of `select`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Select {
    /// Columns to keep, in this order.
    pub columns: Vec<String>,
}

/// Parameters of `rename`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rename {
    /// New name -> present name.
    pub columns: BTreeMap<String, String>,
}

/// Parameters of `filter`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// SQL expression over the columns, such as `length(tokens) <= 64 AND label <> 3`. Null counts as false.
    #[serde(rename = "where")]
    pub predicate: String,
}

/// Parameters of `tokenize`. Output: a list of `int32` token ids.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tokenize {
    /// Column of text.
    pub column: String,
    /// Path or URL of a Hugging Face `tokenizer.json`.
    pub tokenizer: String,
    /// Column to write; the text column itself by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Whether the tokenizer adds its special tokens.
    #[serde(default = "default_true")]
    pub add_special_tokens: bool,
}

/// Parameters of `truncate`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Truncate {
    /// Column of lists.
    pub column: String,
    /// Longest length kept, in elements; what is beyond is cut from the end.
    pub length: u32,
}

/// Parameters of `pad`. Output: a tensor of shape `[length]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pad {
    /// Column of lists.
    pub column: String,
    /// Length of every row after padding, in elements; a longer row fails.
    pub length: u32,
    /// What fills the end.
    #[serde(default)]
    pub value: i64,
}

/// Parameters of `batch`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchParams {
    /// Rows of a batch.
    pub size: u32,
    /// What happens to the rows left at an epoch's end.
    #[serde(default)]
    pub remainder: Remainder,
}

/// Parameters of `bucket_by_length`. All consumers get rows of the same bucket in the same step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BucketByLength {
    /// Columns of lists. A row is as long as the longest of its lists.
    pub columns: Vec<String>,
    /// The longest length in each bucket, in elements, ascending.
    pub boundaries: Vec<u32>,
    /// Rows of a batch, for each bucket: one number for each boundary, and one more for rows that are longer than the last.
    /// Without that one, longer rows fail.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub batch_sizes: Vec<u32>,
    /// In place of `batch_sizes`: elements of a batch with its padding, so that a bucket of short rows has large batches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u32>,
    /// To which length the lists of a batch are filled.
    #[serde(default)]
    pub pad: PadTo,
    /// What fills them.
    #[serde(default)]
    pub value: i64,
    /// Rows that are put into buckets together; chosen by the sizes of batches where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
}

impl BucketByLength {
    /// Rows of a full batch of each bucket.
    pub fn sizes(&self) -> Vec<u32> {
        match self.tokens {
            Some(tokens) => {
                self.boundaries.iter().map(|&boundary| (tokens / boundary.max(1)).max(1)).collect()
            }
            None => self.batch_sizes.clone(),
        }
    }

    /// The longest row that is taken; `None` where any is.
    pub fn longest(&self) -> Option<u32> {
        if self.batch_sizes.len() > self.boundaries.len() { None } else { self.boundaries.last().copied() }
    }
}

/// To which length the lists of a batch are filled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PadTo {
    /// To the longest row of the step, whichever consumer gets it: the same length for all consumers.
    #[default]
    Longest,
    /// To the bucket's boundary; to the longest row of the step where rows are longer than the last boundary.
    Boundary,
    /// They are not filled.
    None,
}

/// Parameters of `pack`. Output: each column becomes a tensor of shape `[length]`, and beside it there are `int32` tensors
/// `NAME_segment_ids` (1 for the first row in it, 2 for the second, 0 for what is filled) and `NAME_positions` (the
/// element's place in its row).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pack {
    /// Columns of lists: all that there are.
    pub columns: Vec<String>,
    /// Elements of a packed row, in each column.
    pub length: u32,
    /// Packed rows of a batch.
    pub size: u32,
    /// What happens to a row that is longer than `length`.
    #[serde(default)]
    pub longer: Longer,
    /// What fills the end.
    #[serde(default)]
    pub value: i64,
    /// Rows that are packed together; chosen by the size of batches where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
}

/// What happens to a row that is longer than a packed one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Longer {
    /// It fails, as `on_error` says.
    #[default]
    Fail,
    /// Its end is cut off.
    Truncate,
}

/// What happens to the rows of an epoch that do not fill a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Remainder {
    /// They come as a smaller last batch of the epoch.
    #[default]
    Emit,
    /// They are left out, and counted as dropped.
    Drop,
    /// They open the next epoch's first batch; after the last epoch they come as a smaller batch.
    Carry,
}

/// Parameters of `recode_jpeg`. A JPEG gets a segment of about 1 % of its size that other decoders pass over; its pixels
/// stay as they are. What has no such index (other formats, progressive or damaged JPEGs) passes unchanged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecodeJpeg {
    /// Column of encoded bytes.
    pub column: String,
}

/// Parameters of `cache`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// Where rows are kept.
    pub tier: CacheTier,
}

/// Where rows are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheTier {
    /// In the worker's memory, within its budget.
    Memory,
    /// On the worker's disk, where they outlive the worker.
    Disk,
    /// In an object store, where all workers find them.
    Store,
}

impl CacheTier {
    /// All tiers, the fastest first.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Disk, Self::Store];

    /// The name used in pipeline files and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Store => "store",
        }
    }
}

/// In which form a kept row has the images that the next operator decodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheEncoding {
    /// As the row is.
    #[default]
    AsIs,
    /// JPEGs with an index, as `recode_jpeg` makes them.
    Indexed,
    /// Decoded pixels.
    Pixels,
}

impl CacheEncoding {
    /// The forms that something else than the row as it is.
    pub const MADE: [Self; 2] = [Self::Indexed, Self::Pixels];

    /// The name used in messages and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::AsIs => "as it is",
            Self::Indexed => "indexed JPEG",
            Self::Pixels => "decoded pixels",
        }
    }
}

/// Parameters of `repeat`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Repeat {
    /// Passes per epoch.
    pub count: u32,
}

/// Parameters of `burn`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Burn {
    /// CPU time per row in microseconds.
    pub cpu_us: u64,
}

/// Parameters of `wait`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wait {
    /// Time per row in milliseconds.
    pub ms: u64,
}

pub(in crate::pipeline) fn default_scale() -> [f64; 2] {
    [0.08, 1.0]
}

pub(in crate::pipeline) fn default_ratio() -> [f64; 2] {
    [3.0 / 4.0, 4.0 / 3.0]
}

pub(in crate::pipeline) fn default_probability() -> f64 {
    0.5
}

pub(in crate::pipeline) fn default_float() -> ScalarType {
    ScalarType::Float32
}

pub(in crate::pipeline) fn default_true() -> bool {
    true
}
