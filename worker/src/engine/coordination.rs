//! How a coordinated job builds its batches: by grouping rows of similar length in buckets, or by packing several rows
//! into one.

use arrow::datatypes::SchemaRef;
use feedline_data::coordinated::{CoordinatedStep, deal_buckets, deal_evenly, pack_rows};
use feedline_data::pipeline::{BucketByLength, LongRowPolicy, OperatorKind, Pack, Pipeline, infer};
use feedline_data::schema::Schema;
use feedline_proto::batch::output_schema;

/// The last operator of a coordinated pipeline, and its input and output columns.
pub(crate) struct Coordination {
    pub(super) mode: BatchMode,
    /// Input columns of the last operator.
    pub(super) input: SchemaRef,
    /// Columns of the batches.
    pub(super) output: Schema,
}

pub(super) enum BatchMode {
    Bucket(BucketByLength),
    Pack(Pack),
}

/// The longest list that a coordinated batch accepts.
pub(super) struct LengthLimit {
    pub(super) elements: u32,
    /// Names the limit and the fix, for error messages.
    pub(super) advice: &'static str,
}

/// One step of a round, with the output rows of each stream.
pub(super) struct RoundStep {
    pub(super) bucket: usize,
    pub(super) streams: Vec<Vec<OutputRow>>,
}

/// The input rows of one output row: several rows with `pack`, otherwise one.
pub(super) type OutputRow = Vec<u32>;

impl Coordination {
    /// Returns the coordination of a pipeline with this source schema. `None` if each stream has its own batches.
    pub(super) fn new(pipeline: &Pipeline, source: &Schema) -> Result<Option<Self>, String> {
        let mode = match pipeline.operators.last().map(|operator| &operator.kind) {
            Some(OperatorKind::BucketByLength(bucket)) => BatchMode::Bucket(bucket.clone()),
            Some(OperatorKind::Pack(pack)) => BatchMode::Pack(pack.clone()),
            _ => return Ok(None),
        };
        let mut schemas = infer(pipeline, source).map_err(|error| error.to_string())?;
        let output = schemas.pop().unwrap_or_default();
        let input = output_schema(&schemas.pop().unwrap_or_default());
        Ok(Some(Self { mode, input, output }))
    }

    /// The columns whose lengths decide which rows share a batch.
    pub(super) fn columns(&self) -> &[String] {
        match &self.mode {
            BatchMode::Bucket(bucket) => &bucket.columns,
            BatchMode::Pack(pack) => &pack.columns,
        }
    }

    /// The value that fills shorter lists.
    pub(super) fn padding(&self) -> i64 {
        match &self.mode {
            BatchMode::Bucket(bucket) => bucket.value,
            BatchMode::Pack(pack) => pack.value,
        }
    }

    /// The length limit for lists. A row with a longer list fails.
    pub(super) fn length_limit(&self) -> Option<LengthLimit> {
        match &self.mode {
            BatchMode::Bucket(bucket) => bucket.max_row_length().map(|elements| LengthLimit {
                elements,
                advice: "the last bucket boundary; add a `truncate` operator, or append one more number to `batch_sizes`",
            }),
            BatchMode::Pack(pack) if pack.longer == LongRowPolicy::Fail => Some(LengthLimit {
                elements: pack.length,
                advice: "the length of a packed row; set `longer: truncate`, or a larger `length`",
            }),
            BatchMode::Pack(_) => None,
        }
    }

    /// The length to which lists are truncated. `None` if they are not truncated.
    pub(super) fn truncation(&self) -> Option<u32> {
        match &self.mode {
            BatchMode::Pack(pack) if pack.longer == LongRowPolicy::Truncate => Some(pack.length),
            _ => None,
        }
    }

