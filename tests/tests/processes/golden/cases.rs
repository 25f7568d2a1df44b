//! The golden runs: pipelines and flags.

/// A golden run.
pub(crate) struct Case {
    /// The name of the golden line.
    pub(crate) name: String,
    /// The pipeline file without its name.
    pub(crate) pipeline: String,
    /// Flags of the run.
    pub(crate) arguments: &'static [&'static str],
    /// Flags of a second run, which resumes at the position of the first run.
    pub(crate) resumed: Option<&'static [&'static str]>,
    /// The interpreter of Python functions.
    pub(crate) python: Option<String>,
}

type Flags = &'static [&'static str];

const TABLE: &str = "source: { url: \"table-jsonl/*\", format: jsonl }\nseed: 5";
const LISTS: &str = "source: { url: \"lists-*.jsonl\", format: jsonl }\nseed: 3\nshuffle: { window: 64 }\noperators:\n  - cast: { column: tokens, dtype: int32 }";
const CROP: &str = "random_resized_crop: { column: image, size: [32, 32] }";

fn case(name: impl Into<String>, pipeline: impl Into<String>, arguments: Flags) -> Case {
    Case { name: name.into(), pipeline: pipeline.into(), arguments, resumed: None, python: None }
}

/// Returns the runs on the data that [`super::inputs::generate`] generates.
pub(crate) fn generated() -> Vec<Case> {
    let mut cases = formats();
    cases.extend(orders());
    cases.extend(images());
    cases.extend(lengths());
    cases.extend(mixes());
    cases.extend(failed_rows());
    cases.extend(resumed());
    cases
}

/// Every format, in storage order and shuffled.
fn formats() -> Vec<Case> {
    let mut cases = Vec::new();
    for format in ["jsonl", "csv", "parquet", "arrow", "tfrecord"] {
        let source = format!("source: {{ url: \"table-{format}/*\", format: {format} }}");
        let plain = format!("{source}\noperators: [ batch: {{ size: 50 }} ]");
        cases.push(case(format!("table as {format} in storage order"), plain, &[]));
        let shuffled = format!(
            "{source}\nseed: 9\nshuffle: {{ window: 200 }}\noperators: [ filter: {{ where: \"label < 5\" }}, select: {{ columns: [id, label, group] }}, batch: {{ size: 50 }} ]"
        );
        cases.push(case(format!("table as {format} shuffled and filtered"), shuffled, &["--workers", "2"]));
    }
    for format in ["jsonl", "csv", "parquet", "arrow", "tfrecord", "webdataset", "text"] {
        let pipeline = format!(
            "source: {{ url: \"text-{format}/*\", format: {format} }}\nseed: 2\nshuffle: {{ window: 100 }}\noperators: [ batch: {{ size: 32 }} ]"
        );
        cases.push(case(format!("text as {format}"), pipeline, &["--consumers", "2"]));
    }
    let formats = [
        ("tfrecord", "*", "image/encoded"),
        ("webdataset", "*", "jpg"),
        ("parquet", "*", "image"),
        ("arrow", "*", "image"),
        ("files", "*", "bytes"),
    ];
    for (format, glob, column) in formats {
        let pipeline = format!(
            "source: {{ url: \"images-{format}/{glob}\", format: {format}, features: {{ image: {column} }} }}\nseed: 3\nshuffle: {{ window: 16 }}\noperators: [ {CROP}, batch: {{ size: 8 }} ]"
        );
        cases.push(case(format!("images as {format}"), pipeline, &["--epochs", "2"]));
    }
    cases
}

/// Windows, epochs, passes, virtual consumers, remainders and order modes.
fn orders() -> Vec<Case> {
    let mut cases = Vec::new();
    let consumers: [(&str, Flags); 5] = [
        ("1 virtual consumer", &["--epochs", "2"]),
        ("2 virtual consumers", &["--epochs", "2", "--virtual-consumers", "2", "--consumers", "2"]),
        ("5 virtual consumers", &["--epochs", "2", "--virtual-consumers", "5", "--consumers", "2"]),
        (
            "5 virtual consumers on 3 workers",
            &["--epochs", "2", "--virtual-consumers", "5", "--workers", "3"],
        ),
        ("64 virtual consumers", &["--epochs", "2", "--virtual-consumers", "64"]),
    ];
    for (name, arguments) in consumers {
        for window in [0, 64, 5_000] {
            let pipeline = table(&format!("shuffle: {{ window: {window} }}"), "batch: { size: 16 }");
            cases.push(case(format!("window {window} for {name}"), pipeline, arguments));
        }
    }
    for remainder in ["emit", "drop", "carry"] {
        let operators =
            format!("filter: {{ where: \"label < 4\" }}, batch: {{ size: 50, remainder: {remainder} }}");
        let pipeline = table("shuffle: { window: 64 }", &operators);
        cases.push(case(
            format!("remainder {remainder}, filtered"),
            pipeline,
            &["--epochs", "3", "--consumers", "2"],
        ));
        let pipeline =
            table("shuffle: { window: 64 }", &format!("batch: {{ size: 48, remainder: {remainder} }}"));
        cases.push(case(format!("remainder {remainder}"), pipeline, &["--epochs", "3", "--consumers", "3"]));
    }
    cases.extend(operators());
    cases
}

