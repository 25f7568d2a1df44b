//! Tests of comma-separated values.

use feedline_data::manifest::Manifest;
use feedline_data::pipeline::Format;
use feedline_data::schema::{ColumnType, ScalarType, Schema};

use crate::BlockRead;
use crate::testing::{fixture, lines};

#[tokio::test]
async fn quoted_line_ends_are_part_of_the_field() {
    let text = "id,name,score\n1,\"two\nlines, and \"\"quotes\"\"\",0.5\r\n\n2,plain,3\n3,\"\",";
    let all = fixture(text.as_bytes(), Format::Csv, &[]).read_all().await;
    assert_eq!(all.columns(), "id: int64, name: text, score: float64");
    assert_eq!(all.rows()[..2], ["1|two\nlines, and \"quotes\"|0.5", "2|plain|3"]);
    assert_eq!((all.rows().len(), all.failures().len()), (3, 0));
}

#[tokio::test]
async fn invalid_rows_do_not_affect_others() {
    let mut text = "id,x\n".to_owned();
    for row in 0..1200 {
        text += &format!("{row},{}\n", row * 2);
    }
    text += "one,1\n5\n7,8,9\n10,11\n";
    let all = fixture(text.as_bytes(), Format::Csv, &[]).read_all().await;
    assert_eq!((all.columns().as_str(), all.rows().len()), ("id: int64, x: int64", 1204));
    let failed: Vec<u32> = all.failures().iter().map(|it| it.row).collect();
    assert_eq!(failed, [1200, 1201, 1202]);
    let expected = "the row has another number of fields than the header (expected 2 got 1): quote fields";
    assert!(all.failures()[1].reason.starts_with(expected), "{:?}", all.failures());
    assert_eq!(all.rows()[1199..], ["1199|2398", "null|null", "null|null", "null|null", "10|11"]);
}

#[tokio::test]
async fn invalid_rows_do_not_affect_the_inferred_types() {
    let all = fixture(b"a,b\n1,2\n3\n4,5\n", Format::Csv, &[]).read_all().await;
    assert_eq!((all.columns().as_str(), all.failures().len()), ("a: int64, b: int64", 1));
    assert_eq!(all.rows(), ["1|2", "null|null", "4|5"]);
}

#[tokio::test]
async fn columns_are_selected_renamed_and_filled() {
    let fixture = fixture(b"\xef\xbb\xbfday,n,s\n2024-01-01,1,x\n", Format::Csv, &[("d", "day"), ("n", "n")]);
    let all = fixture.read_all().await;
    assert_eq!((all.columns().as_str(), all.rows()), ("d: text, n: int64", vec!["2024-01-01|1".to_owned()]));
    let shard = fixture.index().await.unwrap();
    let schema =
        Schema::new([("n", ColumnType::Scalar(ScalarType::Float64)), ("elsewhere", ColumnType::Utf8)]);
    let read = BlockRead {
        shard: &shard.object,
        block: &shard.index.blocks[0],
        index: Some(&shard.index),
        schema: &schema,
        rows: None,
    };
    assert_eq!(lines(&fixture.dataset.read_block(&read).await.unwrap().batch), ["1|null"]);
}

#[tokio::test]
async fn unclosed_quotes_fail_and_empty_shards_have_no_rows() {
    let index = fixture(b"a,b\n1,2\n3,\"x\n", Format::Csv, &[]).index().await.unwrap().index;
    assert_eq!((index.rows(), index.defects.len(), index.defects[0].offset), (1, 1, 8));
    assert_eq!(fixture(b"", Format::Csv, &[]).read_all().await.rows().len(), 0);
    assert_eq!(fixture(b"a,b\n", Format::Csv, &[]).read_all().await.rows().len(), 0);
}

#[tokio::test]
async fn codes_after_the_sample_fail_their_rows() {
    let mut text = "zip,x\n".to_owned();
    for row in 0..1_200 {
        text += &format!("{},10.05\n", 10_000 + row);
    }
    text += "02139,1\n\"+49\",2\n7,3.007\n-007,4\n0,0\n";
    let all = fixture(text.as_bytes(), Format::Csv, &[]).read_all().await;
    assert_eq!(all.columns(), "zip: int64, x: float64");
    let failed: Vec<u32> = all.failures().iter().map(|failure| failure.row).collect();
    assert_eq!(failed, [1_200, 1_201, 1_203]);
    assert!(
        all.failures()[0].reason.starts_with("column `zip`: `02139` is not an integer as in the first rows")
    );
    assert_eq!(all.rows()[1_202..], ["7|3.007", "null|null", "0|0"]);
}