    /// Divides rows among steps and streams. `lengths` are the list lengths in each of [`Self::columns`], row by row. A
    /// round without rows has one empty step.
    pub(super) fn steps(&self, lengths: &[u32], streams: u32) -> Vec<RoundStep> {
        let columns = self.columns().len();
        let (steps, packed): (Vec<CoordinatedStep>, Option<Vec<OutputRow>>) = match &self.mode {
            BatchMode::Bucket(bucket) => {
                let longest = |lengths: &[u32]| lengths.iter().copied().max().unwrap_or(0);
                let lengths: Vec<u32> = lengths.chunks(columns).map(longest).collect();
                (deal_buckets(&lengths, &bucket.boundaries, &bucket.batch_rows_per_bucket(), streams), None)
            }
            BatchMode::Pack(pack) => {
                let packed = pack_rows(lengths, columns, pack.length);
                (deal_evenly(packed.len() as u32, pack.size, streams), Some(packed))
            }
        };
        let output_row =
            |row: u32| packed.as_ref().map_or_else(|| vec![row], |rows| rows[row as usize].clone());
        let round_step = |step: CoordinatedStep| RoundStep {
            bucket: step.bucket,
            streams: step
                .streams
                .into_iter()
                .map(|rows| rows.into_iter().map(output_row).collect())
                .collect(),
        };
        let mut steps: Vec<RoundStep> = steps.into_iter().map(round_step).collect();
        if steps.is_empty() {
            steps.push(RoundStep { bucket: 0, streams: vec![Vec::new(); streams as usize] });
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use feedline_data::schema::{ColumnType, ScalarType};

    use super::*;

    /// The coordination of a pipeline over list columns, with this last operator.
    fn coordination(last: &str, columns: &[&'static str]) -> Option<Coordination> {
        let yaml = format!("name: test\nsource: {{ url: x, format: jsonl }}\noperators: [ {last} ]\n");
        let pipeline = Pipeline::from_yaml(&yaml, "test.yaml").expect("a valid pipeline");
        let list = ColumnType::List(Box::new(ColumnType::Scalar(ScalarType::Int32)));
        Coordination::new(&pipeline, &Schema::new(columns.iter().map(|column| (*column, list.clone()))))
            .expect("columns exist")
    }

    fn rows(steps: &[RoundStep]) -> Vec<(usize, &Vec<Vec<OutputRow>>)> {
        steps.iter().map(|step| (step.bucket, &step.streams)).collect()
    }

    #[test]
    fn buckets_depend_on_the_longest_of_the_columns() {
        assert!(coordination("batch: { size: 2 }", &["a"]).is_none());
        let last = "bucket_by_length: { columns: [a, b], boundaries: [4], batch_sizes: [1, 1], value: 9 }";
        let bucket = coordination(last, &["a", "b"]).expect("it is coordinated");
        assert_eq!((bucket.columns(), bucket.padding()), (&["a".to_owned(), "b".to_owned()][..], 9));
        assert_eq!((bucket.truncation(), bucket.length_limit().map(|limit| limit.elements)), (None, None));
        let steps = bucket.steps(&[1, 2, 1, 8, 9, 1, 3, 3], 2);
        let short: Vec<_> = rows(&steps).into_iter().filter(|(bucket, _)| *bucket == 0).collect();
        assert_eq!(short, [(0, &vec![vec![vec![0]], vec![vec![3]]])]);
        assert_eq!(steps.len(), 2);
        let limited =
            coordination("bucket_by_length: { columns: [a], boundaries: [4], batch_sizes: [2] }", &["a"]);
        assert_eq!(limited.and_then(|bucket| bucket.length_limit()).map(|limit| limit.elements), Some(4));
    }

    #[test]
    fn packing_combines_rows_up_to_the_length() {
        let pack =
            coordination("pack: { columns: [a], length: 8, size: 1 }", &["a"]).expect("it is coordinated");
        assert_eq!((pack.length_limit().map(|limit| limit.elements), pack.truncation()), (Some(8), None));
        let steps = pack.steps(&[5, 3, 8], 2);
        let all: Vec<OutputRow> =
            steps.iter().flat_map(|step| step.streams.iter().flatten().cloned()).collect();
        assert_eq!(all, [vec![0, 1], vec![2]]);
        let truncating =
            coordination("pack: { columns: [a], length: 8, size: 1, longer: truncate }", &["a"]).unwrap();
        assert_eq!((truncating.length_limit().is_none(), truncating.truncation()), (true, Some(8)));
    }

    #[test]
    fn a_round_without_rows_has_one_empty_step() {
        let pack =
            coordination("pack: { columns: [a], length: 8, size: 1 }", &["a"]).expect("it is coordinated");
        let steps = pack.steps(&[], 3);
        assert_eq!(rows(&steps), [(0, &vec![Vec::new(), Vec::new(), Vec::new()])]);
    }
}
