//! Runs every operator on every column type of every source. The check of the pipeline refuses a pair, or the pair runs with the
//! right values. Nulls are delivered as nulls, or fail their rows.

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::ArrayRef;
use feedline_data::pipeline::{OPERATOR_NAMES, infer};
use feedline_data::schema::{ColumnType, ScalarType, Schema};

use super::columns::{Cell, ROWS, as_number, cells, elements};
use super::source_columns::{
    SourceColumn, SourceFile, arrow_columns, csv_columns, json_columns, npy_columns, npz_columns,
    parquet_columns, tfrecord_columns, webdataset_columns,
};
use super::*;

/// What an operator does with the column `x`.
enum Expected {
    /// The cells of the rows that it keeps, which it may deliver several times.
    Cells(BTreeMap<u64, Cell>),
    /// The cells, followed by any number of padding elements.
    Padded(BTreeMap<u64, Cell>),
    /// The cells in any order, without padding elements.
    Packed(Vec<Cell>),
    /// This number of elements in each row.
    Elements(usize),
    /// The same as for a column whose tensors an operator has made.
    AsOperatorTensors,
}

/// The operators of a pipeline for one operator, without the batching operator.
fn operators(name: &str, tokenizer: &str) -> Option<String> {
    let operator = |parameters: &str| Some(format!("  - {name}: {{ {parameters} }}\n"));
    match name {
        "decode_image" => {
            operator("column: x").map(|first| format!("{first}  - resize: {{ column: x, size: [2, 2] }}\n"))
        }
        "resize" | "random_resized_crop" => operator("column: x, size: [2, 2]"),
        "center_crop" => operator("column: x, size: [1, 2]"),
        "random_horizontal_flip" | "random_grayscale" => operator("column: x, p: 1"),
        "random_erasing" => operator("column: x, p: 1, scale: [0.2, 0.6], value: 77"),
        "normalize" => operator("column: x, mean: [0.5], std: [0.25]"),
        "cast" => operator("column: x, dtype: float32"),
        "select" => operator("columns: [x]"),
        "rename" => operator("columns: { x: x }"),
        "filter" => operator("where: \"x IS NOT NULL AND id <> 3\""),
        "tokenize" => operator(&format!("column: x, tokenizer: '{tokenizer}'")),
        "truncate" => operator("column: x, length: 2"),
        "pad" => operator("column: x, length: 4, value: 1"),
        "recode_jpeg" => operator("column: x"),
        "cache" => operator("tier: memory"),
        "repeat" => operator("count: 2"),
        "burn" => operator("cpu_us: 1"),
        "wait" => operator("ms: 0"),
        "batch" => Some(String::new()),
        "bucket_by_length" => operator("columns: [x], boundaries: [2], batch_sizes: [2, 2], value: 1"),
        "pack" => operator("columns: [x], length: 8, size: 2, value: 1")
            .map(|pack| format!("  - select: {{ columns: [x] }}\n{pack}")),
        // The tests of `worker/functions` call functions with columns of every type.
        "map" | "filter_function" => None,
        // Reads only the columns of graphs.
        "sample_neighbors" => None,
        other => panic!("add the operator {other} to this test"),
    }
}

/// The result of an operator, where `cells` are the cells of the source.
fn expected(name: &str, column_type: &ColumnType, source: &ArrayRef, cells: &[Cell]) -> Expected {
    let each =
        |change: &dyn Fn(usize) -> Cell| (0..ROWS as u64).map(|row| (row, change(row as usize))).collect();
    let is_tensor = matches!(column_type, ColumnType::Tensor { .. });
    match name {
        "filter" => {
            let kept = (0..).zip(cells).filter(|(row, _)| *row != 3);
            Expected::Cells(kept.map(|(row, cell)| (row, cell.clone())).collect())
        }
        "cast" => Expected::Cells(each(&|row| cells[row].iter().map(|cell| as_number(cell)).collect())),
        "truncate" => {
            Expected::Cells(each(&|row| elements(source, row).into_iter().take(2).flatten().collect()))
        }
        "pad" => Expected::Cells(each(&|row| {
            let mut cell = cells[row].clone();
            cell.resize(4, "1".to_owned());
            cell
        })),
        "bucket_by_length" => Expected::Padded(each(&|row| cells[row].clone())),
        "pack" => Expected::Packed(cells.to_vec()),
        "tokenize" => Expected::Elements(1),
        "decode_image" | "resize" | "random_resized_crop" if !is_tensor => Expected::Elements(12),
        "center_crop" if !is_tensor => Expected::Elements(6),
        "recode_jpeg" => Expected::Elements(1),
        "resize"
        | "center_crop"
        | "random_resized_crop"
        | "normalize"
        | "random_erasing"
        | "random_grayscale"
        | "random_horizontal_flip" => Expected::AsOperatorTensors,
        _ => Expected::Cells(each(&|row| cells[row].clone())),
    }
}

/// What a job delivers.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    /// The cells of the column `x` by row.
    cells: BTreeMap<u64, Vec<Cell>>,
    /// The cells of packed rows, without padding.
    packed: Vec<String>,
    skipped: BTreeSet<u64>,
}