#[tokio::test]
async fn carriage_returns_as_line_ends_are_an_error() {
    for text in ["a,b\r1,2\r3,4\r", "a,b\r1,2\n3,4\n"] {
        let error = fixture(text.as_bytes(), Format::Csv, &[]).index().await.unwrap_err().to_string();
        assert!(error.contains("a carriage return without a line feed"), "{error}");
    }
    let quoted = fixture(b"a,\"b\rc\"\r\n1,2\r\n", Format::Csv, &[]).read_all().await;
    assert_eq!(quoted.rows(), ["1|2"]);
}

#[tokio::test]
async fn columns_with_the_same_name_are_an_error_if_they_are_read() {
    let text = b"id,x,y,x\n1,2,3,4\n";
    for features in [&[][..], &[("x", "x")], &[("id", "id"), ("other", "x")]] {
        let error = fixture(text, Format::Csv, features).index().await.unwrap_err().to_string();
        let expected = "columns 2 and 4 have the same name `x`: rename one of them, or list other columns under \
                        `source.features`";
        assert!(error.ends_with(expected), "{error}");
    }
    let all = fixture(text, Format::Csv, &[("id", "id"), ("y", "y")]).read_all().await;
    assert_eq!(all.rows(), ["1|3"]);
    let error = fixture(b"a,,\n1,2,3\n", Format::Csv, &[]).index().await.unwrap_err().to_string();
    assert!(error.contains("columns 2 and 3 have no name: rename"), "{error}");
    assert_eq!(fixture(b",a\n0,1\n", Format::Csv, &[]).read_all().await.rows(), ["0|1"]);
    assert_eq!(fixture(b"x,X, x\n0,1,2\n", Format::Csv, &[]).read_all().await.rows(), ["0|1|2"]);
}

#[tokio::test]
async fn duplicate_names_without_rows_are_not_an_error() {
    assert_eq!(fixture(b"a,a\n", Format::Csv, &[]).read_all().await.rows().len(), 0);
}

#[tokio::test]
async fn numbers_are_not_rounded_to_other_numbers() {
    let large = [
        "9007199254740993",
        "9007199254740992",
        "18446744073709551615",
        "18446744073709551617",
        "+0018446744073709551616",
        "1e300",
        "1e400",
        "inf",
    ];
    let text = format!("x\n{}{}\n", "0.5\n".repeat(1_000), large.join("\n"));
    let all = fixture(text.as_bytes(), Format::Csv, &[]).read_all().await;
    assert_eq!(all.columns(), "x: float64");
    assert_eq!(all.rows()[999..1_002], ["0.5", "null", "9007199254740992"]);
    let failures: Vec<String> =
        all.failures().into_iter().map(|failure| format!("{}: {}", failure.row, failure.reason)).collect();
    assert_eq!(
        failures,
        [
            "1000: column `x`: float64 does not represent 9007199254740993 exactly",
            "1002: column `x`: float64 does not represent 18446744073709551615 exactly",
            "1004: column `x`: `+0018446744073709551616` is not a number as in the first rows, because its first digit would be lost",
            "1006: column `x`: float64 does not represent 1e400 exactly"
        ]
    );
    // Integers of more than 64 bits among the first rows are text.
    let all = fixture(b"x\n1\n18446744073709551617\n", Format::Csv, &[]).read_all().await;
    assert_eq!((all.columns().as_str(), all.failures().len()), ("x: text", 0));
}

#[tokio::test]
async fn a_later_value_of_another_type_fails_its_row_with_the_column() {
    let text = format!("x,y\n{}a,2\n7,2.5\n", "1,2\n".repeat(1_200));
    let all = fixture(text.as_bytes(), Format::Csv, &[]).read_all().await;
    let failures: Vec<String> =
        all.failures().into_iter().map(|failure| format!("{}: {}", failure.row, failure.reason)).collect();
    assert_eq!(
        failures,
        [
            "1200: column `x`: expected int64 as in the first rows, but found `a`",
            "1201: column `y`: expected int64 as in the first rows, but found `2.5`"
        ]
    );
}

#[tokio::test]
async fn integers_with_leading_zeros_are_text() {
    let text = b"zip,count,sign,delta\n02139,0,+5,-7\n10115,10,5,-0\n";
    let all = fixture(text, Format::Csv, &[]).read_all().await;
    assert_eq!(all.columns(), "zip: text, count: int64, sign: text, delta: int64");
    assert_eq!(all.rows(), ["02139|0|+5|-7", "10115|10|5|0"]);
}