fn table(head: &str, operators: &str) -> String {
    format!("{TABLE}\n{head}\noperators: [ {operators} ]")
}

/// Operators on rows of a table, caches and relaxed jobs.
fn operators() -> Vec<Case> {
    let mut cases = Vec::new();
    let repeated = "repeat: { count: 3 }, batch: { size: 11 }";
    cases.push(case(
        "repeated passes",
        table("shuffle: { window: 64 }", repeated),
        &["--epochs", "2", "--consumers", "2"],
    ));
    let limited = "wait: { ms: 0, parallelism: 2 }, burn: { cpu_us: 5, parallelism: 1 }, batch: { size: 64 }";
    cases.push(case("limited operators", table("", limited), &[]));
    let renamed =
        "rename: { columns: { number: id } }, cast: { column: number, dtype: float32 }, batch: { size: 20 }";
    cases.push(case("renamed and cast", table("shuffle: { window: 10 }", renamed), &[]));
    for tier in ["memory", "disk"] {
        let operators =
            format!("filter: {{ where: \"label < 4\" }}, cache: {{ tier: {tier} }}, batch: {{ size: 50 }}");
        let pipeline = table("shuffle: { window: 100 }", &operators);
        cases.push(case(format!("cached in {tier}"), pipeline, &["--epochs", "3", "--consumers", "2"]));
    }
    let relaxed = "order: relaxed\nshuffle: { window: 100 }";
    cases.push(case(
        "relaxed",
        table(relaxed, "batch: { size: 16 }"),
        &["--epochs", "2", "--consumers", "3"],
    ));
    let operators = "filter: { where: \"label < 4\" }, batch: { size: 16 }";
    cases.push(case(
        "relaxed and filtered",
        table(relaxed, operators),
        &["--epochs", "2", "--consumers", "2", "--workers", "2"],
    ));
    cases
}

/// Operators on images.
fn images() -> Vec<Case> {
    let source = "source: { url: \"large/*\", format: tfrecord, features: { image: image/encoded, label: image/class/label } }\nseed: 7\nshuffle: { window: 12 }";
    let operators = [
        ("random crop", "random_resized_crop: { column: image, size: [64, 48] }"),
        (
            "random crop with bounds",
            "random_resized_crop: { column: image, size: [40, 40], scale: [0.5, 0.9], ratio: [0.9, 1.2] }",
        ),
        (
            "random crop and flip",
            "random_resized_crop: { column: image, size: [64, 64] }, random_horizontal_flip: { column: image }",
        ),
        (
            "rare flip",
            "center_crop: { column: image, size: [64, 64] }, random_horizontal_flip: { column: image, p: 0.2 }",
        ),
        (
            "decoded, then cropped",
            "decode_image: { column: image }, random_resized_crop: { column: image, size: [64, 48] }",
        ),
        ("resized", "resize: { column: image, size: [50, 60] }"),
        ("center crop of a resized image", "center_crop: { column: image, size: [56, 56], resize: 64 }"),
        ("recoded", "recode_jpeg: { column: image }, random_resized_crop: { column: image, size: [64, 48] }"),
        (
            "normalized",
            "random_resized_crop: { column: image, size: [32, 32] }, normalize: { column: image, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225], layout: chw }",
        ),
        (
            "normalized as float16",
            "random_resized_crop: { column: image, size: [32, 32] }, normalize: { column: image, mean: [0.5], std: [0.25], dtype: float16 }",
        ),
        (
            "cached pixels",
            "decode_image: { column: image }, cache: { tier: memory }, random_resized_crop: { column: image, size: [64, 48] }",
        ),
    ];
    let pipeline = |operators: &str| format!("{source}\noperators: [ {operators}, batch: {{ size: 8 }} ]");
    let arguments: Flags = &["--epochs", "2", "--virtual-consumers", "2"];
    operators.map(|(name, operators)| case(format!("images, {name}"), pipeline(operators), arguments)).into()
}