/// Runs a pipeline on a file with the columns `id` and `x`. `None` if it is refused before the first row.
async fn run(file: &SourceFile, name: &str, operators: &str) -> Option<Outcome> {
    let batch = match name {
        "bucket_by_length" | "pack" => "",
        _ => "  - batch: { size: 4 }\n",
    };
    let rest = format!("on_error: skip\noperators:\n{operators}{batch}");
    let yaml = format!("name: test\nsource: {{ url: x, format: {} }}\n{rest}", file.format);
    infer(&Pipeline::from_yaml(&yaml, "test.yaml").expect("a valid pipeline"), &file.schema).ok()?;
    let test = TestEngine::over((&file.data, &file.format), &rest, 1, 1, 64 * MIB).await;
    assert_eq!(by_name(&test.source.manifest.schema), by_name(&file.schema), "{}", file.format);
    test.load().await;
    test.lease(test.splits(0));
    let mut outcome = Outcome::default();
    for split in test.splits(0) {
        let delivered = test.fetch(split, 0).await;
        assert_eq!(delivered.failure, None, "{name} fails: {rest}");
        for (piece, batch) in delivered.pieces.iter().zip(&delivered.batches) {
            outcome.add(name, piece, batch);
        }
    }
    test.engine.shutdown().await;
    Some(outcome)
}

fn by_name(schema: &Schema) -> BTreeMap<&str, &ColumnType> {
    schema.fields.iter().map(|field| (field.name.as_str(), &field.column_type)).collect()
}

impl Outcome {
    fn add(&mut self, name: &str, piece: &PieceHeader, batch: &RecordBatch) {
        self.skipped.extend(piece.skipped.iter().map(|row| row.row_id));
        let x = batch.column_by_name("x").expect("the column remains");
        let found = cells(x);
        if name == "pack" {
            let segments = cells(batch.column_by_name("x_segment_ids").expect("pack adds it")).concat();
            let elements = found.concat().into_iter().zip(segments);
            self.packed.extend(elements.filter(|(_, segment)| segment != "0").map(|(element, _)| element));
            return;
        }
        let ids = piece.row_ids.as_ref().expect("the job is audited");
        let kept: Vec<u64> = match &piece.kept_offsets {
            Some(offsets) if name != "bucket_by_length" => {
                offsets.iter().map(|offset| ids[(offset - piece.start) as usize]).collect()
            }
            _ => ids[..found.len()].to_vec(),
        };
        for (id, cell) in kept.into_iter().zip(found) {
            self.cells.entry(id).or_default().push(cell);
        }
    }

    fn check(&self, expected: &Expected, what: &str) {
        for (id, found) in &self.cells {
            assert!(found.iter().all(|found| expected.accepts(*id, found)), "{what}, row {id}: {found:?}");
        }
        match expected {
            Expected::Packed(cells) => {
                assert_eq!(sorted(self.packed.clone()), sorted(cells.concat()), "{what}")
            }
            Expected::Cells(cells) | Expected::Padded(cells) => {
                assert_eq!(self.cells.keys().collect::<Vec<_>>(), cells.keys().collect::<Vec<_>>(), "{what}");
            }
            Expected::Elements(_) | Expected::AsOperatorTensors => {
                assert_eq!(self.cells.len(), ROWS as usize, "{what}");
            }
        }
    }
}

fn sorted(mut elements: Vec<String>) -> Vec<String> {
    elements.sort_unstable();
    elements
}

impl Expected {
    fn accepts(&self, id: u64, found: &Cell) -> bool {
        match self {
            Self::Cells(cells) => cells.get(&id) == Some(found),
            Self::Padded(cells) => cells.get(&id).is_some_and(|cell| {
                found.starts_with(cell) && found[cell.len()..].iter().all(|element| element == "1")
            }),
            Self::Elements(count) => found.len() == *count,
            Self::Packed(_) | Self::AsOperatorTensors => true,
        }
    }
}

/// The operators after which the same operators read tensors of an operator. The number of operators is unchanged, because it
/// determines random draws.
fn after_operator_tensors(operators: &str, scalar: ScalarType) -> (String, String) {
    let dtype = scalar.name();
    (
        format!("  - select: {{ columns: [id, x] }}\n{operators}"),
        format!("  - cast: {{ column: x, dtype: {dtype} }}\n{operators}"),
    )
}

/// A file with a tokenizer that knows no words.
fn tokenizer() -> tempfile::NamedTempFile {
    let tokenizer = tempfile::NamedTempFile::new().expect("a temporary file");
    let json = r#"{"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "added_tokens": [],
        "model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}}"#;
    std::fs::write(tokenizer.path(), json).expect("the file is writable");
    tokenizer
}

/// Runs every operator on each of the columns. Returns the operators that ran on any of them.
async fn check_columns(columns: Vec<SourceColumn>) -> BTreeSet<&'static str> {
    let tokenizer = tokenizer();
    let tokenizer = tokenizer.path().to_str().expect("UTF-8");
    let mut accepted = BTreeSet::new();
    for column in &columns {
        for name in OPERATOR_NAMES {
            let Some(operators) = operators(name, tokenizer) else { continue };
            // The condition reads the column `id`.
            if *name == "filter" && !column.file.has_id {
                continue;
            }
            if check_operator(column, name, &operators).await {
                accepted.insert(*name);
            }
        }
    }
    accepted
}

