//! Tests of NumPy files. `testdata` has files that NumPy 2.4 wrote, each named after its special property.

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Float32Type, Int64Type};
use feedline_data::pipeline::Format;
use feedline_data::schema::{ColumnType, ScalarType};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use proptest::prelude::*;

use super::*;
use crate::read_memory::ReadMemory;
use crate::testing::{Fixture, fixture, lines};
use crate::version::version_of;

fn shard(bytes: &[u8]) -> Fixture {
    fixture(bytes, Format::Npy, &[])
}

async fn refused(bytes: &[u8]) -> String {
    shard(bytes).index().await.unwrap_err().to_string()
}

/// A file as NumPy writes it, in C order.
fn npy(version: u8, descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    npy_of_order(version, descr, "False", shape, data)
}

fn npy_of_order(version: u8, descr: &str, is_fortran: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let mut header =
        format!("{{'descr': '{descr}', 'fortran_order': {is_fortran}, 'shape': {shape}, }}").into_bytes();
    header.resize(header.len().div_ceil(64) * 64, b' ');
    let length = header.len() as u32;
    let length = length.to_le_bytes();
    let length = if version == 1 { &length[..2] } else { &length[..] };
    [b"\x93NUMPY".as_slice(), &[version, 0], length, &header, data].concat()
}

#[tokio::test]
async fn files_of_every_format_version_are_read() {
    let numbers: [&[u8]; 3] = [
        include_bytes!("testdata/int64_v1.npy"),
        include_bytes!("testdata/int64_v2.npy"),
        include_bytes!("testdata/int64_v3.npy"),
    ];
    for bytes in numbers {
        let all = shard(bytes).read_all().await;
        assert_eq!(
            (all.columns(), all.rows()),
            ("data: int64".to_owned(), ["7", "-8", "9"].map(str::to_owned).into())
        );
    }
    let all = shard(include_bytes!("testdata/float32.npy")).read_all().await;
    let tensor = ColumnType::Tensor { scalar: ScalarType::Float32, shape: vec![2, 3] };
    assert_eq!(all.index.schema.as_ref().unwrap().fields[0].column_type, tensor);
    assert_eq!(all.rows()[5], "[7.5,7.75,8,8.25,8.5,8.75]");
    let all = shard(include_bytes!("testdata/bool.npy")).read_all().await;
    assert_eq!(all.rows(), ["[true,false,true]", "[false,false,true]"]);
}

#[tokio::test]
async fn big_endian_and_fortran_files_of_numpy_are_read() {
    let all = shard(include_bytes!("testdata/big_endian.npy")).read_all().await;
    assert_eq!((all.columns().as_str(), all.rows().join(" ").as_str()), ("data: float64", "0 1 2"));
    let all = shard(include_bytes!("testdata/fortran.npy")).read_all().await;
    assert_eq!(all.columns(), "data: float64 tensor [3]");
    assert_eq!(all.rows(), ["[0,1,2]", "[3,4,5]"]);
}

#[tokio::test]
async fn errors_of_other_arrays_name_the_file_and_the_fix() {
    let files: [(&[u8], &str); 4] = [
        (
            include_bytes!("testdata/object.npy"),
            "dtype of the array is object, and Feedline never unpickles objects: convert the array before",
        ),
        (
            include_bytes!("testdata/complex.npy"),
            "dtype `<c8` of the array is not a boolean, integer or float: convert the array",
        ),
        (include_bytes!("testdata/structured.npy"), "is not a boolean, integer or float: convert the array"),
        (
            include_bytes!("testdata/zero_d.npy"),
            "zero-dimensional and has no rows: save an array with at least one axis",
        ),
    ];
    for (bytes, reason) in files {
        let error = refused(bytes).await;
        assert!(error.contains("/shard`") && error.contains(reason), "{error}");
    }
    let error = refused(&npy(1, "<f4", "(2, 0)", b"")).await;
    assert!(error.contains("unsupported row shape [0]"), "{error}");
    let error = refused(b"\x93NUMPY\x04\x00\x00\x00").await;
    assert!(error.contains("version 4.0, but this release reads versions 1.0, 2.0 and 3.0"), "{error}");
    assert!(refused(b"a line of text").await.contains("not a NumPy file: check `source.format`"));
    let odd = npy(1, "<i8", "(1,)", &[0; 8]);
    let text = String::from_utf8_lossy(&odd[10..]).replace("'shape'", "'other'");
    assert!(refused(&[&odd[..10], text.as_bytes()].concat()).await.contains("the header is invalid"));
}

