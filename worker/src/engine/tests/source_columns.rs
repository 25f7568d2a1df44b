//! The columns of each format, as files with the columns `id` and `x`. The values are those of [`column`].

use arrow::array::{Array, ArrayRef, Int64Array, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float32Type, Float64Type, TimeUnit};
use feedline_data::schema::{ColumnType, ScalarType, Schema};
use parquet::arrow::ArrowWriter;

use super::columns::{JPEG, ROWS, column, column_types, file, rows};
use super::*;

/// The reflected polynomials of CRC-32 and CRC-32C.
const ZIP_POLYNOMIAL: u32 = 0xedb8_8320;
const TFRECORD_POLYNOMIAL: u32 = 0x82f6_3b78;
const TAR_BLOCK_BYTES: usize = 512;

/// A file with the column `x`, and usually the column `id` with the numbers of the rows.
pub(super) struct SourceFile {
    /// The format in a pipeline file. The features may follow.
    pub(super) format: String,
    pub(super) data: Vec<u8>,
    pub(super) schema: Schema,
    pub(super) has_id: bool,
}

/// A column that a format has.
pub(super) struct SourceColumn {
    pub(super) column_type: ColumnType,
    /// The values, whose Arrow type may be narrower.
    pub(super) x: ArrayRef,
    pub(super) file: SourceFile,
    /// The values with nulls, for formats that store nulls.
    pub(super) with_nulls: Option<(ArrayRef, SourceFile)>,
}

fn source_file(format: &str, column_type: &ColumnType, data: Vec<u8>) -> SourceFile {
    let id = ("id", ColumnType::Scalar(ScalarType::Int64));
    let schema = Schema::new([id, ("x", column_type.clone())]);
    SourceFile { format: format.to_owned(), data, schema, has_id: true }
}

/// The column of this type with and without nulls. `write` returns a file with a column.
fn nullable_column(
    format: &str,
    column_type: ColumnType,
    write: impl Fn(&ColumnType, &ArrayRef) -> Vec<u8>,
) -> SourceColumn {
    let (x, with_nulls) = (column(&column_type, false), column(&column_type, true));
    let file = |x: &ArrayRef| source_file(format, &column_type, write(&column_type, x));
    let (complete, incomplete) = (file(&x), file(&with_nulls));
    SourceColumn { column_type, x, file: complete, with_nulls: Some((with_nulls, incomplete)) }
}

fn complete_column(column_type: ColumnType, x: ArrayRef, file: SourceFile) -> SourceColumn {
    SourceColumn { column_type, x, file, with_nulls: None }
}

fn list(inner: ColumnType) -> ColumnType {
    ColumnType::List(Box::new(inner))
}

fn scalar(scalar: ScalarType) -> ColumnType {
    ColumnType::Scalar(scalar)
}

fn tensor(scalar: ScalarType, shape: &[u32]) -> ColumnType {
    ColumnType::Tensor { scalar, shape: shape.to_vec() }
}

/// The columns of Arrow files.
pub(super) fn arrow_columns() -> Vec<SourceColumn> {
    column_types().into_iter().map(|column_type| nullable_column("arrow", column_type, file)).collect()
}

/// The columns of Parquet files: numbers, vectors, images, text, bytes, lists and timestamps.
pub(super) fn parquet_columns() -> Vec<SourceColumn> {
    let mut types = vec![ColumnType::Utf8, ColumnType::Binary, list(ColumnType::Utf8)];
    for of in ScalarType::ALL {
        types.extend([scalar(of), tensor(of, &[3])]);
    }
    types.extend([
        list(scalar(ScalarType::Bool)),
        list(scalar(ScalarType::Int64)),
        list(scalar(ScalarType::Float32)),
        list(list(scalar(ScalarType::Int32))),
        list(ColumnType::Binary),
        tensor(ScalarType::UInt8, &[2, 3, 3]),
        tensor(ScalarType::Float32, &[2, 3, 3]),
    ]);
    let mut columns: Vec<SourceColumn> =
        types.into_iter().map(|of| nullable_column("parquet", of, parquet_file)).collect();
    // Timestamps are numbers of microseconds.
    columns.push(nullable_column("parquet", scalar(ScalarType::Int64), |column_type, x| {
        let timestamps = cast(x, &DataType::Timestamp(TimeUnit::Microsecond, None)).expect("integers");
        parquet_file(column_type, &timestamps)
    }));
    columns
}

