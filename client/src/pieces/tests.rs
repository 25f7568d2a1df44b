//! Tests of the reader of pieces: chunks of any size form the same piece, and invalid headers are rejected.

use arrow::array::{AsArray, Int64Array, ListArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use feedline_data::graph::description::GraphHash;
use feedline_proto::batch::{FeatureColumn, omit_rows};
use feedline_proto::encode_batch;
use feedline_proto::services::CachedFeature;

use super::*;

/// One row with a list of numbers, or no row.
fn records(rows: u32) -> RecordBatch {
    let item = Arc::new(Field::new("item", DataType::Int64, true));
    let schema = Schema::new(vec![Field::new("n_id", DataType::List(Arc::clone(&item)), true)]);
    if rows == 0 {
        return RecordBatch::new_empty(Arc::new(schema));
    }
    let values = Arc::new(Int64Array::from_iter_values(0..i64::from(rows)));
    let list = ListArray::new(item, OffsetBuffer::from_lengths([rows as usize]), values, None);
    RecordBatch::try_new(Arc::new(schema), vec![Arc::new(list)]).unwrap()
}

fn reader(records: &RecordBatch) -> PieceReader {
    let mut reader = PieceReader::new(ReceivePool::new(1 << 20), None);
    reader.read(Frame::Schema(records.schema())).unwrap();
    reader
}

/// An indivisible piece that was formed from `rows` rows.
fn piece(rows: u32) -> (PieceHeader, Bytes, RecordBatch) {
    let records = records(rows);
    let (batch, data) = encode_batch(&records).unwrap();
    let header =
        PieceHeader { start: 10, end: 10 + rows, rows, indivisible: true, batch, ..PieceHeader::default() };
    (header, data, records)
}

#[test]
fn an_indivisible_piece_is_read_from_chunks_of_any_size() {
    for (rows, chunk_bytes) in [(1, 1), (5, 7), (1_000, 64), (1_000, 4_096), (1_000, 1 << 20), (0, 100)] {
        let (header, data, expected) = piece(rows);
        let mut reader = reader(&expected);
        let mut event = reader.read(Frame::Piece(header)).unwrap();
        for (index, chunk) in data.chunks(chunk_bytes).enumerate() {
            let offset = (index * chunk_bytes) as u64;
            event = reader.read(Frame::Chunk { offset, data: Bytes::copy_from_slice(chunk) }).unwrap();
        }
        let FrameEvent::Piece { piece, .. } = event else { panic!("the piece is incomplete") };
        assert_eq!((piece.from, piece.to, piece.payload.rows), (10, 10 + rows, rows));
        assert!(piece.payload.is_indivisible);
        assert_eq!(piece.payload.records, expected);
        if rows > 0 {
            let list = piece.payload.records.column(0).as_list::<i32>().value(0);
            assert_eq!(list.as_primitive::<Int64Type>().values().len(), rows as usize);
        }
    }
}

/// The first rows of a feature whose rows are the numbers from 0.
fn cached_rows(rows: u32) -> Arc<CachedRows> {
    let numbers = (0..i64::from(rows)).flat_map(i64::to_le_bytes).collect();
    let feature = CachedFeature { column: "n_id".to_owned(), content: GraphHash(1), rows, row_bytes: 8 };
    Arc::new(CachedRows { features: vec![feature], rows: vec![numbers] })
}

#[test]
fn omitted_rows_are_inserted_from_the_cache() {
    for (rows, cached, chunk_bytes) in [(100, 60, 1), (1_000, 999, 7), (1_000, 1_000, 1 << 20)] {
        let (header, data, expected) = piece(rows);
        let ids: Vec<u8> = (0..rows).flat_map(u32::to_le_bytes).collect();
        // The buffers of a list are its validity, its offsets, the validity of its values, and the values.
        let values_at = header.batch.buffers[3].0 as usize;
        let column = FeatureColumn { feature: 0, values_at, row_bytes: 8, ids: &ids, cached_rows: cached };
        let (omitted, sent) = omit_rows(&data, &[column], Vec::with_capacity).expect("the piece is smaller");
        let whole_header = header.clone();
        let header = PieceHeader { omitted_rows: Some(omitted), ..header };
        assert!(reader(&expected).read(Frame::Piece(header.clone())).is_err(), "there is no cache");
        let mut reader = PieceReader::new(ReceivePool::new(1 << 20), Some(cached_rows(cached)));
        reader.read(Frame::Schema(expected.schema())).unwrap();
        let total = data.len() as u64;
        let opened = reader.read(Frame::Piece(header)).unwrap();
        assert!(matches!(opened, FrameEvent::PieceOpened(bytes) if bytes == total));
        let (mut counted, mut found) = (0, None);
        for (index, chunk) in sent.chunks(chunk_bytes).enumerate() {
            let offset = (index * chunk_bytes) as u64;
            match reader.read(Frame::Chunk { offset, data: Bytes::copy_from_slice(chunk) }).unwrap() {
                FrameEvent::Bytes(bytes) => counted += bytes,
                FrameEvent::Piece { bytes, piece } => {
                    counted += bytes;
                    found = Some(piece);
                }
                other => panic!("{other:?}"),
            }
        }
        let piece = found.expect("the piece is complete");
        assert_eq!(piece.payload.records, expected);
        assert_eq!(piece.payload.omitted_bytes, total - sent.len() as u64);
        assert_eq!(counted, total, "credit is spent for the complete batch");
        let mut other = PieceReader::new(ReceivePool::new(1 << 20), Some(cached_rows(cached / 2)));
        other.read(Frame::Schema(expected.schema())).unwrap();
        other.read(Frame::Piece(whole_header)).unwrap();
        let whole = other.read(Frame::Chunk { offset: 0, data }).unwrap();
        assert!(matches!(whole, FrameEvent::Piece { .. }), "workers may send whole pieces");
    }
}

#[test]
fn a_header_with_other_numbers_of_rows_is_rejected() {
    let is_accepted =
        |header: PieceHeader, records: &RecordBatch| reader(records).read(Frame::Piece(header)).is_ok();
    let (valid, _, records) = piece(5);
    assert!(is_accepted(valid.clone(), &records));
    assert!(!is_accepted(PieceHeader { indivisible: false, ..valid.clone() }, &records));
    assert!(!is_accepted(PieceHeader { rows: 4, ..valid.clone() }, &records));
    let kept =
        |kept: Vec<u32>| PieceHeader { rows: kept.len() as u32, kept_offsets: Some(kept), ..valid.clone() };
    assert!(is_accepted(kept(vec![10, 12, 14]), &records), "operators have removed two rows");
    assert!(!is_accepted(kept(vec![12, 11]), &records), "not in order");
    assert!(!is_accepted(kept(vec![15]), &records), "outside of the piece");
    assert!(!is_accepted(kept(Vec::new()), &records), "a batch without rows has no record");
    let mut divided = valid;
    divided.batch.rows = 5;
    assert!(!is_accepted(divided, &records));
}
