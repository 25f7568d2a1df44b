//! Writes the centre crops of files as raw bytes, for a comparison with Pillow.
//!
//! `center_crop_raw LIST OUTPUT [SIZE [RESIZE]]`: LIST has one path per line; OUTPUT receives SIZE x SIZE x 3 bytes
//! (RGB8) per file, zeros for a file that failed. SIZE is 224 and RESIZE 256 by default.

use std::error::Error;
use std::sync::Arc;

use arrow::array::BinaryViewArray;
use bytes::Bytes;
use feedline_core::pipeline::Pipeline;
use feedline_core::schema::{ColumnType, Schema};
use feedline_operators::{Chunk, Column, Slots, build_operators};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [list, output, numbers @ ..] = arguments.as_slice() else {
        return Err("usage: center_crop_raw LIST OUTPUT [SIZE [RESIZE]]".into());
    };
    let number = |place: usize, default: u32| numbers.get(place).map_or(Ok(default), |text| text.parse());
    let (size, resize) = (number(0, 224)?, number(1, 256)?);
    let pipeline: Pipeline = serde_json::from_value(serde_json::json!({
        "name": "center-crop-raw",
        "source": {"url": "files", "format": "files"},
        "operators": [
            {"center_crop": {"column": "image", "size": [size, size], "resize": resize}},
            {"batch": {"size": 1}},
        ],
    }))?;
    let schema = Schema::new([("image", ColumnType::Binary)]);
    let operators = build_operators(&pipeline, &schema, &|path| {
        std::fs::read(path).map(Bytes::from).map_err(|e| e.to_string())
    })?;
    let mut crops = Vec::new();
    for (row, path) in std::fs::read_to_string(list)?.lines().enumerate() {
        let encoded = BinaryViewArray::from(vec![std::fs::read(path)?.as_slice()]);
        let columns = vec![("image".to_owned(), Column::Arrow(Arc::new(encoded)))];
        let mut chunk = Chunk::new(columns, vec![row as u64], vec![0]);
        operators[0].operator.apply(&mut chunk, &mut Slots::new())?;
        for (_, reason) in &chunk.failures {
            eprintln!("{path}: {reason}");
        }
        if let Some(Column::Tensor(tensor)) = chunk.column("image") {
            crops.extend_from_slice(tensor.row(0));
        }
    }
    std::fs::write(output, crops)?;
    Ok(())
}