#[tokio::test]
async fn truncation_at_every_byte_is_detected_and_so_is_a_second_array() {
    let bytes = include_bytes!("testdata/float32.npy");
    for length in 0..bytes.len() {
        let error = refused(&bytes[..length]).await;
        let is_cut = ["truncated", "not a NumPy file"].iter().any(|reason| error.contains(reason));
        assert!(is_cut && error.contains("/shard`"), "{length}: {error}");
    }
    assert!(refused(&[bytes, bytes.as_slice()].concat()).await.contains("more than one array"));
    let empty = shard(&npy(2, "<i4", "(0, 5)", b"")).read_all().await;
    assert_eq!((empty.rows().len(), empty.index.schema), (0, None));
}

#[tokio::test]
async fn a_read_requests_the_header_and_the_rows_that_it_needs() {
    let (rows, row_bytes) = (1_000_u64, 8_192_u64);
    let data: Vec<u8> = (0..rows * row_bytes / 8).flat_map(|value| (value as i64).to_le_bytes()).collect();
    let (store, path) = (InMemory::new(), Path::from("x"));
    store.put(&path, npy(3, "<i8", "(1000, 1024)", &data).into()).await.unwrap();
    let meta = store.head(&path).await.unwrap();
    let shard = ShardRef {
        url: "mem://x".to_owned(),
        size_bytes: meta.size,
        version: version_of(&meta),
        ..ShardRef::default()
    };
    let store: Arc<dyn ObjectStore> = Arc::new(store);
    let object = |shard: &ShardRef| Arc::new(Object::new(Arc::clone(&store), path.clone(), shard.clone()));
    let memory = ShardCacheMemory::new(&ReadMemory::default());
    let (reader, selection) = (NpyReader::new(&memory), Selection::default());
    let indexing = object(&shard);
    let index = reader.index(&indexing, &selection).await.unwrap();
    assert_eq!(index.rows(), rows);
    assert!(indexing.traffic().0 < 5_000, "{:?}", indexing.traffic());
    let reading = object(&shard);
    let block = &index.blocks[3];
    let schema = index.schema.as_ref().unwrap();
    let read = BlockRead { shard: &shard, block, index: None, schema, rows: Some(&[0, 100]) };
    let decoded = reader.read(&reading, &read, &selection).await.unwrap();
    let (bytes, requests, _) = reading.traffic();
    assert_eq!((bytes, requests), (2 * row_bytes, 2));
    let first = (block.offset - index.blocks[0].offset) as i64 / 8;
    let list = decoded.batch.column(0).as_fixed_size_list();
    let values = |row| list.value(row).as_primitive::<Int64Type>().value(1);
    assert_eq!((values(0), values(1)), (first + 1, first + 100 * 1024 + 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn rows_are_those_of_a_plain_reader(
        rows in 1_usize..40,
        shape in prop::collection::vec(1_usize..9, 0..4),
        version in 1_u8..=3,
        picks in prop::collection::btree_set(0_u32..4096, 1..9),
        is_wide: bool,
    ) {
        // Rows from 4 KiB on can be read one by one.
        let shape = if is_wide { [vec![1_100], shape].concat() } else { shape };
        let elements: usize = shape.iter().product();
        let values: Vec<f32> = (0..rows * elements).map(|value| value as f32 * 0.5).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let axes: String = shape.iter().map(|extent| format!("{extent}, ")).collect();
        let file = npy(version, "<f4", &format!("({rows}, {axes})"), &bytes);
        let expected: Vec<&[f32]> = values.chunks(elements).collect();
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let fixture = shard(&file);
            let all = fixture.read_all().await;
            let found: Vec<String> = all.rows();
            prop_assert_eq!(found.len(), rows);
            let shown: Vec<String> = expected.iter().map(|row| text(row, shape.is_empty())).collect();
            prop_assert_eq!(found, shown.clone());
            let indexed = fixture.index().await.unwrap();
            let mut first = 0;
            for (at, block) in indexed.index.blocks.iter().enumerate() {
                let chosen: Vec<u32> = picks.iter().copied().filter(|&row| row < block.rows).collect();
                if !block.row_bytes.is_empty() && !chosen.is_empty() {
                    let read = fixture.read(&indexed, at, Some(&chosen)).await.unwrap();
                    let expected: Vec<String> =
                        chosen.iter().map(|&row| shown[first + row as usize].clone()).collect();
                    prop_assert_eq!(lines(&read.batch), expected);
                }
                first += block.rows as usize;
            }
            Ok(())
        })?;
    }
}

