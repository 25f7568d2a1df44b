//! Measures `random_resized_crop` against the bare kernel on the same images, on one thread.
//!
//! `kernel_and_operator FOLDER [ROUNDS]`: reads every file of FOLDER into memory; prints images per second of the
//! kernel and of the operator per second of this thread's CPU time, alternating by 16 images, so that neither other
//! processes nor a change of the machine's speed favours one.

use std::error::Error;
use std::sync::Arc;

use arrow::array::BinaryViewArray;
use bytes::{Bytes, BytesMut};
use feedline_core::pipeline::Pipeline;
use feedline_core::schema::{ColumnType, Schema};
use feedline_operators::{Chunk, Column, Slots, build_operators, kernel};
use rustix::time::{ClockId, clock_gettime};

const CHUNK_ROWS: usize = 16;
const SIZE: u32 = 224;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, rounds @ ..] = arguments.as_slice() else {
        return Err("usage: kernel_and_operator FOLDER [ROUNDS]".into());
    };
    let rounds: usize = rounds.first().map_or(Ok(5), |text| text.parse())?;
    let mut paths: Vec<_> =
        std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    paths.sort();
    let files =
        paths.iter().map(|path| std::fs::read(path).map(Bytes::from)).collect::<Result<Vec<_>, _>>()?;
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
        let (mut images, mut kernel_seconds, mut operator_seconds) = (0, 0.0, 0.0);
        for (files, chunk) in files.chunks(CHUNK_ROWS).zip(&chunks) {
            let start = cpu_seconds();
            images += kernel::crop_resize_loop(files, 7, [SIZE, SIZE]).images;
            let between = cpu_seconds();
            let columns = vec![("image".to_owned(), Column::Arrow(Arc::new(chunk.clone())))];
            // The row ids of the kernel's loop, so that both cut the same crops.
            let ids = (0..files.len() as u64).collect();
            let mut chunk = Chunk::new(columns, ids, vec![0; files.len()]);
            let mut slots = Slots::new();
            slots.put(0, "image", std::mem::take(&mut storage));
            operators[0].operator.apply(&mut chunk, &mut slots)?;
            if let Some((_, Column::Tensor(tensor))) = chunk.columns.pop() {
                storage = tensor.data;
            }
            kernel_seconds += between - start;
            operator_seconds += cpu_seconds() - between;
        }
        let (bare, operator) = (images as f64 / kernel_seconds, images as f64 / operator_seconds);
        let share = 100.0 * operator / bare;
        println!("round {round}: kernel {bare:.0} images/s, operator {operator:.0} images/s, {share:.1} %");
    }
    Ok(())
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
