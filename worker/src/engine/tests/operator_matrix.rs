//! Runs every operator on every column type of a source. The check of the pipeline refuses a pair, or the pair runs with the
//! right values. Nulls are delivered as nulls, or fail their rows.

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::ArrayRef;
use feedline_data::pipeline::{OPERATOR_NAMES, infer};
use feedline_data::schema::{ColumnType, ScalarType, Schema};

use super::columns::{Cell, ROWS, as_number, cells, column, column_types, elements, file};
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
async fn run((data, schema): (&[u8], &Schema), name: &str, operators: &str) -> Option<Outcome> {
    let batch = match name {
        "bucket_by_length" | "pack" => "",
        _ => "  - batch: { size: 4 }\n",
    };
    let rest = format!("on_error: skip\noperators:\n{operators}{batch}");
    let yaml = format!("name: test\nsource: {{ url: x, format: arrow }}\n{rest}");
    infer(&Pipeline::from_yaml(&yaml, "test.yaml").expect("a valid pipeline"), schema).ok()?;
    let test = TestEngine::over((data, "arrow"), &rest, 1, 1, 64 * MIB).await;
    assert_eq!(&test.source.manifest.schema, schema);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operator_runs_on_a_column_or_is_refused() {
    let tokenizer = tempfile::NamedTempFile::new().expect("a temporary file");
    let json = r#"{"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "added_tokens": [],
        "model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}}"#;
    std::fs::write(tokenizer.path(), json).expect("the file is writable");
    let tokenizer = tokenizer.path().to_str().expect("UTF-8").to_owned();
    let mut accepted: BTreeMap<&str, usize> = BTreeMap::new();
    for column_type in column_types() {
        let (x, with_nulls) = (column(&column_type, false), column(&column_type, true));
        let (complete, incomplete) = (file(&column_type, &x), file(&column_type, &with_nulls));
        let id = ("id", ColumnType::Scalar(ScalarType::Int64));
        let schema = Schema::new([id, ("x", column_type.clone())]);
        let (complete, incomplete) = ((&complete[..], &schema), (&incomplete[..], &schema));
        for name in OPERATOR_NAMES {
            let Some(operators) = operators(name, &tokenizer) else { continue };
            let what = format!("{name} on {column_type}");
            let found = run(complete, name, &operators).await;
            let found_with_nulls = run(incomplete, name, &operators).await;
            assert_eq!(found.is_some(), found_with_nulls.is_some(), "{what}");
            let (Some(found), Some(found_with_nulls)) = (found, found_with_nulls) else { continue };
            *accepted.entry(name).or_default() += 1;
            assert!(found.skipped.is_empty(), "{what}: {found:?}");
            let expected = expected(name, &column_type, &x, &cells(&x));
            found.check(&expected, &what);
            if let (ColumnType::Tensor { scalar, .. }, Expected::AsOperatorTensors) =
                (&column_type, &expected)
            {
                let (direct, after) = after_operator_tensors(&operators, *scalar);
                let direct = run(complete, name, &direct).await;
                assert_eq!(direct, run(complete, name, &after).await, "{what}");
                assert_eq!(direct.map(|direct| direct.cells.len()), Some(ROWS as usize), "{what}");
            }
            check_nulls((&found, &found_with_nulls), &expected, &cells(&with_nulls), &what);
        }
    }
    // Every operator of this test runs on some column.
    let mut tested = OPERATOR_NAMES.iter().filter(|name| operators(name, &tokenizer).is_some());
    assert!(tested.all(|name| accepted.contains_key(name)), "{accepted:?}");
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