fn text(row: &[f32], is_scalar: bool) -> String {
    let values: Vec<String> = row.iter().map(f32::to_string).collect();
    if is_scalar { values.concat() } else { format!("[{}]", values.join(",")) }
}

#[tokio::test]
async fn values_of_every_dtype_are_preserved() {
    for (descr, bytes) in [
        ("|b1", 1),
        ("|i1", 1),
        ("|u1", 1),
        ("<i2", 2),
        ("<u2", 2),
        ("<f2", 2),
        ("<i4", 4),
        ("<u4", 4),
        ("<f4", 4),
        ("<i8", 8),
        ("<u8", 8),
        ("<f8", 8),
    ] {
        let data: Vec<u8> =
            (0..6 * bytes).map(|at| if descr == "|b1" { at as u8 % 2 } else { at as u8 }).collect();
        let fixture = shard(&npy(1, descr, "(3, 2)", &data));
        let indexed = fixture.index().await.unwrap();
        let read = fixture.read(&indexed, 0, None).await.unwrap();
        let values = read.batch.column(0).as_fixed_size_list().values().to_data();
        if descr == "|b1" {
            assert_eq!(lines(&read.batch), ["[false,true]"; 3]);
        } else {
            assert_eq!(values.buffers()[0].as_slice(), data, "{descr}");
        }
    }
    let fixture = shard(&npy(1, "<f4", "(2,)", &[0, 0, 128, 63, 0, 0, 0, 64]));
    let indexed = fixture.index().await.unwrap();
    let read = fixture.read(&indexed, 0, None).await.unwrap();
    assert_eq!(read.batch.column(0).as_primitive::<Float32Type>().values(), &[1.0, 2.0]);
}

/// Returns the elements of all blocks in the byte order of this machine, and the number of blocks.
async fn elements(file: &[u8]) -> (Vec<u8>, usize) {
    let fixture = shard(file);
    let indexed = fixture.index().await.unwrap();
    let mut bytes = Vec::new();
    for at in 0..indexed.index.blocks.len() {
        let read = fixture.read(&indexed, at, None).await.unwrap();
        let values = read.batch.column(0).as_fixed_size_list().values().to_data();
        bytes.extend_from_slice(values.buffers()[0].as_slice());
    }
    (bytes, indexed.index.blocks.len())
}

/// Converts the elements of an array from C order to Fortran order.
fn in_fortran_order(rows: usize, shape: &[usize], width: usize, c_order: &[u8]) -> Vec<u8> {
    let count: usize = shape.iter().product();
    let mut fortran_order = vec![0; c_order.len()];
    for element in 0..count {
        let (mut rest, mut stride, mut index) = (element, count, 0);
        for &extent in shape.iter().rev() {
            stride /= extent;
            index += rest % extent * stride;
            rest /= extent;
        }
        for row in 0..rows {
            let (from, to) = ((row * count + element) * width, (index * rows + row) * width);
            fortran_order[to..to + width].copy_from_slice(&c_order[from..from + width]);
        }
    }
    fortran_order
}

