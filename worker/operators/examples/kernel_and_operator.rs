//! Measures `random_resized_crop` against the bare kernel on the same images, on one thread.
//!
//! `kernel_and_operator FOLDER [ROUNDS]`: reads every file of FOLDER into memory; prints images per second of the
//! kernel and of the operator, alternating, so that a change of the machine's speed hits both.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::BinaryViewArray;
use bytes::{Bytes, BytesMut};
use feedline_core::pipeline::Pipeline;
use feedline_core::schema::{ColumnType, Schema};
use feedline_operators::{Chunk, Column, Slots, build_operators, kernel};

const CHUNK_ROWS: usize = 16;
const SIZE: u32 = 224;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, rounds @ ..] = arguments.as_slice() else {
        return Err("usage: kernel_and_operator FOLDER [ROUNDS]".into());
    };
    let rounds: usize = rounds.first().map_or(Ok(5), |text| text.parse())?;
    let mut paths: Vec<_> = std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    paths.sort();
    let files = paths.iter().map(|path| std::fs::read(path).map(Bytes::from)).collect::<Result<Vec<_>, _>>()?;
    let pipeline: Pipeline = serde_json::from_value(serde_json::json!({
        "name": "measure", "seed": 7,
        "source": {"url": "files", "format": "files"},
        "operators": [{"random_resized_crop": {"column": "image", "size": [SIZE, SIZE]}}, {"batch": {"size": 16}}],
    }))?;
    let schema = Schema::new([("image", ColumnType::Binary)]);
    let operators = build_operators(&pipeline, &schema, &|path| Err(path.to_owned()))?;
    let chunks: Vec<BinaryViewArray> = files
        .chunks(CHUNK_ROWS)
        .map(|files| BinaryViewArray::from_iter_values(files.iter().map(|file| file.as_ref())))
        .collect();
    let mut storage = BytesMut::zeroed(CHUNK_ROWS * (SIZE * SIZE * 3) as usize);
    for round in 0..rounds {
        let kernel = kernel::crop_resize_loop(&files, 7, [SIZE, SIZE]);
        let start = Instant::now();
        let mut row_id = 0;
        for chunk in &chunks {
            let rows = arrow::array::Array::len(chunk);
            let ids = (row_id..row_id + rows as u64).collect();
            row_id += rows as u64;
            let columns = vec![("image".to_owned(), Column::Arrow(Arc::new(chunk.clone())))];
            let mut chunk = Chunk::new(columns, ids, vec![0; rows]);
            let mut slots = Slots::new();
            slots.put(0, "image", std::mem::take(&mut storage));
            operators[0].operator.apply(&mut chunk, &mut slots)?;
            if let Some((_, Column::Tensor(tensor))) = chunk.columns.pop() {
                storage = tensor.data;
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        let (bare, operator) = (kernel.images as f64 / kernel.seconds, row_id as f64 / seconds);
        println!("round {round}: kernel {bare:.0} images/s, operator {operator:.0} images/s, {:.1} %", 100.0 * operator / bare);
    }
    Ok(())
}
