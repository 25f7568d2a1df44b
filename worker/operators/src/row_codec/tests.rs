//! Tests of encoded rows: values of every column type are preserved, and corrupted bytes are an error.

use arrow::array::{
    AsArray, BinaryViewArray, BooleanArray, Float32Array, Int32Builder, Int64Array, ListBuilder,
    StringViewArray,
};
use arrow::datatypes::Int32Type;
use feedline_data::schema::Field;

use super::*;

fn schema() -> Schema {
    let fields = [
        ("label", ColumnType::Scalar(ScalarType::Int64)),
        ("bytes", ColumnType::Binary),
        ("tokens", ColumnType::List(Box::new(ColumnType::Scalar(ScalarType::Int32)))),
        ("text", ColumnType::Utf8),
        ("image", ColumnType::Image),
        ("weight", ColumnType::Scalar(ScalarType::Float32)),
        ("tensor", ColumnType::Tensor { scalar: ScalarType::UInt16, shape: vec![2, 3] }),
        ("flag", ColumnType::Scalar(ScalarType::Bool)),
    ];
    let field = |(name, column_type): (&str, ColumnType)| Field { name: name.to_owned(), column_type };
    Schema { fields: fields.into_iter().map(field).collect() }
}

fn chunk() -> Chunk {
    let mut tokens = ListBuilder::new(Int32Builder::new());
    tokens.append_value([Some(1), Some(-2), None]);
    tokens.append_null();
    tokens.append_value([]);
    let image =
        |side: u32| Image { width: side, height: 2, data: vec![side as u8; side as usize * 6].into() };
    let tensor =
        Tensor { scalar: ScalarType::UInt16, shape: vec![2, 3], data: BytesMut::from_iter(0..36u8), rows: 3 };
    let long = "a text that is longer than twelve bytes";
    let columns = vec![
        ("tensor", Column::Tensor(tensor)),
        ("label", Column::Arrow(Arc::new(Int64Array::from(vec![Some(7), None, Some(i64::MIN)])))),
        (
            "bytes",
            Column::Arrow(Arc::new(BinaryViewArray::from_iter([
                Some([9u8; 100].as_slice()),
                None,
                Some(b""),
            ]))),
        ),
        ("tokens", Column::Arrow(Arc::new(tokens.finish()))),
        ("text", Column::Arrow(Arc::new(StringViewArray::from(vec![Some(long), Some("short"), None])))),
        ("image", Column::Images(vec![image(1), Image::default(), image(30)])),
        ("weight", Column::Arrow(Arc::new(Float32Array::from(vec![Some(0.5), Some(f32::NAN), None])))),
        ("flag", Column::Arrow(Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)])))),
    ];
    let columns = columns.into_iter().map(|(name, column)| (name.to_owned(), column)).collect();
    Chunk::new(columns, vec![1, 2, 3], vec![0; 3])
}

fn encode(codec: &RowCodec, chunk: &Chunk) -> Vec<Bytes> {
    let rows = codec.encode(chunk, 9).unwrap();
    assert!(rows.iter().all(|row| row[0] == 9));
    rows.iter().map(|row| row.slice(1..)).collect()
}

fn shown(columns: &[(String, Column)]) -> String {
    columns.iter().map(|(name, column)| format!("{name}: {column:?}\n")).collect()
}

#[test]
fn rows_are_decoded_unchanged_in_any_order() {
    let (schema, chunk) = (schema(), chunk());
    let codec = RowCodec::new(&schema).unwrap();
    let rows = encode(&codec, &chunk);
    let in_order = |columns: &[(String, Column)]| {
        let find = |field: &Field| columns.iter().find(|(name, _)| *name == field.name).unwrap().clone();
        schema.fields.iter().map(find).collect::<Vec<_>>()
    };
    let decoded = codec.decode(&rows).unwrap();
    assert_eq!(shown(&decoded), shown(&in_order(&chunk.columns)));
    let turned = codec.decode(&[rows[2].clone(), rows[0].clone()]).unwrap();
    let find =
        |name: &str| turned.iter().find(|(column, _)| column == name).map(|(_, column)| column).unwrap();
    let Column::Tensor(tensor) = find("tensor") else { panic!("no tensor") };
    assert_eq!([tensor.row(0)[0], tensor.row(1)[0]], [24, 0]);
    let Column::Arrow(tokens) = find("tokens") else { panic!("no tokens") };
    assert_eq!(tokens.as_list::<i32>().value(1).as_primitive::<Int32Type>().value(1), -2);
}

#[test]
fn large_values_are_views_of_the_encoded_bytes() {
    let codec = RowCodec::new(&schema()).unwrap();
    let rows = encode(&codec, &chunk());
    let inside = |pointer: *const u8| rows.iter().any(|row| row.as_ptr_range().contains(&pointer));
    for (_, column) in codec.decode(&rows).unwrap() {
        match column {
            Column::Images(images) => assert!(inside(images[2].data.as_ptr())),
            Column::Arrow(array) if array.data_type() == &DataType::BinaryView => {
                assert!(inside(array.as_binary_view().value(0).as_ptr()));
            }
            _ => {}
        }
    }
}

#[test]
fn a_truncated_row_is_an_error() {
    let mut large = schema();
    large.fields.retain(|field| !matches!(field.column_type, ColumnType::Scalar(_) | ColumnType::List(_)));
    let codec = RowCodec::new(&large).unwrap();
    let row = encode(&codec, &chunk()).swap_remove(0);
    assert!(codec.decode(std::slice::from_ref(&row)).is_ok());
    for length in 0..row.len() {
        let error = codec.decode(&[row.slice(..length)]).expect_err("a part of a row is not a row");
        assert!(error.to_string().contains("bytes are missing"), "{error}");
    }
}
