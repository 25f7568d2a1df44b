//! Tests of values of the wrong type or shape, and of duplicate keys.

use expect_test::expect;

use super::{GOOD, check, check_file};

#[test]
fn wrong_types() {
    check(
        "size: 128",
        "size: many",
        expect!["pipeline.yaml:18: batch.size must be a whole number from 0 to 4294967295, got text `many`"],
    );
    check(
        "size: 128",
        "size: -1",
        expect!["pipeline.yaml:18: batch.size must be a whole number from 0 to 4294967295, got -1"],
    );
    check(
        "size: 128",
        "size: 1.5",
        expect!["pipeline.yaml:18: batch.size must be a whole number from 0 to 4294967295, got 1.5"],
    );
    check(
        "size: 128",
        "size: [1]",
        expect!["pipeline.yaml:18: batch.size must be a single value, got a list"],
    );
    check(
        "size: 128",
        "size:",
        expect!["pipeline.yaml:18: batch.size must be a whole number from 0 to 4294967295, got nothing"],
    );
    check(
        "[224, 224]",
        "224",
        expect![
            "pipeline.yaml:15: random_resized_crop.size must be [height, width], such as [224, 224], got 224"
        ],
    );
    check(
        "[224, 224]",
        "[224]",
        expect![
            "pipeline.yaml:15: random_resized_crop.size must be [height, width], such as [224, 224], got a list of length 1"
        ],
    );
    check(
        "[224, 224]",
        "[224, 224, 3]",
        expect![
            "pipeline.yaml:15: random_resized_crop.size must be [height, width], such as [224, 224], got a list of length 3"
        ],
    );
    check(
        "[224, 224]",
        "[224, wide]",
        expect![
            "pipeline.yaml:15: random_resized_crop.size[1] must be a whole number from 0 to 4294967295, got text `wide`"
        ],
    );
    check(
        "      column: image\n",
        "      column: image\n      scale: 0.5\n",
        expect![
            "pipeline.yaml:15: random_resized_crop.scale must be [smallest, largest], such as [0.5, 1.0], got 0.5"
        ],
    );
    check("column: image", "column: 3", expect!["read without an error"]);
    check(
        "column: image",
        "column: {a: b}",
        expect!["pipeline.yaml:14: random_resized_crop.column must be a single value, got a mapping"],
    );
    check(
        "parallelism: 2",
        "parallelism: two",
        expect![
            "pipeline.yaml:16: burn.parallelism must be a whole number from 0 to 4294967295, got text `two`"
        ],
    );
    check(
        "data/*.tfrecord",
        "5",
        expect!["pipeline.yaml:3: source.url must be a path, glob or URL, or a list of them, got 5"],
    );
    check(
        "data/*.tfrecord",
        "[a, {b: c}]",
        expect!["pipeline.yaml:3: source.url[1] must be a single value, got a mapping"],
    );
    check(
        "seed: 7",
        "seed: lucky",
        expect![
            "pipeline.yaml:8: seed must be a whole number from 0 to 18446744073709551615, got text `lucky`"
        ],
    );
    check("\n  window: 4096", " 4096", expect!["pipeline.yaml:9: shuffle must be a mapping, got 4096"]);
    check("name: imagenet-train", "name: 5", expect!["read without an error"]);
    check(
        "remainder: drop",
        "remainder: 3",
        expect!["pipeline.yaml:19: unknown batch.remainder `3`; known: emit, drop, carry"],
    );
    check(
        "remainder: drop",
        "remainder: [drop]",
        expect!["pipeline.yaml:19: batch.remainder must be a name, got a list"],
    );
}

#[test]
fn operators_of_the_wrong_shape() {
    let burn = "burn: {cpu_us: 10, parallelism: 2}";
    check(
        burn,
        "burn",
        expect![
            "pipeline.yaml:16: an entry of operators must be an operator with its parameters, such as `- batch: {size: 128}`, got text `burn`"
        ],
    );
    check(
        burn,
        "burn:",
        expect!["pipeline.yaml:16: burn has no parameters; indent them below burn, or write `- burn: {...}`"],
    );
    check(burn, "burn: image", expect!["pipeline.yaml:16: burn must be a mapping, got text `image`"]);
    check(
        burn,
        "burn:\n    cpu_us: 10",
        expect!["pipeline.yaml:16: burn has no parameters; indent them below burn, or write `- burn: {...}`"],
    );
    check(
        burn,
        "burn: {cpu_us: 1}\n    wait: {ms: 1}",
        expect![
            "pipeline.yaml:17: `wait` is a second operator in the same entry; start a new entry with `- wait:`"
        ],
    );
    check(
        burn,
        "{}",
        expect![
            "pipeline.yaml:16: an operator entry is empty; write an operator, such as `- batch: {size: 128}`"
        ],
    );
    check(
        burn,
        "5: {}",
        expect![
            "pipeline.yaml:16: unknown operator `5`; known: decode_image, resize, center_crop, random_resized_crop, random_horizontal_flip, random_grayscale, random_erasing, normalize, cast, select, rename, filter, tokenize, truncate, pad, recode_jpeg, cache, batch, bucket_by_length, pack, sample_neighbors, repeat, map, filter_function"
        ],
    );
    check(
        burn,
        "[burn]",
        expect![
            "pipeline.yaml:16: an entry of operators must be an operator with its parameters, such as `- batch: {size: 128}`, got a list"
        ],
    );
    check_file(
        &format!("{}operators: none\n", GOOD.split("operators").next().unwrap()),
        expect!["pipeline.yaml:11: operators must be a list, got text `none`"],
    );
    check_file(
        &format!("{}operators:\n  batch: {{size: 3}}\n", GOOD.split("operators").next().unwrap()),
        expect!["pipeline.yaml:12: operators must be a list, got a mapping"],
    );
}

#[test]
fn duplicate_keys() {
    check(
        "      size: 128",
        "      size: 128\n      size: 64",
        expect!["pipeline.yaml:19: key `size` appears twice in batch; remove one of them"],
    );
    check(
        "seed: 7",
        "seed: 7\nseed: 8",
        expect!["pipeline.yaml:9: key `seed` appears twice; remove one of them"],
    );
    check(
        "    image: image/encoded",
        "    image: image/encoded\n    image: b",
        expect!["pipeline.yaml:7: key `image` appears twice in source.features; remove one of them"],
    );
    check(
        "parallelism: 2",
        "parallelism: 2, parallelism: 3",
        expect!["pipeline.yaml:16: key `parallelism` appears twice in burn; remove one of them"],
    );
}

#[test]
fn merge_keys_and_aliases() {
    let burn = "burn: {cpu_us: 10, parallelism: 2}";
    check(
        burn,
        "<<: {cpu_us: 10}",
        expect!["pipeline.yaml:16: merge keys (`<<`) are not supported; write the keys in each mapping"],
    );
    check(burn, "burn: &burn {cpu_us: 10}\n  - burn: *burn", expect!["read without an error"]);
    check(
        burn,
        "burn: &burn {cpu: 10}\n  - burn: *burn",
        expect![
            "pipeline.yaml:16: unknown key `cpu` in burn; did you mean `cpu_us`? (known: cpu_us, parallelism)"
        ],
    );
}