fn parquet_file(column_type: &ColumnType, x: &ArrayRef) -> Vec<u8> {
    let batch = rows(column_type, x);
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), None).expect("a supported type");
    writer.write(&batch).expect("the batch is written");
    writer.close().expect("the footer is written");
    bytes
}

/// The columns of JSON lines: numbers, booleans, text and lists.
pub(super) fn json_columns() -> Vec<SourceColumn> {
    let mut types = Vec::new();
    for of in [ScalarType::Bool, ScalarType::Int64, ScalarType::Float64] {
        types.extend([scalar(of), list(scalar(of))]);
    }
    types.extend([ColumnType::Utf8, list(ColumnType::Utf8), list(list(scalar(ScalarType::Int64)))]);
    let write = |_: &ColumnType, x: &ArrayRef| {
        let line = |row| format!("{{\"id\": {row}, \"x\": {}}}\n", json(x, row));
        (0..x.len()).map(line).collect::<String>().into_bytes()
    };
    types.into_iter().map(|column_type| nullable_column("jsonl", column_type, write)).collect()
}

/// A value as JSON.
fn json(array: &ArrayRef, row: usize) -> String {
    if array.is_null(row) {
        return "null".to_owned();
    }
    match array.data_type() {
        DataType::Boolean => array.as_boolean().value(row).to_string(),
        DataType::Int64 => array.as_primitive::<Int64Type>().value(row).to_string(),
        // A fraction, also if it is zero.
        DataType::Float64 => format!("{:?}", array.as_primitive::<Float64Type>().value(row)),
        DataType::Utf8 => format!("{:?}", array.as_string::<i32>().value(row)),
        DataType::List(_) => {
            let items = array.as_list::<i32>().value(row);
            let items: Vec<String> = (0..items.len()).map(|item| json(&items, item)).collect();
            format!("[{}]", items.join(", "))
        }
        other => unreachable!("no JSON of this test has the type {other}"),
    }
}

/// The columns of CSV files: numbers, booleans and text.
pub(super) fn csv_columns() -> Vec<SourceColumn> {
    let numbers = [ScalarType::Bool, ScalarType::Int64, ScalarType::Float64]
        .map(|of| (scalar(of), column(&scalar(of), false)));
    // Digits after a zero are text.
    let codes = StringArray::from_iter_values((0..ROWS).map(|row| format!("0{row}")));
    let columns = numbers.into_iter().chain([(ColumnType::Utf8, Arc::new(codes) as ArrayRef)]);
    let with_file = |(column_type, x): (ColumnType, ArrayRef)| {
        let value = |row: usize| json(&x, row).replace('"', "");
        let lines: String = (0..x.len()).map(|row| format!("{row},{}\n", value(row))).collect();
        let file = source_file("csv", &column_type, format!("id,x\n{lines}").into_bytes());
        complete_column(column_type, x, file)
    };
    columns.map(with_file).collect()
}

/// The types of arrays with rows of up to three axes.
fn array_types() -> impl Iterator<Item = (ScalarType, Vec<u32>)> {
    let shapes: [&[u32]; 4] = [&[], &[3], &[2, 3], &[2, 3, 3]];
    ScalarType::ALL.into_iter().flat_map(move |of| shapes.map(|shape| (of, shape.to_vec())))
}

/// The arrays of `npz` archives.
pub(super) fn npz_columns() -> Vec<SourceColumn> {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS));
    let ids = npy(&ids, ScalarType::Int64, &[]);
    let columns = array_types().map(|(of, shape)| {
        let (column_type, x) = array(of, &shape);
        let data = zip(&[("id.npy", &ids), ("x.npy", &npy(&x, of, &shape))]);
        let file = source_file("npz", &column_type, data);
        complete_column(column_type, x, file)
    });
    columns.collect()
}

