//! Tests of pipeline files: their values, the error of each mistake, and round trips.

use expect_test::{Expect, expect};
use proptest::prelude::*;

use crate::pipeline::strategies::pipelines;
use crate::pipeline::{OPERATOR_NAMES, OperatorKind, Pipeline, Remainder, Source};

mod values;

const GOOD: &str = "\
name: imagenet-train
source:
  url: data/*.tfrecord
  format: tfrecord
  features:
    image: image/encoded
    label: image/class/label
seed: 7
shuffle:
  window: 4096
operators:
  # the crop decodes by itself
  - random_resized_crop:
      column: image
      size: [224, 224]
  - burn: {cpu_us: 10, parallelism: 2}
  - batch:
      size: 128
      remainder: drop
";

/// The error of the valid file after one replacement.
fn check(from: &str, to: &str, expect: Expect) {
    assert_eq!(GOOD.matches(from).count(), 1, "{from:?} must occur once in the valid file");
    check_file(&GOOD.replace(from, to), expect);
}

fn check_file(text: &str, expect: Expect) {
    match Pipeline::from_yaml(text, "pipeline.yaml") {
        Ok(_) => expect.assert_eq("read without an error"),
        Err(error) => expect.assert_eq(&error.to_string()),
    }
}

#[test]
fn a_valid_file_is_read() {
    let pipeline = Pipeline::from_yaml(GOOD, "pipeline.yaml").unwrap();
    assert_eq!(pipeline.source.url, ["data/*.tfrecord"]);
    assert_eq!(pipeline.operators[1].parallelism, Some(2));
    assert_eq!(pipeline.operators[2].parallelism, None);
    assert_eq!(pipeline.remainder(), Remainder::Drop);
    let OperatorKind::RandomResizedCrop(crop) = &pipeline.operators[0].kind else { panic!("a crop") };
    assert_eq!((crop.size, crop.scale), ([224, 224], [0.08, 1.0]));
}

#[test]
fn written_files_are_in_block_style() {
    let text = Pipeline::from_yaml(GOOD, "pipeline.yaml").unwrap().to_yaml();
    expect![[r#"
        name: imagenet-train
        source:
          url: data/*.tfrecord
          format: tfrecord
          features:
            image: image/encoded
            label: image/class/label
        seed: 7
        shuffle:
          window: 4096
        order: deterministic
        on_error: fail
        operators:
        - random_resized_crop:
            column: image
            size:
            - 224
            - 224
            scale:
            - 0.08
            - 1.0
            ratio:
            - 0.75
            - 1.3333333333333333
        - burn:
            cpu_us: 10
            parallelism: 2
        - batch:
            size: 128
            remainder: drop
    "#]]
    .assert_eq(&text);
}

#[test]
fn every_operator_name_is_known() {
    for name in OPERATOR_NAMES {
        let error = Pipeline::from_yaml(
            &GOOD.replace("burn: {cpu_us: 10, parallelism: 2}", &format!("{name}: {{parallelism: 2}}")),
            "f",
        );
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with(&format!("f:16: {name} has no key")), "{error}");
    }
}

#[test]
fn unknown_keys() {
    check(
        "      size: 128",
        "      siez: 128",
        expect![
            "pipeline.yaml:18: unknown key `siez` in batch; did you mean `size`? (known: size, remainder, parallelism)"
        ],
    );
    check(
        "cpu_us: 10, parallelism",
        "cpu_us: 10, paralelism",
        expect![
            "pipeline.yaml:16: unknown key `paralelism` in burn; did you mean `parallelism`? (known: cpu_us, parallelism)"
        ],
    );
    check(
        "seed: 7",
        "sed: 7",
        expect![
            "pipeline.yaml:8: unknown key `sed`; did you mean `seed`? (known: name, source, seed, shuffle, order, on_error, operators)"
        ],
    );
    check(
        "seed: 7",
        "zebra: 7",
        expect![
            "pipeline.yaml:8: unknown key `zebra`; known: name, source, seed, shuffle, order, on_error, operators"
        ],
    );
    check(
        "  format: tfrecord",
        "  formt: tfrecord",
        expect![
            "pipeline.yaml:4: unknown key `formt` in source; did you mean `format`? (known: url, format, features, credentials, compression, partitions, config, split, seeds, mix, stop, topics, start, until, isolation, payload, on_tombstone, on_gap, commit_group, epoch)"
        ],
    );
    check(
        "  window: 4096",
        "  size: 4096",
        expect!["pipeline.yaml:10: unknown key `size` in shuffle; known: window"],
    );
}

#[test]
fn unknown_operators_and_values() {
    check(
        "- random_resized_crop:",
        "- random_crop:",
        expect![
            "pipeline.yaml:13: unknown operator `random_crop`; did you mean `random_resized_crop`? (known: decode_image, resize, center_crop, random_resized_crop, random_horizontal_flip, random_grayscale, random_erasing, normalize, cast, select, rename, filter, tokenize, truncate, pad, recode_jpeg, cache, batch, bucket_by_length, pack, sample_neighbors, repeat, map, filter_function)"
        ],
    );
    check(
        "- random_resized_crop:",
        "- mosaic:",
        expect![
            "pipeline.yaml:13: unknown operator `mosaic`; known: decode_image, resize, center_crop, random_resized_crop, random_horizontal_flip, random_grayscale, random_erasing, normalize, cast, select, rename, filter, tokenize, truncate, pad, recode_jpeg, cache, batch, bucket_by_length, pack, sample_neighbors, repeat, map, filter_function"
        ],
    );
    check(
        "format: tfrecord",
        "format: tfrecords",
        expect![
            "pipeline.yaml:4: unknown source.format `tfrecords`; did you mean `tfrecord`? (known: tfrecord, webdataset, files, parquet, arrow, jsonl, csv, text, npy, npz, mds, litdata, arrayrecord, kafka, imagefolder, huggingface, graph)"
        ],
    );
    check(
        "remainder: drop",
        "remainder: dorp",
        expect![
            "pipeline.yaml:19: unknown batch.remainder `dorp`; did you mean `drop`? (known: emit, drop, carry)"
        ],
    );
    check(
        "seed: 7",
        "order: strict",
        expect!["pipeline.yaml:8: unknown order `strict`; known: deterministic, relaxed"],
    );
    check(
        "seed: 7",
        "on_error: ignore",
        expect!["pipeline.yaml:8: unknown on_error `ignore`; known: fail, skip, replace"],
    );
    check(
        "burn: {cpu_us: 10, parallelism: 2}",
        "cast: {column: a, dtype: float}",
        expect![
            "pipeline.yaml:16: unknown cast.dtype `float`; did you mean `float16`? (known: bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, float32, float64)"
        ],
    );
}

#[test]
fn missing_keys() {
    check("      size: 128\n", "", expect!["pipeline.yaml:18: batch has no key `size`; add the key"]);
    check("  format: tfrecord\n", "", expect!["pipeline.yaml:3: source has no key `format`; add the key"]);
    check(
        "name: imagenet-train\n",
        "",
        expect!["pipeline.yaml:1: the pipeline has no key `name`; add the key"],
    );
    check("cpu_us: 10, ", "", expect!["pipeline.yaml:16: burn has no key `cpu_us`; add the key"]);
}

#[test]
fn files_that_are_not_pipelines() {
    check_file("", expect!["pipeline.yaml: the file is empty; add at least name, source and operators"]);
    check_file(
        "# only this\n",
        expect!["pipeline.yaml: the file is empty; add at least name, source and operators"],
    );
    check_file(
        "\n- batch: {size: 1}\n",
        expect![
            "pipeline.yaml:2: the file contains a list; write a mapping with the keys name, source and operators"
        ],
    );
    check_file(
        "hello",
        expect![
            "pipeline.yaml:1: the file contains a single value; write a mapping with the keys name, source and operators"
        ],
    );
    check_file(
        "!a {b: c}",
        expect!["pipeline.yaml:1: the tag `!a` is not supported; remove it, or put the text in quotes"],
    );
    check_file(
        &format!("{GOOD}---\n{GOOD}"),
        expect![
            "pipeline.yaml:21: the file contains several YAML documents; keep one document and remove the second `---`"
        ],
    );
    check(
        "  window: 4096",
        "\twindow: 4096",
        expect!["pipeline.yaml:10: the line is indented with a tab, which YAML does not allow; use spaces"],
    );
    check(
        "      size: 128",
        "\t\tsize: 128",
        expect!["pipeline.yaml:18: the line is indented with a tab, which YAML does not allow; use spaces"],
    );
    check(
        "[224, 224]",
        "[224, 224",
        expect![
            "pipeline.yaml:16: invalid YAML: illegal placement of ':' indicator; check the brackets, quotes and indentation of this line and the previous lines"
        ],
    );
    check(
        "seed: 7",
        "seed: 7: 8",
        expect![
            "pipeline.yaml:8: invalid YAML: mapping values are not allowed in this context; check the brackets, quotes and indentation of this line and the previous lines"
        ],
    );
    check(
        "seed: 7",
        "seed: *seven",
        expect![
            "pipeline.yaml:8: the alias has no anchor; define the anchor with `&` before the alias, or put the text in quotes"
        ],
    );
    check(
        "seed: 7",
        "seed: @7",
        expect![
            "pipeline.yaml:8: invalid YAML: unexpected character: `@'; check the brackets, quotes and indentation of this line and the previous lines"
        ],
    );
}

#[test]
fn check_errors_name_the_line() {
    check(
        "name: imagenet-train",
        "name: imagenet train",
        expect![
            "pipeline.yaml:1: name: invalid name `imagenet train`: ' ' is not allowed; use letters, digits, `_`, `.` and `-`"
        ],
    );
    check(
        "url: data/*.tfrecord",
        "url: []",
        expect!["pipeline.yaml:3: source.url: the list is empty; add at least one path, glob or URL"],
    );
    check(
        "size: 128",
        "size: 0",
        expect!["pipeline.yaml:17: operator 3 (batch): size is 0; expected a number from 1 to 1000000"],
    );
    check(
        "[224, 224]",
        "[0, 224]",
        expect![
            "pipeline.yaml:13: operator 1 (random_resized_crop): size is [0, 224]; expected a height and a width from 1 to 16384"
        ],
    );
    check(
        "parallelism: 2",
        "parallelism: 0",
        expect![
            "pipeline.yaml:16: operator 2 (burn): parallelism is 0; set it to at least 1, or omit `parallelism` to let the engine choose"
        ],
    );
    check(
        "    image: image/encoded",
        "    image: ''",
        expect![
            "pipeline.yaml:5: source.features: `image: ` has an empty name; write `column: name in the data`"
        ],
    );
    check(
        "  - batch:\n      size: 128\n      remainder: drop\n",
        "",
        expect![
            "pipeline.yaml:11: operators: the pipeline has no batching operator; end the list with `- batch: {size: 128}`"
        ],
    );
    let flow = "{name: a, source: {url: b, format: files}, operators: [wait: {ms: 1}, batch: {size: 0}]}";
    check_file(
        flow,
        expect!["pipeline.yaml:1: operator 2 (batch): size is 0; expected a number from 1 to 1000000"],
    );
    let unindented =
        "name: a\nsource: {url: b, format: files}\noperators:\n- wait:\n    ms: 1\n\n- batch:\n    size: 0\n";
    check_file(
        unindented,
        expect!["pipeline.yaml:7: operator 2 (batch): size is 0; expected a number from 1 to 1000000"],
    );
}

#[test]
fn the_defaults_round_trip_as_json() {
    let pipeline = Pipeline::from_yaml(GOOD, "pipeline.yaml").unwrap();
    let json = serde_json::to_string(&pipeline).unwrap();
    assert_eq!(serde_json::from_str::<Pipeline>(&json).unwrap(), pipeline);
}

proptest! {
    #[test]
    fn yaml_round_trips(pipeline in pipelines()) {
        let text = pipeline.to_yaml();
        prop_assert_eq!(Pipeline::from_yaml(&text, "f"), Ok(pipeline), "{}", text);
    }

    #[test]
    fn numbers_keep_every_bit_in_a_file(mean in -1e300..1e300f64, std in 1e-300..1e10f64) {
        let builder = Pipeline::builder("a").source(Source::files("a")).normalize("a", [mean, mean / 1e300], [std, 1.0 / 3.0]);
        let pipeline = builder.batch(1).build().unwrap();
        prop_assert_eq!(Pipeline::from_yaml(&pipeline.to_yaml(), "f"), Ok(pipeline));
    }

    #[test]
    fn json_round_trips(pipeline in pipelines()) {
        let text = serde_json::to_string(&pipeline).unwrap();
        prop_assert_eq!(serde_json::from_str::<Pipeline>(&text).unwrap(), pipeline, "{}", text);
    }

    #[test]
    fn damaged_files_give_one_sentence(cut in 0..GOOD.len(), inserted in "[ \\t:{}\\[\\]#a0'\"-]{0,3}") {
        let text = format!("{}{inserted}{}", &GOOD[..cut], &GOOD[cut..]);
        if let Err(error) = Pipeline::from_yaml(&text, "f") {
            let message = error.to_string();
            prop_assert!(message.starts_with("f:") && !message.contains('\n'), "{message}");
        }
    }
}