/// Lists, text, buckets and packed rows.
fn lengths() -> Vec<Case> {
    let mut cases = Vec::new();
    let three: Flags = &["--epochs", "2", "--virtual-consumers", "3", "--consumers", "2"];
    for pad in ["longest", "boundary", "none"] {
        let bucket = format!(
            "  - bucket_by_length: {{ columns: [tokens], boundaries: [10, 20, 40], tokens: 160, pad: {pad}, value: -1 }}"
        );
        cases.push(case(format!("buckets padded to {pad}"), format!("{LISTS}\n{bucket}"), three));
    }
    let bucket = "  - filter: { where: \"id % 5 <> 0\" }\n  - bucket_by_length: { columns: [tokens], boundaries: [8, 32], batch_sizes: [12, 5], window: 200 }";
    let skipping = format!("on_error: skip\n{LISTS}\n{bucket}");
    cases.push(case("buckets without rows that are too long", skipping, three));
    let sized = "  - bucket_by_length: { columns: [tokens], boundaries: [8, 32], batch_sizes: [12, 5, 2], window: 250 }";
    cases.push(case(
        "buckets with sizes",
        format!("{LISTS}\n{sized}"),
        &["--virtual-consumers", "2", "--workers", "2"],
    ));
    for (name, more) in [("", ""), (" in windows", ", window: 250"), (" and truncated", ", longer: truncate")]
    {
        let length = if more.contains("truncate") { 24 } else { 64 };
        let pack = format!(
            "  - select: {{ columns: [tokens] }}\n  - pack: {{ columns: [tokens], length: {length}, size: 4{more} }}"
        );
        cases.push(case(format!("packed{name}"), format!("{LISTS}\n{pack}"), three));
    }
    let pad = "  - truncate: { column: tokens, length: 16 }\n  - pad: { column: tokens, length: 20, value: -7 }\n  - batch: { size: 30 }";
    cases.push(case("truncated and padded", format!("{LISTS}\n{pad}"), three));
    cases.push(case("ragged lists", format!("{LISTS}\n  - batch: {{ size: 30 }}"), three));
    let text = "source: { url: \"text-text/*\", format: text }\nseed: 2\nshuffle: { window: 100 }\noperators:\n  - tokenize: { column: text, tokenizer: tokenizer.json, output: ids }";
    let filtered = "  - filter: { where: \"length(ids) < 60\" }\n  - truncate: { column: ids, length: 50 }\n  - pad: { column: ids, length: 50 }\n  - batch: { size: 25 }";
    cases.push(case("tokenized", format!("{text}\n{filtered}"), &["--consumers", "2"]));
    let packed = "  - select: { columns: [ids] }\n  - pack: { columns: [ids], length: 256, size: 2 }";
    cases.push(case("tokenized and packed", format!("{text}\n{packed}"), &["--virtual-consumers", "2"]));
    cases
}

fn mix(weights: [f64; 2], stop: &str, operators: &str) -> String {
    format!(
        "source:\n  mix:\n    - {{ weight: {}, url: mix-a.txt, format: text }}\n    - {{ weight: {}, url: mix-b.jsonl, format: jsonl, features: {{ text: body }} }}\n  stop: {stop}\nseed: 3\nshuffle: {{ window: 32 }}\noperators: [ {operators} ]",
        weights[0], weights[1]
    )
}

/// Mixed data sets.
fn mixes() -> Vec<Case> {
    let mut cases = Vec::new();
    for stop in ["all", "first", "restart"] {
        for weights in [[1.0, 1.0], [5.0, 1.5]] {
            let name = format!("mix of {} and {} until {stop}", weights[0], weights[1]);
            let pipeline = mix(weights, stop, "batch: { size: 20 }");
            cases.push(case(name, pipeline, &["--epochs", "2", "--consumers", "2"]));
        }
    }
    let repeated = mix([1.0, 2.0], "restart", "repeat: { count: 2 }, batch: { size: 16, remainder: drop }");
    cases.push(case("mix repeated", repeated, &["--virtual-consumers", "5", "--workers", "2"]));
    cases
}

/// Rows that fail.
fn failed_rows() -> Vec<Case> {
    let mut cases = Vec::new();
    for on_error in ["skip", "replace"] {
        let numbers = format!(
            "on_error: {on_error}\nsource: {{ url: numbers.jsonl, format: jsonl }}\nseed: 1\nshuffle: {{ window: 50 }}\noperators: [ cast: {{ column: number, dtype: int64 }}, batch: {{ size: 16 }} ]"
        );
        cases.push(case(
            format!("{on_error} rows that are not numbers"),
            numbers,
            &["--epochs", "2", "--consumers", "2"],
        ));
        let images = format!(
            "on_error: {on_error}\nsource: {{ url: \"broken/*\", format: files, features: {{ image: bytes }} }}\nseed: 1\noperators: [ {CROP}, batch: {{ size: 5 }} ]"
        );
        cases.push(case(format!("{on_error} images that do not decode"), images, &[]));
    }
    cases
}

