//! Tests of LitData. `make_litdata.py` wrote `testdata/litdata` with LitData, and the items that the library reads.

use feedline_data::pipeline::Format;
use proptest::prelude::*;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::Dataset;
use crate::testing::{
    JsonRows, copied, dataset, expected_json, hex, png_pixels, read_json, testdata, unhex, write_settled,
};

fn litdata(folder: &str) -> Dataset {
    dataset(&[folder], Format::LitData, &[])
}

async fn committed(name: &str) -> JsonRows {
    read_json(&litdata(testdata(&format!("litdata/{name}")).to_str().unwrap())).await.unwrap()
}

async fn error_of(folder: &TempDir) -> String {
    read_json(&litdata(folder.path().to_str().unwrap()))
        .await
        .err()
        .expect("the dataset is damaged")
        .to_string()
}

/// Replaces images by what the script wrote about them, and JSON text by its values.
fn comparable(column: &str, value: &Value) -> Value {
    let digest = |image: &Value| json!(hex(&Sha256::digest(unhex(image.as_str().unwrap()))));
    match column {
        "jpeg" | "jpeg_file" | "image" | "image_array" | "image_path" => digest(value),
        "jpeg_array" | "jpeg_files" => value.as_array().unwrap().iter().map(digest).collect(),
        "pil" | "pil_array" => json!(hex(&png_pixels(&unhex(value.as_str().unwrap())))),
        "nested.list" => serde_json::from_str(value.as_str().unwrap()).unwrap(),
        _ => value.clone(),
    }
}

#[tokio::test]
async fn every_serializer_is_read_as_the_library_reads_it() {
    let found = committed("every").await;
    assert_eq!(found.failures, []);
    let expected = expected_json("litdata/expected.json")["every"].as_array().unwrap().clone();
    assert_eq!(found.rows.len(), expected.len());
    for (found, expected) in found.rows.iter().zip(&expected) {
        for (column, value) in found.as_object().unwrap() {
            let expected = match column.as_str() {
                "nested.list" => &json!([expected["nested.list.0"], expected["nested.list.1"]]),
                column => &expected[column],
            };
            assert_eq!(&comparable(column, value), expected, "{column}");
        }
        assert_eq!(found.as_object().unwrap().len(), 36);
    }
    for column in [
        "tensor: list of list of list of uint8",
        "scalar: float64",
        "flags: list of bool",
        "numpy_flat: list of int16",
        "nested.list: text",
        "text_file: text",
        "image_array: bytes",
        "jpeg_files: list of bytes",
        "pil_array: bytes",
        "file: bytes",
        "video_path: bytes",
        "audio: bytes",
        "tifffile: bytes",
        "nifti_path: bytes",
        "mesh: bytes",
        "pdf: bytes",
        "array: list of list of int16",
        "array_file: list of int32",
    ] {
        assert!(found.columns.contains(column), "{column} in {}", found.columns);
    }
}

#[tokio::test]
async fn every_storage_has_the_items_of_the_library() {
    let expected = expected_json("litdata/expected.json");
    for name in ["plain", "chunk", "batch", "sample"] {
        let found = committed(name).await;
        assert_eq!((Value::Array(found.rows), found.failures), (expected["small"].clone(), vec![]), "{name}");
        assert_eq!(found.columns, "0: int64, 1: text, 2: list of list of int16", "{name}");
    }
    for name in ["tokens", "arrow", "tiff"] {
        let found = committed(name).await;
        assert_eq!((Value::Array(found.rows), found.failures), (expected[name].clone(), vec![]), "{name}");
    }
    // LitData replaces compressed chunks by decompressed ones.
    let folder = copied("litdata/chunk");
    for number in 0..2 {
        let packed = folder.path().join(format!("chunk-0-{number}.zstd.bin"));
        let plain = zstd::decode_all(std::fs::File::open(&packed).unwrap()).unwrap();
        std::fs::write(folder.path().join(format!("chunk-0-{number}.bin")), plain).unwrap();
        std::fs::remove_file(packed).unwrap();
    }
    let found = read_json(&litdata(folder.path().to_str().unwrap())).await.unwrap();
    assert_eq!(Value::Array(found.rows), expected["small"]);
}

#[tokio::test]
async fn pickled_values_are_rejected_unless_they_are_not_selected() {
    let folder = testdata("litdata/pickled");
    let folder = folder.to_str().unwrap();
    let error = read_json(&litdata(folder)).await.err().unwrap().to_string();
    assert!(error.contains("column `object`") && error.contains("never unpickles"), "{error}");
    let found = read_json(&dataset(&[folder], Format::LitData, &[("id", "id")])).await.unwrap();
    assert_eq!(found.rows, [json!({ "id": 1 })]);
}

#[tokio::test]
async fn truncation_at_every_byte_is_detected() {
    for name in ["plain", "chunk", "batch", "sample", "tokens", "arrow"] {
        let folder = copied(&format!("litdata/{name}"));
        let extension = if name == "chunk" { "zstd.bin" } else { "bin" };
        let file = folder.path().join(format!("chunk-0-1.{extension}"));
        let whole = std::fs::read(&file).unwrap();
        for length in 0..whole.len() {
            write_settled(&file, &whole[..length]);
            let error = error_of(&folder).await;
            assert!(
                error.contains(&format!("chunk-0-1.{extension}`")) && !error.contains('\n'),
                "{name}: {error}"
            );
        }
    }
}