#[tokio::test]
async fn codes_among_fractions_are_text_or_fail_their_rows() {
    let all = fixture(b"code,delta,x\n1.5,+1.5,0.5\n02139,+2,-0.25\n", Format::Csv, &[]).read_all().await;
    assert_eq!(all.columns(), "code: text, delta: float64, x: float64");
    assert_eq!(all.rows(), ["1.5|1.5|0.5", "02139|2|-0.25"]);

    let text = format!("x,y\n{}1, 02139 \n2,00.5\n3,-007\n4,0\n", "1,1.5\n".repeat(1_000));
    let all = fixture(text.as_bytes(), Format::Csv, &[]).read_all().await;
    let failures: Vec<String> =
        all.failures().into_iter().map(|failure| format!("{}: {}", failure.row, failure.reason)).collect();
    assert_eq!(
        failures,
        [
            "1000: column `y`: ` 02139 ` is not a number as in the first rows, because its first digit would be lost",
            "1002: column `y`: `-007` is not a number as in the first rows, because its first digit would be lost",
        ]
    );
    assert_eq!(all.rows()[1_000..], ["null|null", "2|0.5", "null|null", "4|0"]);
}

#[tokio::test]
async fn narrow_numbers_of_other_datasets_do_not_round_values() {
    let fixture = fixture(b"id,x\n1,\n2,0.5\n3,0.1\n4,16777217\n5,1e39\n6,nan\n", Format::Csv, &[]);
    let shard = fixture.index().await.unwrap();
    for (scalar, rows) in [
        (ScalarType::Float32, ["null", "0.5", "null", "null", "null", "NaN"]),
        (ScalarType::Float16, ["null", "0.5", "null", "null", "null", "NaN"]),
    ] {
        let schema = Schema::new([("x", ColumnType::Scalar(scalar))]);
        let read = BlockRead {
            shard: &shard.object,
            block: &shard.index.blocks[0],
            index: Some(&shard.index),
            schema: &schema,
            rows: None,
        };
        let block = fixture.dataset.read_block(&read).await.unwrap();
        assert_eq!(lines(&block.batch), rows);
        let failures: Vec<(u32, &str)> =
            block.failures.iter().map(|failure| (failure.row, failure.reason.as_str())).collect();
        let reason = |text: &str| format!("column `x`: {} does not represent {text} exactly", scalar.name());
        assert_eq!(failures, [(2, &*reason("0.1")), (3, &*reason("16777217")), (4, &*reason("1e39"))]);
    }
}

#[tokio::test]
async fn text_after_a_closing_quote_fails_the_row() {
    let text = b"a,b\n\"he said \\\"hi\\\"\",2\n\"x\"\"y\" ,3\n\"x\"\"y\",4\r\n5\" disk,\"6\"\n";
    let all = fixture(text, Format::Csv, &[]).read_all().await;
    assert_eq!(all.columns(), "a: text, b: int64");
    assert_eq!(all.rows(), ["null|null", "null|null", "x\"y|4", "5\" disk|6"]);
    for failure in all.failures() {
        assert!(failure.reason.starts_with("text follows the closing quote of a field"), "{failure:?}");
    }
}

#[tokio::test]
async fn blank_lines_before_quotes_are_not_part_of_the_row() {
    let text = b"a,b\n1,1\n\n\"say ,\"\"hi\"\" now\",2\n\r\n\"a\\\"b\",3\n";
    let all = fixture(text, Format::Csv, &[]).read_all().await;
    assert_eq!(all.rows(), ["1|1", "say ,\"hi\" now|2", "null|null"]);
    assert_eq!(all.failures().len(), 1);
}

#[tokio::test]
async fn digits_of_other_scripts_are_text() {
    let all = fixture("x,y\n１２,1\n３,2\n".as_bytes(), Format::Csv, &[]).read_all().await;
    assert_eq!((all.columns().as_str(), all.failures().len()), ("x: text, y: int64", 0));
}

#[test]
fn rows_with_codes_are_found() {
    for row in ["02139", "1,02139,x", "\"-007\"", "a, 00 ", "+5", "x,+49"] {
        assert!(super::may_have_codes(row.as_bytes()), "{row}");
    }
    for row in ["0", "10.05,100,0.5", "2024-01-05 00:00:00", "1e+05,-0", "a0,1.007"] {
        assert!(!super::may_have_codes(row.as_bytes()), "{row}");
    }
}

#[tokio::test]
async fn a_column_without_values_has_the_type_of_other_shards() {
    let empty = fixture(b"id,x\n1,\n", Format::Csv, &[]).index().await.unwrap();
    let full = fixture(b"id,x\n2,5\n", Format::Csv, &[]).index().await.unwrap();
    let manifest = Manifest::build(vec![empty, full]).unwrap();
    assert_eq!(manifest.schema.get("x"), Some(&ColumnType::Scalar(ScalarType::Int64)));
}