#[test]
fn the_test_converts_to_the_order_of_numpy() {
    // `np.asfortranarray(np.arange(12, dtype="u1").reshape(2, 2, 3)).ravel(order="K")`
    let c_order: Vec<u8> = (0..12).collect();
    assert_eq!(in_fortran_order(2, &[2, 3], 1, &c_order), [0, 6, 3, 9, 1, 7, 4, 10, 2, 8, 5, 11]);
}

#[tokio::test]
async fn an_array_in_fortran_order_with_one_row_has_the_values_of_c_order() {
    // `np.asfortranarray(np.arange(6, dtype="u1").reshape(1, 2, 3)).ravel(order="K")`
    let file = npy_of_order(1, "|u1", "True", "(1, 2, 3)", &[0, 3, 1, 4, 2, 5]);
    assert_eq!(elements(&file).await, (vec![0, 1, 2, 3, 4, 5], 1));
    for (rows, shape) in [(1, vec![3, 2]), (1, vec![4, 1, 5]), (1, vec![1, 3, 4, 2]), (3, vec![1, 2, 2])] {
        let c_order: Vec<u8> = (0..rows * shape.iter().product::<usize>()).map(|at| at as u8).collect();
        let axes: String = shape.iter().map(|extent| format!("{extent}, ")).collect();
        let data = in_fortran_order(rows, &shape, 1, &c_order);
        let file = npy_of_order(1, "|u1", "True", &format!("({rows}, {axes})"), &data);
        assert_eq!(elements(&file).await.0, c_order, "{rows} {shape:?}");
    }
}

#[test]
fn only_arrays_with_several_axes_of_several_elements_depend_on_the_order() {
    for (shape, elements, is_fortran) in [
        ("(6,)", 6, false),
        ("(6, 1)", 6, false),
        ("(1, 6)", 6, false),
        ("(1, 1, 6, 1)", 6, false),
        ("(1, 1, 1)", 1, false),
        ("(0, 2, 3)", 0, false),
        ("(2, 3)", 6, true),
        ("(1, 2, 3)", 6, true),
        ("(2, 1, 3)", 6, true),
        ("(2, 3, 1)", 6, true),
    ] {
        let file = npy_of_order(1, "|u1", "True", shape, &vec![0; elements]);
        let parsed = NpyHeader::parse(&file, file.len() as u64).unwrap();
        assert_eq!(parsed.is_fortran, is_fortran, "{shape}");
    }
}

proptest! {
    // Each array has about 20 MB, because a smaller one is a single block.
    #![proptest_config(ProptestConfig::with_cases(2))]
    #[test]
    fn blocks_of_a_large_array_in_fortran_order_are_those_of_c_order(
        (descr, width) in prop::sample::select(vec![("|u1", 1_usize), ("<i2", 2), (">i2", 2), ("<f4", 4), (">f8", 8)]),
        shape in prop::sample::select(vec![vec![137_usize], vec![17, 8], vec![2, 9, 8], vec![4, 1, 5, 7]]),
        more_rows in 1_usize..4_000,
        seed: u32,
    ) {
        // A block has 128 KiB per element of a row.
        let rows = (128 << 10) / width + more_rows;
        let count = rows * shape.iter().product::<usize>();
        let mut state = u64::from(seed);
        let mut next_byte = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        let c_order: Vec<u8> = (0..count * width).map(|_| next_byte()).collect();
        let axes: String = shape.iter().map(|extent| format!("{extent}, ")).collect();
        let text = format!("({rows}, {axes})");
        let fortran_order = in_fortran_order(rows, &shape, width, &c_order);
        let c_file = npy(1, descr, &text, &c_order);
        let fortran_file = npy_of_order(1, descr, "True", &text, &fortran_order);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (expected, _) = runtime.block_on(elements(&c_file));
        let (found, blocks) = runtime.block_on(elements(&fortran_file));
        prop_assert_eq!(blocks, 2);
        prop_assert!(found == expected, "the elements differ");
        prop_assert!(expected.len() == c_order.len());
    }
}
