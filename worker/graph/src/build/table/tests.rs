//! Tests of tables that builds do not cover.

use std::sync::Arc;

use ::parquet::arrow::ArrowWriter;
use arrow::array::{ArrayRef, AsArray, FixedSizeListArray, Float32Array, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type};

use super::*;

fn settings() -> BuildSettings {
    BuildSettings::new(1 << 20, 3)
}

#[test]
fn parts_of_a_table_are_read_in_parallel_and_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npy");
    let mut bytes = crate::npy::header(feedline_data::schema::ScalarType::Int64, 200_000, &[]);
    bytes.extend((0..200_000_i64).flat_map(i64::to_le_bytes));
    std::fs::write(&path, bytes).unwrap();
    let table = Table::open(&[path.to_str().unwrap().to_owned()], NumpyAxes::Rows).unwrap();
    let columns = table.choose(Some(&[ColumnChoice::Index(0), ColumnChoice::Row]), 2).unwrap();
    assert_eq!((table.rows(), table.estimated_rows(), table.is_csv()), (Some(200_000), 200_000, false));
    let states = table.scan(
        &settings(),
        &columns,
        || 0_i64,
        |sum, chunk| {
            *sum += chunk.columns[0].as_primitive::<Int64Type>().values().iter().sum::<i64>();
            Ok(())
        },
    );
    assert_eq!(states.unwrap().into_iter().sum::<i64>(), 199_999 * 200_000 / 2);
    let mut rows = 0;
    table
        .scan_in_order(&settings(), &columns, &mut |chunk| {
            assert_eq!((chunk.first_row, chunk.file_row), (rows, rows));
            rows += chunk.rows as u64;
            Ok(())
        })
        .unwrap();
    assert_eq!(rows, 200_000);
    let read = table.read_rows(199_990, 3).unwrap();
    assert_eq!(read.as_primitive::<Int64Type>(), &Int64Array::from(vec![199_990, 199_991, 199_992]));
    assert!(table.read_rows(199_999, 2).is_err());
    assert_eq!(table.maximum(&ColumnChoice::Row), Some(199_999));
}

/// The memory of a chunk does not grow with the length of the rows.
#[test]
fn chunks_of_long_rows_have_fewer_rows() {
    const WIDTH: i32 = 1 << 14;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.parquet");
    let values = Float32Array::from_iter_values((0..200 * WIDTH).map(|number| number as f32));
    let field = Arc::new(Field::new_list_field(DataType::Float32, true));
    let lists: ArrayRef = Arc::new(FixedSizeListArray::new(field, WIDTH, Arc::new(values), None));
    let batch = RecordBatch::try_from_iter([("x", lists)]).unwrap();
    let mut writer =
        ArrowWriter::try_new(std::fs::File::create(&path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let table = Table::open(&[path.to_str().unwrap().to_owned()], NumpyAxes::Rows).unwrap();
    let columns = table.choose(None, 1).unwrap();
    let mut chunks = Vec::new();
    table
        .scan_in_order(&settings(), &columns, &mut |chunk| {
            chunks.push(chunk.rows);
            Ok(())
        })
        .unwrap();
    assert_eq!(chunks.iter().sum::<usize>(), 200);
    assert!(chunks.iter().all(|&rows| rows <= 64), "{chunks:?}");
}

#[test]
fn files_of_several_formats_and_several_arrays_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.csv", "a.parquet", "a.npy", "b.npy"] {
        std::fs::write(folder.path().join(name), "1,2\n").unwrap();
    }
    let error = |pattern: &str| {
        let pattern = folder.path().join(pattern).to_str().unwrap().to_owned();
        Table::open(&[pattern], NumpyAxes::Pairs).unwrap_err().to_string()
    };
    assert!(error("a.*").contains("different formats"));
    assert!(error("*.npy").contains("several .npy files"));
    assert!(error("a.[").contains("invalid pattern"));
}