/// The arrays of `npy` files, which have no other column.
pub(super) fn npy_columns() -> Vec<SourceColumn> {
    let numbers = [ScalarType::Bool, ScalarType::UInt8, ScalarType::Float32];
    let columns = array_types().filter(|(of, _)| numbers.contains(of)).map(|(of, shape)| {
        let (column_type, x) = array(of, &shape);
        let file = SourceFile {
            format: "npy, features: { x: data }".to_owned(),
            data: npy(&x, of, &shape),
            schema: Schema::new([("x", column_type.clone())]),
            has_id: false,
        };
        complete_column(column_type, x, file)
    });
    columns.collect()
}

fn array(of: ScalarType, shape: &[u32]) -> (ColumnType, ArrayRef) {
    let column_type = if shape.is_empty() { scalar(of) } else { tensor(of, shape) };
    let x = column(&column_type, false);
    (column_type, x)
}

/// An array as NumPy saves it.
fn npy(x: &ArrayRef, of: ScalarType, shape: &[u32]) -> Vec<u8> {
    let descr = match of {
        ScalarType::Bool => "|b1",
        ScalarType::Int8 => "|i1",
        ScalarType::Int16 => "<i2",
        ScalarType::Int32 => "<i4",
        ScalarType::Int64 => "<i8",
        ScalarType::UInt8 => "|u1",
        ScalarType::UInt16 => "<u2",
        ScalarType::UInt32 => "<u4",
        ScalarType::UInt64 => "<u8",
        ScalarType::Float16 => "<f2",
        ScalarType::Float32 => "<f4",
        ScalarType::Float64 => "<f8",
    };
    let axes: String = shape.iter().map(|extent| format!(" {extent},")).collect();
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({},{axes}), }}\n", x.len());
    let values = match x.data_type() {
        DataType::FixedSizeList(..) => Arc::clone(x.as_fixed_size_list().values()),
        _ => Arc::clone(x),
    };
    let elements: Vec<u8> = match values.as_boolean_opt() {
        Some(booleans) => booleans.iter().map(|value| u8::from(value == Some(true))).collect(),
        None => values.to_data().buffers()[0].as_slice()[..values.len() * of.width_bytes()].to_vec(),
    };
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.into_bytes());
    bytes.extend(elements);
    bytes
}

/// A zip archive of stored members.
fn zip(members: &[(&str, &Vec<u8>)]) -> Vec<u8> {
    let (mut archive, mut directory) = (Vec::<u8>::new(), Vec::<u8>::new());
    for (name, body) in members {
        let start = archive.len() as u32;
        // The version, flags, method, time and date, the checksum, both sizes, and the lengths of the name and of the extra field.
        let mut properties = vec![20_u8, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        properties.extend(crc(ZIP_POLYNOMIAL, body).to_le_bytes());
        properties.extend([(body.len() as u32).to_le_bytes(); 2].concat());
        properties.extend((name.len() as u32).to_le_bytes());
        archive.extend_from_slice(b"PK\x03\x04");
        archive.extend_from_slice(&properties);
        archive.extend_from_slice(name.as_bytes());
        archive.extend_from_slice(body);
        directory.extend_from_slice(b"PK\x01\x02\x14\x00");
        directory.extend_from_slice(&properties);
        directory.extend_from_slice(&[0; 10]);
        directory.extend_from_slice(&start.to_le_bytes());
        directory.extend_from_slice(name.as_bytes());
    }
    let start = archive.len() as u32;
    archive.extend_from_slice(&directory);
    archive.extend_from_slice(b"PK\x05\x06\x00\x00\x00\x00");
    archive.extend([(members.len() as u16).to_le_bytes(); 2].concat());
    archive.extend((directory.len() as u32).to_le_bytes());
    archive.extend(start.to_le_bytes());
    archive.extend([0, 0]);
    archive
}

fn crc(polynomial: u32, bytes: &[u8]) -> u32 {
    let next_bit = |crc: u32| (crc >> 1) ^ if crc & 1 == 1 { polynomial } else { 0 };
    let next_byte = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), |crc, _| next_bit(crc));
    !bytes.iter().fold(u32::MAX, next_byte)
}

