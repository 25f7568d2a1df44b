//! Tests of the columns after each operator, and of the errors for pipelines that are incompatible with their source.

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::infer;
use crate::pipeline::{
    Normalize, OperatorKind, Pad, Pipeline, PipelineBuilder, Source, TensorLayout, Tokenize,
};
use crate::schema::{ColumnType, ScalarType, Schema};

fn images() -> Schema {
    Schema::new([("image", ColumnType::Binary), ("label", ColumnType::Scalar(ScalarType::Int64))])
}

fn texts() -> Schema {
    let tokens = ColumnType::List(Box::new(ColumnType::Scalar(ScalarType::UInt8)));
    let words = ColumnType::List(Box::new(ColumnType::Utf8));
    Schema::new([("text", ColumnType::Utf8), ("tokens", tokens), ("words", words)])
}

fn any() -> PipelineBuilder {
    Pipeline::builder("any").source(Source::files("data/"))
}

/// Compares the columns after each operator, one line per operator, or the error.
fn check(builder: PipelineBuilder, source: Schema, expect: Expect) {
    let pipeline = builder.batch(2).build().unwrap();
    let shown = match infer(&pipeline, &source) {
        Err(error) => error.to_string(),
        Ok(schemas) => {
            assert_eq!(schemas.len(), pipeline.operators.len() + 1);
            assert_eq!(schemas[0], source);
            assert_eq!(schemas[schemas.len() - 1], schemas[schemas.len() - 2], "batch changes no type");
            let lines = pipeline.operators.iter().zip(&schemas[1..]).map(|(operator, schema)| {
                let columns: Vec<String> = schema
                    .fields
                    .iter()
                    .map(|field| format!("{}: {}", field.name, field.column_type))
                    .collect();
                format!("{}: {}\n", operator.kind.name(), columns.join("; "))
            });
            lines.collect()
        }
    };
    expect.assert_eq(&shown);
}

fn normalize(layout: TensorLayout, channels: usize) -> OperatorKind {
    OperatorKind::Normalize(Normalize {
        column: "image".into(),
        mean: vec![0.5; channels],
        std: vec![0.5; channels],
        dtype: ScalarType::Float16,
        layout,
    })
}

fn tokenize_into(output: &str) -> OperatorKind {
    OperatorKind::Tokenize(Tokenize {
        column: "text".into(),
        tokenizer: "tokenizer.json".into(),
        output: Some(output.into()),
        add_special_tokens: true,
    })
}