/// Runs that stop within an epoch and are resumed with a different number of consumers.
fn resumed() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name: &str, pipeline: String, first: Flags, second: Flags| {
        cases.push(Case { resumed: Some(second), ..case(format!("resumed {name}"), pipeline, first) });
    };
    let table = |operators: &str| format!("{TABLE}\nshuffle: {{ window: 100 }}\noperators: [ {operators} ]");
    let (two, one): (Flags, Flags) = (
        &["--virtual-consumers", "4", "--consumers", "2", "--epochs", "2", "--limit", "300"],
        &["--virtual-consumers", "4", "--consumers", "1", "--epochs", "2", "--workers", "2"],
    );
    add("table", table("batch: { size: 16 }"), two, one);
    add("filtered table", table("filter: { where: \"label < 4\" }, batch: { size: 16 }"), two, one);
    add(
        "table with a carried remainder",
        table("filter: { where: \"label < 4\" }, batch: { size: 16, remainder: carry }"),
        two,
        one,
    );
    add("repeated table", table("repeat: { count: 2 }, batch: { size: 16 }"), two, one);
    let (whole, three): (Flags, Flags) = (
        &["--virtual-consumers", "3", "--epochs", "2", "--limit", "333"],
        &["--virtual-consumers", "3", "--epochs", "2", "--consumers", "3"],
    );
    let bucket =
        "  - bucket_by_length: { columns: [tokens], boundaries: [10, 20, 40], tokens: 160, window: 250 }";
    add("buckets", format!("{LISTS}\n{bucket}"), whole, three);
    let pack = "  - select: { columns: [tokens] }\n  - pack: { columns: [tokens], length: 64, size: 4, window: 250 }";
    add("packed rows", format!("{LISTS}\n{pack}"), whole, three);
    add("mix", mix([3.0, 1.0], "restart", "batch: { size: 20 }"), whole, three);
    let images = format!(
        "source: {{ url: \"images-webdataset/*\", format: webdataset, features: {{ image: jpg }} }}\nseed: 3\nshuffle: {{ window: 16 }}\noperators: [ {CROP}, random_horizontal_flip: {{ column: image }}, batch: {{ size: 4 }} ]"
    );
    let (stopped, rest): (Flags, Flags) = (
        &["--virtual-consumers", "2", "--epochs", "2", "--limit", "20"],
        &["--virtual-consumers", "2", "--epochs", "2", "--consumers", "2"],
    );
    add("images", images, stopped, rest);
    cases
}

/// Runs with functions of the module that [`super::inputs::write_functions`] writes.
pub(crate) fn functions(python: &str) -> Vec<Case> {
    let function = |operator: &str, name: &str, more: &str| {
        format!("{operator}: {{ function: \"golden_functions:{name}\", path: [\".\"]{more} }}")
    };
    let output = |name: &str| format!(", outputs: {{ {name}: {{ dtype: int64 }} }}");
    let operators = [
        ("mapped", function("map", "double", &output("double"))),
        ("mapped with draws", function("map", "draw", &format!("{}, seeded: true", output("drawn")))),
        ("filtered by a function", function("filter_function", "even", "")),
    ];
    let cases = operators.map(|(name, operator)| {
        let pipeline =
            format!("{TABLE}\nshuffle: {{ window: 256 }}\noperators: [ {operator}, batch: {{ size: 32 }} ]");
        Case {
            python: Some(python.to_owned()),
            ..case(name, pipeline, &["--consumers", "2", "--epochs", "2"])
        }
    });
    cases.into()
}

/// Runs on the photographs in a directory.
pub(crate) fn photographs(folder: &str) -> Vec<Case> {
    let pipeline = format!(
        "source: {{ url: \"{folder}/*.JPEG\", format: files, features: {{ image: bytes }} }}\nseed: 3\nshuffle: {{ window: 100 }}\noperators: [ {CROP}, random_horizontal_flip: {{ column: image }}, batch: {{ size: 32 }} ]"
    );
    vec![case("photographs", pipeline, &["--virtual-consumers", "2"])]
}

/// Runs on the sentence pairs in a directory.
pub(crate) fn sentences(folder: &str) -> Vec<Case> {
    let text = format!(
        "source: {{ url: \"{folder}/multi30k.train.en\", format: text }}\nseed: 3\nshuffle: {{ window: 1000 }}\noperators:\n  - tokenize: {{ column: text, tokenizer: tokenizer.json, output: ids }}\n  - select: {{ columns: [ids] }}"
    );
    let bucket =
        "  - bucket_by_length: { columns: [ids], boundaries: [32, 64, 128], batch_sizes: [64, 32, 16, 8] }";
    let padded = "  - truncate: { column: ids, length: 64 }\n  - pad: { column: ids, length: 64 }\n  - batch: { size: 64 }";
    vec![
        case("sentences padded", format!("{text}\n{padded}"), &["--virtual-consumers", "2"]),
        case("sentences in buckets", format!("{text}\n{bucket}"), &["--virtual-consumers", "3"]),
    ]
}