/// The features of `tf.train.Example`: bytes, integers and floats, each of them single and in lists.
pub(super) fn tfrecord_columns() -> Vec<SourceColumn> {
    let mut types = vec![ColumnType::Binary, list(ColumnType::Binary)];
    for of in [ScalarType::Int64, ScalarType::Float32] {
        types.extend([scalar(of), list(scalar(of))]);
    }
    let with_file = |column_type: ColumnType| {
        let x = column(&column_type, false);
        let example = |row: usize| {
            let id: ArrayRef = Arc::new(Int64Array::from(vec![row as i64]));
            let values = match x.data_type() {
                DataType::List(_) => x.as_list::<i32>().value(row),
                _ => x.slice(row, 1),
            };
            protobuf_field(1, &[feature("id", &id), feature("x", &values)].concat())
        };
        let records = (0..x.len()).flat_map(|row| record(&example(row))).collect();
        let file = source_file("tfrecord", &column_type, records);
        complete_column(column_type, x, file)
    };
    types.into_iter().map(with_file).collect()
}

/// An entry of the map of features.
fn feature(name: &str, values: &ArrayRef) -> Vec<u8> {
    let (kind, list) = if let Some(integers) = values.as_primitive_opt::<Int64Type>() {
        // The integers of this test are less than 128.
        (3, protobuf_field(1, &integers.values().iter().map(|value| *value as u8).collect::<Vec<u8>>()))
    } else if let Some(floats) = values.as_primitive_opt::<Float32Type>() {
        (
            2,
            protobuf_field(
                1,
                &floats.values().iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>(),
            ),
        )
    } else {
        let bytes = values.as_binary::<i32>();
        (1, bytes.iter().flat_map(|value| protobuf_field(1, value.unwrap_or_default())).collect())
    };
    let feature = protobuf_field(kind, &list);
    protobuf_field(1, &[protobuf_field(1, name.as_bytes()), protobuf_field(2, &feature)].concat())
}

/// A field with a length, of a message of Protobuf.
fn protobuf_field(number: u8, body: &[u8]) -> Vec<u8> {
    let mut field = vec![(number << 3) | 2];
    let mut length = body.len();
    while length > 127 {
        field.push(length as u8 | 128);
        length >>= 7;
    }
    field.push(length as u8);
    field.extend_from_slice(body);
    field
}

/// A record with its checksums.
fn record(data: &[u8]) -> Vec<u8> {
    let masked = |bytes: &[u8]| {
        crc(TFRECORD_POLYNOMIAL, bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
    };
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &masked(&length), data, &masked(data)].concat()
}

/// The members of WebDataset archives, which are not decoded: images, arrays and other bytes, text, JSON and classes.
pub(super) fn webdataset_columns() -> Vec<SourceColumn> {
    let bytes = ["jpg", "npy"].map(|extension| (extension, ColumnType::Binary));
    let texts = ["txt", "json"].map(|extension| (extension, ColumnType::Utf8));
    let members = bytes.into_iter().chain(texts).chain([("cls", scalar(ScalarType::Int64))]);
    let with_file = |(extension, column_type): (&str, ColumnType)| {
        let x = column(&column_type, false);
        let mut data = Vec::new();
        for row in 0..x.len() {
            let body = match column_type {
                ColumnType::Binary => JPEG.to_vec(),
                _ => json(&x, row).replace('"', "").into_bytes(),
            };
            data.extend(tar_member(&format!("{row}.{extension}"), &body));
            data.extend(tar_member(&format!("{row}.cls2"), row.to_string().as_bytes()));
        }
        data.extend([0; 2 * TAR_BLOCK_BYTES]);
        let format = format!("webdataset, features: {{ id: cls2, x: {extension} }}");
        let file = source_file(&format, &column_type, data);
        complete_column(column_type, x, file)
    };
    members.map(with_file).collect()
}

fn tar_member(name: &str, body: &[u8]) -> Vec<u8> {
    let mut header = [0_u8; TAR_BLOCK_BYTES];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[124..135].copy_from_slice(format!("{:011o}", body.len()).as_bytes());
    header[148..156].fill(b' ');
    header[156] = b'0';
    header[257..262].copy_from_slice(b"ustar");
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..154].copy_from_slice(format!("{sum:06o}").as_bytes());
    let mut member = [&header[..], body].concat();
    member.resize(member.len().next_multiple_of(TAR_BLOCK_BYTES), 0);
    member
}
