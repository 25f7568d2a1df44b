//! Completed batches equal the original ones for random columns, caches and chunks, and invalid pieces are rejected.

use proptest::prelude::*;

use super::*;

/// Nodes of a graph, of which batches contain some.
const NODES: u32 = 40;

fn feature_row(feature: usize, row_bytes: usize, id: u32) -> Vec<u8> {
    (0..row_bytes).map(|place| (feature * 91 + place * 7 + id as usize * 13) as u8).collect()
}

/// A column: the bytes before it, the size of its rows, the number of cached rows, and the nodes of its rows.
type Column = (usize, usize, u32, Vec<u32>);

fn column() -> impl Strategy<Value = Column> {
    (0_usize..20, 1_usize..40, 0..=NODES, prop::collection::vec(0..NODES, 0..30))
}

/// The buffer of a batch, the row ids of its columns, and the offsets of the columns.
fn batch(columns: &[Column]) -> (Vec<u8>, Vec<Vec<u8>>, Vec<usize>) {
    let (mut buffer, mut ids, mut offsets) = (Vec::new(), Vec::new(), Vec::new());
    for (feature, (gap, row_bytes, _, nodes)) in columns.iter().enumerate() {
        buffer.extend((0..*gap).map(|place| place as u8));
        offsets.push(buffer.len());
        buffer.extend(nodes.iter().flat_map(|id| feature_row(feature, *row_bytes, *id)));
        ids.push(nodes.iter().flat_map(|id| id.to_le_bytes()).collect());
    }
    buffer.extend([0xee; 9]);
    (buffer, ids, offsets)
}

fn omit(columns: &[Column]) -> (Vec<u8>, Option<(OmittedRows, Vec<u8>)>) {
    let (buffer, ids, offsets) = batch(columns);
    let features: Vec<FeatureColumn<'_>> = columns
        .iter()
        .zip(ids.iter().zip(&offsets))
        .enumerate()
        .map(|(feature, ((_, row_bytes, cached_rows, _), (ids, values_at)))| FeatureColumn {
            feature: feature as u32,
            values_at: *values_at,
            row_bytes: *row_bytes,
            ids,
            cached_rows: *cached_rows,
        })
        .collect();
    let omitted = omit_rows(&buffer, &features, Vec::with_capacity);
    (buffer, omitted)
}

fn complete(
    columns: &[Column],
    omitted: &OmittedRows,
    total: usize,
    chunks: impl Iterator<Item = Vec<u8>>,
) -> Result<(bool, Vec<u8>), String> {
    let row_bytes = |feature: u32| columns.get(feature as usize).map(|column| column.1 as u32);
    let caches: Vec<Vec<u8>> = columns
        .iter()
        .enumerate()
        .map(|(feature, (_, row_bytes, cached, _))| {
            (0..*cached).flat_map(|id| feature_row(feature, *row_bytes, id)).collect()
        })
        .collect();
    let cached_row = |feature: u32, row: u32| {
        let bytes = columns[feature as usize].1;
        caches[feature as usize].get(row as usize * bytes..(row as usize + 1) * bytes)
    };
    let mut completer = BatchCompleter::new(omitted, total as u64, row_bytes)?;
    let (mut completed, mut is_complete) = (Vec::new(), false);
    for chunk in chunks {
        is_complete = completer.push(&chunk, cached_row, |bytes| completed.extend_from_slice(bytes))?;
    }
    Ok((is_complete, completed))
}

proptest! {
    #[test]
    fn a_completed_batch_equals_the_original(
        columns in prop::collection::vec(column(), 0..4),
        chunk_bytes in 1_usize..200,
    ) {
        let (buffer, omitted) = omit(&columns);
        let is_cached = |(_, row_bytes, cached, nodes): &Column| {
            nodes.iter().filter(|id| *id < cached).count() * row_bytes
        };
        let saved: usize = columns.iter().map(is_cached).sum();
        let ids: usize = columns.iter().map(|(.., nodes)| nodes.len() * 4).sum();
        prop_assert_eq!(omitted.is_some(), saved > ids);
        if let Some((omitted, sent)) = omitted {
            prop_assert_eq!(sent.len(), buffer.len() + ids - saved);
            prop_assert_eq!(omitted.sent_bytes, sent.len() as u64);
            let chunks = sent.chunks(chunk_bytes).map(<[u8]>::to_vec);
            let completed = complete(&columns, &omitted, buffer.len(), chunks);
            prop_assert_eq!(completed, Ok((true, buffer.clone())));
            let truncated = sent[..sent.len() - 1].chunks(chunk_bytes).map(<[u8]>::to_vec);
            let completed = complete(&columns, &omitted, buffer.len(), truncated);
            prop_assert!(completed.is_ok_and(|(is_complete, _)| !is_complete));
            let extended = [sent, vec![1]].into_iter();
            prop_assert!(complete(&columns, &omitted, buffer.len(), extended).is_err());
        }
    }
}

#[test]
fn columns_that_do_not_fit_the_batch_are_rejected() {
    let columns = [(3, 8, 20, (0..20).collect::<Vec<u32>>())];
    let (buffer, omitted) = omit(&columns);
    let (omitted, sent) = omitted.expect("all rows are omitted");
    let chunks = || std::iter::once(sent.clone());
    assert!(complete(&columns, &omitted, buffer.len(), chunks()).is_ok());
    let other = |change: fn(&mut OmittedRows)| {
        let mut other = omitted.clone();
        change(&mut other);
        complete(&columns, &other, buffer.len(), chunks())
    };
    assert!(other(|omitted| omitted.columns[0].feature = 1).is_err());
    assert!(other(|omitted| omitted.columns[0].rows = 1 << 40).is_err());
    assert!(other(|omitted| omitted.columns[0].rows = u64::MAX).is_err());
    assert!(other(|omitted| omitted.columns[0].values_at = u64::MAX).is_err());
    assert!(other(|omitted| omitted.columns.push(omitted.columns[0].clone())).is_err());
    assert!(other(|omitted| omitted.sent_bytes = 0).is_err());
    let fewer = [(3, 8, 10, (0..20).collect::<Vec<u32>>())];
    let error = complete(&fewer, &omitted, buffer.len(), chunks()).expect_err("the consumer has fewer rows");
    assert!(error.contains("omits row 10"), "{error}");
}
