//! Tensors with nulls, in batches and in caches.

use feedline_data::schema::{ColumnType, ScalarType};

use super::columns::{Cell, INCOMPLETE_ROW, NULL_ROW, ROWS, cells, column, file};
use super::*;

#[tokio::test]
async fn a_tensor_with_nulls_names_its_column_file_and_row() {
    let column_type = ColumnType::Tensor { scalar: ScalarType::Int32, shape: vec![3] };
    let data = file(&column_type, &column(&column_type, true));
    for (on_error, rows) in [("fail", 0), ("skip", 4), ("replace", 6)] {
        let rest = format!("on_error: {on_error}\noperators: [ batch: {{ size: 8 }} ]\n");
        let test = TestEngine::over((&data, "arrow"), &rest, 1, 1, 64 * MIB).await;
        test.load().await;
        test.lease(test.splits(0));
        let delivered = test.fetch(test.splits(0)[0], 0).await;
        let url = test.directory.path().join("data");
        if let Some(message) = &delivered.failure {
            let wanted = format!("{}, row 1 at byte 0: column `x` is null, which a tensor", url.display());
            assert!(message.contains(&wanted) && message.contains("on_error: skip"), "{message}");
        }
        assert_eq!(
            (delivered.failure.is_some(), delivered.pieces.iter().map(|piece| piece.rows).sum::<u32>()),
            (rows == 0, rows)
        );
        let skipped: Vec<(u64, &str)> = delivered
            .pieces
            .iter()
            .flat_map(|piece| &piece.skipped)
            .map(|row| (row.row_id, row.reason.as_str()))
            .collect();
        if rows > 0 {
            let reasons = [
                (NULL_ROW, "column `x` is null, which a tensor cannot represent"),
                (INCOMPLETE_ROW, "column `x` contains a null element, which a tensor cannot represent"),
            ];
            assert_eq!(skipped, reasons);
        }
    }
}

#[tokio::test]
async fn cached_tensors_keep_their_nulls() {
    for scalar in [ScalarType::Bool, ScalarType::Float64] {
        let column_type = ColumnType::Tensor { scalar, shape: vec![3] };
        let data = file(&column_type, &column(&column_type, true));
        let rest = "on_error: skip\noperators: [ cache: { tier: memory }, filter: { where: \"x IS NULL OR id >= 2\" }, batch: { size: 8 } ]\n";
        let test = TestEngine::over((&data, "arrow"), rest, 1, 1, 64 * MIB).await;
        test.load().await;
        let mut all = Vec::new();
        for epoch in [0, 1] {
            test.lease(test.splits(epoch));
            let delivered = test.fetch(test.splits(epoch)[0], 0).await;
            let skipped: Vec<u64> = delivered
                .pieces
                .iter()
                .flat_map(|piece| piece.skipped.iter().map(|row| row.row_id))
                .collect();
            let cells: Vec<Cell> = delivered
                .batches
                .iter()
                .flat_map(|batch| cells(batch.column_by_name("x").expect("it remains")))
                .collect();
            assert_eq!(
                (cells.len(), skipped.as_slice()),
                (3, [NULL_ROW, INCOMPLETE_ROW].as_slice()),
                "epoch {epoch}"
            );
            all.push(cells);
        }
        assert_eq!(all[0], all[1]);
        assert_eq!(test.stats("cache").await.rows_out, ROWS as u64, "the second epoch reads the cache");
    }
}