/// Runs an operator on a column. Returns whether the check of the pipeline accepts it.
async fn check_operator(column: &SourceColumn, name: &str, operators: &str) -> bool {
    let SourceColumn { column_type, x, file, with_nulls } = column;
    let what = format!("{name} on {column_type} of {}", file.format);
    let found = run(file, name, operators).await;
    if let Some((_, incomplete)) = with_nulls {
        let is_accepted = run(incomplete, name, operators).await.is_some();
        assert_eq!(found.is_some(), is_accepted, "{what}");
    }
    let Some(found) = found else { return false };
    assert!(found.skipped.is_empty(), "{what}: {found:?}");
    let expected = expected(name, column_type, x, &cells(x));
    found.check(&expected, &what);
    if let (ColumnType::Tensor { scalar, .. }, Expected::AsOperatorTensors) = (column_type, &expected) {
        let (mut direct, after) = after_operator_tensors(operators, *scalar);
        if !file.has_id {
            direct = direct.replace("[id, x]", "[x]");
        }
        let direct = run(file, name, &direct).await;
        assert_eq!(direct, run(file, name, &after).await, "{what}");
        assert_eq!(direct.map(|direct| direct.cells.len()), Some(ROWS as usize), "{what}");
    }
    if let Some((source, incomplete)) = with_nulls {
        let found_with_nulls = run(incomplete, name, operators).await.expect("the check accepts it");
        check_nulls((&found, &found_with_nulls), &expected, &cells(source), &what);
    }
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operator_runs_on_a_column_or_is_refused() {
    let accepted = check_columns(arrow_columns()).await;
    // Every operator of this test runs on some column.
    let mut tested = OPERATOR_NAMES.iter().filter(|name| operators(name, "").is_some());
    assert!(tested.all(|name| accepted.contains(name)), "{accepted:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operator_runs_on_a_numpy_array_or_is_refused() {
    check_columns(npz_columns()).await;
    check_columns(npy_columns()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operator_runs_on_a_parquet_column_or_is_refused() {
    check_columns(parquet_columns()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operator_runs_on_a_column_of_text_files_or_is_refused() {
    check_columns(json_columns()).await;
    check_columns(csv_columns()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operator_runs_on_a_feature_or_a_member_or_is_refused() {
    check_columns(tfrecord_columns()).await;
    check_columns(webdataset_columns()).await;
}

#[tokio::test]
async fn nested_json_objects_are_refused_before_the_first_row() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = folder.path().join("data");
    std::fs::write(&path, "{\"id\": 0, \"x\": {\"a\": 1}}\n").expect("the directory is writable");
    let url = path.to_str().expect("UTF-8");
    let yaml = format!("name: test\nsource: {{ url: '{url}', format: jsonl }}\n{PLAIN}");
    let pipeline = Pipeline::from_yaml(&yaml, "test.yaml").expect("a valid pipeline");
    let dataset = Dataset::new(pipeline.source, Stores::new(Vec::new())).expect("a valid source");
    let object = dataset.list().await.expect("the file exists").remove(0);
    let Err(error) = dataset.index_shard(&object).await else { panic!("the column has no type") };
    let error = error.to_string();
    assert!(error.contains("column `x`: nested objects are not supported"), "{error}");
}

/// Checks that rows without nulls have the same cells as in the column without nulls, and that the others are skipped or contain
/// a null.
fn check_nulls((complete, found): (&Outcome, &Outcome), expected: &Expected, source: &[Cell], what: &str) {
    let has_null = |cell: &Cell| cell.contains(&"null".to_owned());
    for (row, cell) in (0..).zip(source) {
        let delivered = found.cells.get(&row);
        if has_null(cell) {
            assert!(
                delivered.is_none_or(|cells| cells.iter().all(has_null)),
                "{what}, row {row}: {delivered:?}"
            );
            // A row is never lost without a reason, except by operators that remove or pack rows.
            let may_remove = what.starts_with("filter") || matches!(expected, Expected::Packed(_));
            assert!(
                delivered.is_some() || may_remove || found.skipped.contains(&row),
                "{what}, row {row} is lost"
            );
            continue;
        }
        assert_eq!(delivered.is_some(), complete.cells.contains_key(&row), "{what}, row {row}");
        let mut delivered = delivered.into_iter().flatten();
        assert!(delivered.all(|cell| expected.accepts(row, cell)), "{what}, row {row}: {found:?}");
        if matches!(expected, Expected::AsOperatorTensors) {
            assert_eq!(found.cells.get(&row), complete.cells.get(&row), "{what}, row {row}");
        }
    }
    if let Expected::Packed(_) = expected {
        let complete_rows = source.iter().filter(|cell| !has_null(cell)).cloned().collect::<Vec<_>>();
        assert_eq!(sorted(found.packed.clone()), sorted(complete_rows.concat()), "{what}");
    }
}