#[tokio::test]
async fn an_index_that_does_not_match_its_chunks_is_one_sentence() {
    for name in ["plain", "chunk", "batch", "sample", "tokens", "arrow"] {
        let folder = copied(&format!("litdata/{name}"));
        let file = folder.path().join("index.json");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replace("\"chunk_size\": 1", "\"chunk_size\": 9")).unwrap();
        let error = error_of(&folder).await;
        assert!(error.contains("the index expects") && !error.contains('\n'), "{name}: {error}");
        std::fs::write(&file, text.replace("chunk-0-1", "chunk-0-7")).unwrap();
        assert!(error_of(&folder).await.contains("does not exist: copy the whole directory"));
    }
}

/// A directory with one chunk of items with an integer and bytes, as LitData writes it.
fn directory(sizes: &[usize], is_compressed: bool) -> TempDir {
    let item = |(row, size): (usize, &usize)| {
        let sizes = [8_u32, *size as u32].map(u32::to_le_bytes).concat();
        let item = [&sizes[..], &(row as i64).to_le_bytes()[..], &vec![row as u8; *size]].concat();
        if is_compressed { zstd::encode_all(&item[..], 1).unwrap() } else { item }
    };
    let items: Vec<Vec<u8>> = sizes.iter().enumerate().map(item).collect();
    let mut end = 4 * (items.len() + 2);
    let mut chunk = (items.len() as u32).to_le_bytes().to_vec();
    for length in std::iter::once(0).chain(items.iter().map(Vec::len)) {
        end += length;
        chunk.extend((end as u32).to_le_bytes());
    }
    chunk.extend(items.concat());
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.bin"), &chunk).unwrap();
    let index = json!({
        "chunks": [{ "filename": "a.bin", "chunk_size": items.len(), "chunk_bytes": chunk.len() }],
        "config": {
            "compression": if is_compressed { Some("zstd") } else { None },
            "compression_level": if is_compressed { Some("sample") } else { None },
            "data_format": ["int", "bytes"],
        },
    });
    std::fs::write(folder.path().join("index.json"), index.to_string()).unwrap();
    folder
}

#[tokio::test]
async fn a_bomb_stops_at_the_size_in_the_index() {
    // A chunk that is compressed as a whole: 256 MiB of zeros.
    let folder = copied("litdata/chunk");
    let zeros = zstd::encode_all(std::io::Read::take(std::io::repeat(0), 256 << 20), 1).unwrap();
    std::fs::write(folder.path().join("chunk-0-0.zstd.bin"), zeros).unwrap();
    let error = error_of(&folder).await;
    assert!(error.contains("has more than 10") && error.contains("after decompression"), "{error}");

    // Items that are compressed one by one: the first is small, so that it does not make the blocks smaller.
    let sizes = [4, 70 << 20];
    let folder = directory(&sizes, true);
    let error = error_of(&folder).await;
    assert!(error.contains("more than 67") && error.contains("after decompression"), "{error}");
}

#[tokio::test]
async fn items_that_compress_well_have_small_blocks() {
    let folder = directory(&[1 << 20; 70], true);
    let dataset = litdata(folder.path().to_str().unwrap());
    let shard = dataset.list().await.unwrap().remove(0);
    let index = dataset.index_shard(&shard).await.unwrap().index;
    assert!(index.blocks.iter().all(|block| block.rows <= 2), "{:?}", index.blocks);
    assert_eq!(read_json(&dataset).await.unwrap().rows.len(), 70);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn items_are_those_of_a_plain_reader(
        sizes in prop::collection::vec(0_usize..30_000, 1..30),
        is_small: bool,
        is_compressed: bool,
    ) {
        let sizes: Vec<usize> = sizes.iter().map(|size| if is_small { size % 100 } else { *size }).collect();
        let folder = directory(&sizes, is_compressed);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let found = runtime.block_on(read_json(&litdata(folder.path().to_str().unwrap()))).unwrap();
        prop_assert_eq!(found.rows.len(), sizes.len());
        for (row, (found, size)) in found.rows.iter().zip(&sizes).enumerate() {
            prop_assert_eq!(found, &json!({ "0": row, "1": format!("{row:02x}").repeat(*size) }));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn damage_never_panics(flips in prop::collection::vec((0_usize..3_000, any::<u8>()), 1..6), name in 0_usize..6) {
        let name = ["every", "chunk", "batch", "sample", "tokens", "arrow"][name];
        let folder = copied(&format!("litdata/{name}"));
        let file = if name == "chunk" { "chunk-0-0.zstd.bin" } else { "chunk-0-0.bin" };
        let file = folder.path().join(file);
        let mut bytes = std::fs::read(&file).unwrap();
        let length = bytes.len();
        flips.iter().for_each(|(at, mask)| bytes[at % length] ^= mask);
        std::fs::write(file, bytes).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        drop(runtime.block_on(read_json(&litdata(folder.path().to_str().unwrap()))));
    }
}