#[test]
fn image_pipelines() {
    let train = any().random_resized_crop("image", [224, 192]).random_horizontal_flip("image");
    check(
        train.operator(normalize(TensorLayout::Chw, 3)),
        images(),
        expect![[r#"
        random_resized_crop: image: uint8 tensor [224, 192, 3]; label: int64
        random_horizontal_flip: image: uint8 tensor [224, 192, 3]; label: int64
        normalize: image: float16 tensor [3, 224, 192]; label: int64
        batch: image: float16 tensor [3, 224, 192]; label: int64
    "#]],
    );
    let eval = any().decode_image("image").random_horizontal_flip("image").resize("image", [256, 256]);
    check(
        eval.center_crop("image", [224, 224]).operator(normalize(TensorLayout::Hwc, 1)),
        images(),
        expect![[r#"
        decode_image: image: image; label: int64
        random_horizontal_flip: image: image; label: int64
        resize: image: uint8 tensor [256, 256, 3]; label: int64
        center_crop: image: uint8 tensor [224, 224, 3]; label: int64
        normalize: image: float16 tensor [224, 224, 3]; label: int64
        batch: image: float16 tensor [224, 224, 3]; label: int64
    "#]],
    );
}

#[test]
fn text_pipelines() {
    let builder =
        any().operator(tokenize_into("ids")).filter("length(ids) > 3").truncate("ids", 64).pad("ids", 64);
    check(
        builder.select(["ids"]).cast("ids", ScalarType::Int64).repeat(2).burn(1).wait(1),
        texts(),
        expect![[r#"
        tokenize: text: text; tokens: list of uint8; words: list of text; ids: list of int32
        filter: text: text; tokens: list of uint8; words: list of text; ids: list of int32
        truncate: text: text; tokens: list of uint8; words: list of text; ids: list of int32
        pad: text: text; tokens: list of uint8; words: list of text; ids: int32 tensor [64]
        select: ids: int32 tensor [64]
        cast: ids: int64 tensor [64]
        repeat: ids: int64 tensor [64]
        burn: ids: int64 tensor [64]
        wait: ids: int64 tensor [64]
        batch: ids: int64 tensor [64]
    "#]],
    );
    check(
        any().tokenize("text", "t.json").select(["text"]),
        texts(),
        expect![[r#"
        tokenize: text: list of int32; tokens: list of uint8; words: list of text
        select: text: list of int32
        batch: text: list of int32
    "#]],
    );
    let casts = any().cast("text", ScalarType::Float32).cast("tokens", ScalarType::Int16);
    check(
        casts.cast("words", ScalarType::Int64),
        texts(),
        expect![[r#"
        cast: text: float32; tokens: list of uint8; words: list of text
        cast: text: float32; tokens: list of int16; words: list of text
        cast: text: float32; tokens: list of int16; words: list of int64
        batch: text: float32; tokens: list of int16; words: list of int64
    "#]],
    );
    check(
        any().rename([("tokens", "words"), ("words", "tokens"), ("t", "text")]),
        texts(),
        expect![[r#"
        rename: t: text; words: list of uint8; tokens: list of text
        batch: t: text; words: list of uint8; tokens: list of text
    "#]],
    );
}

#[test]
fn unknown_columns() {
    check(
        any().burn(1).random_resized_crop("imge", [2, 2]),
        images(),
        expect![
            "operator 2 (random_resized_crop): there is no column `imge`; did you mean `image`? the columns are image, label"
        ],
    );
    check(
        any().cast("zebra", ScalarType::Int8),
        images(),
        expect!["operator 1 (cast): there is no column `zebra`; the columns are image, label"],
    );
    check(
        any().select(["label", "Image"]),
        images(),
        expect![
            "operator 1 (select): there is no column `Image`; did you mean `image`? the columns are image, label"
        ],
    );
    check(
        any().rename([("a", "lable")]),
        images(),
        expect![
            "operator 1 (rename): there is no column `lable`; did you mean `label`? the columns are image, label"
        ],
    );
    check(
        any().select(["label"]).resize("image", [2, 2]),
        images(),
        expect!["operator 2 (resize): there is no column `image`; the columns are label"],
    );
    check(
        any().cast("a", ScalarType::Int8),
        Schema::default(),
        expect!["operator 1 (cast): there is no column `a`; the columns are none"],
    );
}

#[test]
fn image_types_that_do_not_fit() {
    check(
        any().decode_image("image").decode_image("image"),
        images(),
        expect![
            "operator 2 (decode_image): column `image` contains images, but the operator needs bytes; the images are already decoded; remove this operator"
        ],
    );
    check(
        any().decode_image("label"),
        images(),
        expect![
            "operator 1 (decode_image): column `label` contains int64, but the operator needs bytes; use a column of that type (available: image)"
        ],
    );
    check(
        any().resize("label", [2, 2]),
        images(),
        expect![
            "operator 1 (resize): column `label` contains int64, but the operator needs bytes, images or uint8 tensors [height, width, 3]; use a column of that type (available: image)"
        ],
    );
    check(
        any().resize("image", [2, 2]).cast("image", ScalarType::Int8).resize("image", [2, 2]),
        images(),
        expect![
            "operator 3 (resize): column `image` contains int8 tensors [2, 2, 3], but the operator needs bytes, images or uint8 tensors [height, width, 3]; move the operator before normalize and cast"
        ],
    );
    check(
        any().random_horizontal_flip("image"),
        images(),
        expect![
            "operator 1 (random_horizontal_flip): column `image` contains bytes, but the operator needs images or tensors [height, width, channels]; add decode_image, resize or random_resized_crop before random_horizontal_flip"
        ],
    );
    check(
        any().random_horizontal_flip("label"),
        images(),
        expect![
            "operator 1 (random_horizontal_flip): column `label` contains int64, but the operator needs images or tensors [height, width, channels]; use a column of that type (available: none)"
        ],
    );
    let chw = any().resize("image", [9, 9]).operator(normalize(TensorLayout::Chw, 3));
    check(
        chw.random_horizontal_flip("image"),
        images(),
        expect![
            "operator 3 (random_horizontal_flip): column `image` contains float16 tensors [3, 9, 9], but the operator needs images or tensors [height, width, channels]; move random_horizontal_flip before normalize, which puts channels first"
        ],
    );
    check(
        any().operator(normalize(TensorLayout::Hwc, 3)),
        images(),
        expect![
            "operator 1 (normalize): column `image` contains bytes, but the operator needs uint8 tensors [height, width, channels]; add resize, center_crop or random_resized_crop before normalize"
        ],
    );
    let twice = any()
        .resize("image", [9, 9])
        .operator(normalize(TensorLayout::Hwc, 3))
        .operator(normalize(TensorLayout::Hwc, 3));
    check(
        twice,
        images(),
        expect![
            "operator 3 (normalize): column `image` contains float16 tensors [9, 9, 3], but the operator needs uint8 tensors [height, width, channels]; use normalize only once, and before cast"
        ],
    );
    check(
        any().resize("image", [9, 9]).operator(normalize(TensorLayout::Hwc, 2)),
        images(),
        expect![
            "operator 2 (normalize): mean and std have 2 numbers, but column `image` has 3 channels; write 1 or 3 numbers for each"
        ],
    );
    check(
        any().decode_image("image"),
        images(),
        expect![
            "operator 2 (batch): column `image` contains images of varying size, which cannot be batched; add resize or random_resized_crop before the batch"
        ],
    );
    check(
        any().cast("image", ScalarType::Int8),
        images(),
        expect![
            "operator 1 (cast): column `image` contains bytes, but the operator needs scalars, lists, tensors or text; use a column of that type (available: label)"
        ],
    );
}

#[test]
fn text_types_that_do_not_fit() {
    check(
        any().tokenize("tokens", "t.json"),
        texts(),
        expect![
            "operator 1 (tokenize): column `tokens` contains lists of uint8, but the operator needs text; use a column of that type (available: text)"
        ],
    );
    check(
        any().operator(tokenize_into("words")),
        texts(),
        expect![
            "operator 1 (tokenize): output `words` would overwrite an existing column; choose another output, or drop the column with select before tokenize"
        ],
    );
    check(
        any().truncate("text", 3),
        texts(),
        expect![
            "operator 1 (truncate): column `text` contains text, but the operator needs a list; add tokenize before the operator"
        ],
    );
    check(
        any().pad("text", 3),
        texts(),
        expect![
            "operator 1 (pad): column `text` contains text, but the operator needs lists of numbers; add tokenize before the operator"
        ],
    );
    check(
        any().pad("words", 3),
        texts(),
        expect![
            "operator 1 (pad): column `words` contains lists of text, but the operator needs lists of numbers; use a column of that type (available: tokens)"
        ],
    );
    let pad = OperatorKind::Pad(Pad { column: "tokens".into(), length: 4, value: -1 });
    check(
        any().operator(pad),
        texts(),
        expect![
            "operator 1 (pad): value -1 does not fit uint8, the element type of column `tokens`; choose a value that fits, or add a `cast` operator before this operator"
        ],
    );
    check(
        any().rename([("words", "text")]),
        texts(),
        expect![
            "operator 1 (rename): cannot rename `text` to `words`: column `words` already exists; rename that column too, or drop it with select before rename"
        ],
    );
}

#[test]
fn an_operators_own_parameters_are_checked() {
    let mut pipeline = any().resize("image", [2, 2]).batch(1).build().unwrap();
    pipeline.operators[0].parallelism = Some(0);
    let error = infer(&pipeline, &images()).unwrap_err().to_string();
    expect!["operator 1 (resize): parallelism is 0; set it to at least 1, or omit `parallelism` to let the engine choose"]
        .assert_eq(&error);
}

/// Operators over few column names, so that many of the pipelines are valid.
fn steps() -> impl Strategy<Value = OperatorKind> {
    let name = || prop::sample::select(vec!["image", "label", "text", "x y", "a"]).prop_map(str::to_owned);
    let one = |builder: PipelineBuilder| builder.batch(1).build().unwrap().operators.remove(0).kind;
    prop_oneof![
        name().prop_map(move |column| one(any().resize(column, [4, 4]))),
        name().prop_map(move |column| one(any().cast(column, ScalarType::Int32))),
        name().prop_map(move |column| one(any().filter(format!("\"{column}\" > 1")))),
        (name(), name()).prop_map(move |(new, old)| one(any().rename([(new, old)]))),
        prop::collection::btree_set(name(), 1..4).prop_map(move |columns| one(any().select(columns))),
        name().prop_map(|output| tokenize_into(&output)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn a_source_cut_to_the_required_columns_gives_the_same_output(kinds in prop::collection::vec(steps(), 1..5)) {
        let source = Schema::new([
            ("image", ColumnType::Binary),
            ("label", ColumnType::Scalar(ScalarType::Int64)),
            ("text", ColumnType::Utf8),
            ("x y", ColumnType::Utf8),
        ]);
        let builder = kinds.into_iter().fold(any(), PipelineBuilder::operator);
        let pipeline = builder.batch(2).build().unwrap();
        let Ok(whole) = infer(&pipeline, &source) else { return Ok(()) };
        let required = pipeline.required_columns(&source);
        let fields = source.fields.iter().filter(|field| required.contains(&field.name)).cloned().collect();
        let cut = infer(&pipeline, &Schema { fields });
        prop_assert!(cut.is_ok(), "{:?} with {:?}", cut, required);
        let cut = cut.unwrap_or_default();
        prop_assert_eq!(cut.last(), whole.last());
    }
}
