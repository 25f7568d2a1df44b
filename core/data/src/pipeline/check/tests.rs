//! Tests of the error messages of `check`.

use expect_test::{Expect, expect};

use crate::compression::SourceCompression;
use crate::pipeline::{
    CacheTier, CenterCrop, OperatorKind, Pipeline, PipelineBuilder, RandomHorizontalFlip, RandomResizedCrop,
    Source, Tokenize,
};
use crate::schema::ScalarType;

fn any() -> PipelineBuilder {
    Pipeline::builder("any").source(Source::files("images/"))
}

fn check(builder: PipelineBuilder, expect: Expect) {
    match builder.build() {
        Ok(_) => expect.assert_eq("accepted"),
        Err(error) => expect.assert_eq(&error.to_string()),
    }
}

/// Checks one operator followed by a batch.
fn check_kind(kind: OperatorKind, expect: Expect) {
    check(any().operator(kind).batch(2), expect);
}

#[test]
fn errors_in_names_and_sources() {
    check(
        Pipeline::builder("").source(Source::files("a")).batch(1),
        expect!["name: the pipeline name is empty; set a name, such as `imagenet-train`"],
    );
    check(
        Pipeline::builder("a b").source(Source::files("a")).batch(1),
        expect!["name: invalid name `a b`: ' ' is not allowed; use letters, digits, `_`, `.` and `-`"],
    );
    check(
        Pipeline::builder("größe").source(Source::files("a")).batch(1),
        expect!["name: invalid name `größe`: 'ö' is not allowed; use letters, digits, `_`, `.` and `-`"],
    );
    check(
        Pipeline::builder("a").source(Source::files(" ")).batch(1),
        expect!["source.url: an entry is empty; write a path, glob or URL, or remove the entry"],
    );
    let nowhere = Source { url: Vec::new(), ..Source::files("a") };
    check(
        Pipeline::builder("a").source(nowhere).batch(1),
        expect!["source.url: the list is empty; add at least one path, glob or URL"],
    );
    check(
        any().source(Source::files("a").feature("", "path")).batch(1),
        expect!["source.features: `: path` has an empty name; write `column: name in the data`"],
    );
    check(
        any().source(Source::parquet("a").split("train")).batch(1),
        expect![
            "source.split: the format parquet has no split; remove `split`, or use `format: huggingface` for a dataset of Hugging Face"
        ],
    );
    check(
        any().source(Source::parquet("a").compression(SourceCompression::Gzip)).batch(1),
        expect![
            "source.compression: files of the format parquet are not compressed as a whole; remove `compression`, which is for tfrecord, webdataset, jsonl, csv and text"
        ],
    );
    check(
        any().source(Source::jsonl("a").compression(SourceCompression::Uncompressed)).batch(1),
        expect!["accepted"],
    );
    check(any().source(Source::huggingface("a").split("train").config("en")).batch(1), expect!["accepted"]);
    check(any().source(Source::graph("a").seeds("train")).batch(1), expect!["accepted"]);
    check(
        Pipeline::builder("a").batch(1),
        expect![[r#"source: the pipeline has no source; add one, such as Source::files("images/")"#]],
    );
}

#[test]
fn errors_in_the_order_of_operators() {
    check(
        any(),
        expect!["operators: the pipeline has no batching operator; end the list with `- batch: {size: 128}`"],
    );
    check(
        any().wait(1),
        expect!["operators: the pipeline has no batching operator; end the list with `- batch: {size: 128}`"],
    );
    check(
        any().batch(1).wait(1),
        expect![
            "operator 1 (batch): batch must be the last operator, but other operators follow; move batch to the end"
        ],
    );
    check(
        any().batch(1).batch(1),
        expect![
            "operator 1 (batch): operator 2 (batch) also forms batches; keep only the batching operator at the end"
        ],
    );
    check(
        any().repeat(2).wait(1).repeat(3).batch(1),
        expect![
            "operator 3 (repeat): operator 1 is already a repeat; keep one repeat with the product of the counts"
        ],
    );
    check(any().repeat(2).batch(1), expect!["accepted"]);
}

#[test]
fn errors_in_counts() {
    check(any().batch(0), expect!["operator 1 (batch): size is 0; expected a number from 1 to 1000000"]);
    check(any().batch(1_000_000), expect!["accepted"]);
    check(
        any().batch(1_000_001),
        expect!["operator 1 (batch): size is 1000001; expected a number from 1 to 1000000"],
    );
    check(any().repeat(0).batch(1), expect!["operator 1 (repeat): count is 0; expected at least 1"]);
    check(any().pad("a", 0).batch(1), expect!["operator 1 (pad): length is 0; expected at least 1"]);
    check(
        any().truncate("a", 0).batch(1),
        expect!["operator 1 (truncate): length is 0; expected at least 1"],
    );
    check(
        any().burn(1).parallelism(0).batch(1),
        expect![
            "operator 1 (burn): parallelism is 0; set it to at least 1, or omit `parallelism` to let the engine choose"
        ],
    );
    check(
        any().parallelism(2).batch(1),
        expect![
            "parallelism: no operator has been added; call `parallelism` after the operator that it limits"
        ],
    );
    check(
        any().burn(60_000_001).batch(1),
        expect!["operator 1 (burn): cpu_us is 60000001; expected a number from 0 to 60000000"],
    );
    check(
        any().wait(60_001).batch(1),
        expect!["operator 1 (wait): ms is 60001; expected a number from 0 to 60000"],
    );
}

#[test]
fn errors_in_image_operators() {
    check(
        any().resize("a", [0, 2]).batch(1),
        expect!["operator 1 (resize): size is [0, 2]; expected a height and a width from 1 to 16384"],
    );
    check(any().resize("a", [16_384, 1]).batch(1), expect!["accepted"]);
    check(
        any().resize("a", [2, 16_385]).batch(1),
        expect!["operator 1 (resize): size is [2, 16385]; expected a height and a width from 1 to 16384"],
    );
    check(
        any().decode_image("").batch(1),
        expect!["operator 1 (decode_image): column is empty; write a column name"],
    );
    let column = || "a".to_owned();
    check_kind(
        OperatorKind::CenterCrop(CenterCrop { column: column(), size: [2, 2], resize: Some(0) }),
        expect!["operator 1 (center_crop): resize is 0; expected a number from 1 to 16384"],
    );
    let crop = |scale, ratio| {
        OperatorKind::RandomResizedCrop(RandomResizedCrop { column: column(), size: [2, 2], scale, ratio })
    };
    check_kind(
        crop([0.5, 0.1], [1.0, 1.0]),
        expect![
            "operator 1 (random_resized_crop): scale is [0.5, 0.1]; expected two positive numbers, the smaller one first"
        ],
    );
    check_kind(
        crop([0.1, 1.0], [0.0, 1.0]),
        expect![
            "operator 1 (random_resized_crop): ratio is [0, 1]; expected two positive numbers, the smaller one first"
        ],
    );
    check_kind(
        crop([0.1, f64::NAN], [1.0, 1.0]),
        expect![
            "operator 1 (random_resized_crop): scale is [0.1, NaN]; expected two positive numbers, the smaller one first"
        ],
    );
    check_kind(
        crop([0.1, 1.0], [1.0, f64::INFINITY]),
        expect![
            "operator 1 (random_resized_crop): ratio is [1, inf]; expected two positive numbers, the smaller one first"
        ],
    );
    let flip = |p| OperatorKind::RandomHorizontalFlip(RandomHorizontalFlip { column: column(), p });
    check_kind(
        flip(1.5),
        expect!["operator 1 (random_horizontal_flip): p is 1.5; expected a probability from 0 to 1"],
    );
    check_kind(
        flip(f64::NAN),
        expect!["operator 1 (random_horizontal_flip): p is NaN; expected a probability from 0 to 1"],
    );
    check(
        any().normalize("a", [0.5], [0.0]).batch(1),
        expect!["operator 1 (normalize): std contains 0; expected numbers above 0"],
    );
    check(
        any().normalize("a", [0.5; 3], [0.5]).batch(1),
        expect![
            "operator 1 (normalize): mean has 3 numbers and std has 1; write one number per channel for each, or a single number for all channels"
        ],
    );
    check(
        any().normalize("a", [], []).batch(1),
        expect![
            "operator 1 (normalize): mean has 0 numbers and std has 0; write one number per channel for each, or a single number for all channels"
        ],
    );
    check(
        any().normalize("a", [f64::NAN], [1.0]).batch(1),
        expect!["operator 1 (normalize): mean contains NaN; expected finite numbers"],
    );
    let mut doubles = any().normalize("a", [0.5], [0.5]).batch(1).build().unwrap();
    if let OperatorKind::Normalize(normalize) = &mut doubles.operators[0].kind {
        normalize.dtype = ScalarType::Float64;
    }
    expect!["operator 1 (normalize): unsupported dtype float64: expected float32 or float16"]
        .assert_eq(&doubles.check().unwrap_err().to_string());
}

#[test]
fn errors_in_columns_and_text_operators() {
    check(
        any().select([""; 0]).batch(1),
        expect!["operator 1 (select): columns is empty; add at least one column"],
    );
    check(
        any().select(["a", "a"]).batch(1),
        expect!["operator 1 (select): column `a` is listed twice; remove one entry"],
    );
    check(
        any().select(["a", ""]).batch(1),
        expect!["operator 1 (select): column is empty; write a column name"],
    );
    check(
        any().rename([("", ""); 0]).batch(1),
        expect!["operator 1 (rename): columns is empty; write `{new: current}`, or remove this operator"],
    );
    check(
        any().rename([("b", "a"), ("c", "a")]).batch(1),
        expect!["operator 1 (rename): column `a` has two new names; remove one of them"],
    );
    check(
        any().rename([("", "a")]).batch(1),
        expect!["operator 1 (rename): new name is empty; write a column name"],
    );
    check(
        any().filter(" ").batch(1),
        expect!["operator 1 (filter): where is empty; write an expression, such as `label < 10`"],
    );
    check(
        any().tokenize("a", "").batch(1),
        expect!["operator 1 (tokenize): tokenizer is empty; write the path or URL of a tokenizer.json"],
    );
    check_kind(
        OperatorKind::Tokenize(Tokenize {
            column: "a".into(),
            tokenizer: "t.json".into(),
            output: Some(String::new()),
            add_special_tokens: true,
        }),
        expect!["operator 1 (tokenize): output is empty; write a column name"],
    );
}

#[test]
fn a_pipeline_has_one_cache_before_its_random_operators() {
    let recoded = || any().recode_jpeg("image").cache(CacheTier::Disk);
    let crop = |builder: PipelineBuilder| builder.random_resized_crop("image", [2, 2]);
    check(crop(recoded()).batch(2), expect!["accepted"]);
    check(
        crop(recoded()).cache(CacheTier::Memory).batch(2),
        expect![
            "operator 4 (cache): operator 2 is already a cache; keep only the cache that saves more work"
        ],
    );
    check(
        crop(any()).cache(CacheTier::Memory).batch(2),
        expect![
            "operator 2 (cache): operator 1 (random_resized_crop) is random: a cache after it would replay the same random values in every pass; move cache before operator 1 (random_resized_crop)"
        ],
    );
}

#[test]
fn errors_in_coordinated_batches() {
    use crate::pipeline::{BucketByLength, OrderMode, PadTo};
    let bucket = |boundaries: &[u32], batch_sizes: &[u32], tokens| {
        OperatorKind::BucketByLength(BucketByLength {
            columns: vec!["tokens".to_owned()],
            boundaries: boundaries.to_vec(),
            batch_sizes: batch_sizes.to_vec(),
            tokens,
            pad: PadTo::Longest,
            value: 0,
            window: None,
        })
    };
    let said =
        |kind| any().operator(kind).build().map_or_else(|error| error.to_string(), |_| "accepted".to_owned());
    expect!["operator 1 (bucket_by_length): boundaries is empty; write the maximum length of each bucket, such as [16, 32, 64]"]
        .assert_eq(&said(bucket(&[], &[1], None)));
    expect![
        "operator 1 (bucket_by_length): boundaries is [8, 8]; expected positive lengths in ascending order"
    ]
    .assert_eq(&said(bucket(&[8, 8], &[1, 1], None)));
    expect!["operator 1 (bucket_by_length): tokens and batch_sizes are both set; remove one of them"]
        .assert_eq(&said(bucket(&[8], &[1], Some(64))));
    expect!["operator 1 (bucket_by_length): tokens is 7, but rows may have up to 8 elements; set tokens to at least 8, or reduce the last boundary"]
        .assert_eq(&said(bucket(&[8], &[], Some(7))));
    expect!["operator 1 (bucket_by_length): tokens and batch_sizes are both missing; set batch_sizes, with one number for each of the 1 buckets, or set tokens"]
        .assert_eq(&said(bucket(&[8], &[], None)));
    expect!["operator 1 (bucket_by_length): batch_sizes has 3 numbers for 1 boundaries; expected 1 numbers, or 2 to also accept longer rows"]
        .assert_eq(&said(bucket(&[8], &[1, 2, 3], None)));
    expect!["accepted"].assert_eq(&said(bucket(&[8], &[4, 2], None)));
    check(
        any().pack(&["tokens"], 64, 4).batch(2),
        expect![
            "operator 1 (pack): operator 2 (batch) also forms batches; keep only the batching operator at the end"
        ],
    );
    check(
        any().pack(&["tokens"], 64, 4).wait(1),
        expect![
            "operator 1 (pack): pack must be the last operator, but other operators follow; move pack to the end"
        ],
    );
    check(
        any().pack(&["tokens", "tokens"], 64, 4),
        expect!["operator 1 (pack): column `tokens` is listed twice; remove one entry"],
    );
    check(
        any().order(OrderMode::Relaxed).pack(&["tokens"], 64, 4),
        expect![
            "operator 1 (pack): the operator requires steps shared by all consumers, which `order: relaxed` does not provide; use `order: deterministic`"
        ],
    );
}

#[test]
fn a_source_without_an_end_is_rejected_where_the_end_matters() {
    let refused = |source: &str, operators: &str| {
        let yaml = format!("name: p\nsource: {{ {source} }}\noperators: [{operators}]\n");
        Pipeline::from_yaml(&yaml, "p.yaml").map_or_else(|error| error.to_string(), |_| "accepted".to_owned())
    };
    let unbounded = "url: kafka://a:1, format: kafka, topics: t, until: none";
    for (operators, expected) in [
        ("batch: {size: 8}", "accepted"),
        ("batch: {size: 8, remainder: carry}", "accepted"),
        ("batch: {size: 8, remainder: drop}", "remove `remainder: drop`"),
        ("repeat: {count: 2}, batch: {size: 8}", "remove `repeat`"),
        ("cache: {tier: memory}, batch: {size: 8}", "remove `cache`"),
        ("pack: {columns: [value], length: 64, size: 2}", "use `batch`"),
    ] {
        let operators: Vec<String> =
            operators.split("}, ").map(|one| format!("{{{}}}}}", one.trim_end_matches('}'))).collect();
        let said = refused(unbounded, &operators.join(", "));
        assert!(said.contains(expected), "{operators:?}: {said}");
    }
    for (source, expected) in [
        (format!("{unbounded}, epoch: {{every: 5m}}"), "accepted"),
        (format!("{unbounded}, epoch: {{rows: 1000}}"), "accepted"),
        (format!("{unbounded}, epoch: {{rows: 7}}"), "fewer rows than a batch"),
        (format!("{unbounded}, epoch: {{rows: 0}}"), "0 rows"),
        (format!("{unbounded}, epoch: {{every: 10ms}}"), "at least 1s"),
        (format!("{unbounded}, epoch: {{every: 5}}"), "epoch"),
        (format!("{unbounded}, epoch: {{every: 5m, rows: 9}}"), "invalid `epoch`"),
        (
            "url: kafka://a:1, format: kafka, topics: t, epoch: {every: 5m}".to_owned(),
            "`epoch` applies to `until: none`",
        ),
        ("url: /x, format: text, epoch: {every: 5m}".to_owned(), "applies to `format: kafka`"),
        (
            format!("mix: [{{weight: 1, {unbounded}}}, {{weight: 1, url: /x, format: text}}]"),
            "a mix cannot contain",
        ),
    ] {
        let said = refused(&source, "batch: {size: 8}");
        assert!(said.contains(expected), "{source}: {said}");
    }
}
