//! Tests of the text form of pipelines.

use expect_test::expect;
use proptest::prelude::*;

use crate::pipeline::strategies::pipelines;
use crate::pipeline::{OnError, OrderMode, Pipeline, Source};
use crate::schema::ScalarType;

#[test]
fn an_image_pipeline() {
    let pipeline = Pipeline::builder("imagenet-train")
        .source(
            Source::tfrecord("data/*.tfrecord")
                .feature("image", "image/encoded")
                .feature("label", "image/class/label"),
        )
        .seed(7)
        .shuffle(4096)
        .random_resized_crop("image", [224, 224])
        .parallelism(4)
        .random_horizontal_flip("image")
        .normalize("image", [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
        .batch(128);
    expect![[r#"
        pipeline imagenet-train
              source                  tfrecord data/*.tfrecord (image <- image/encoded, label <- image/class/label)
              order                   deterministic, shuffle window 4096, seed 7, on error fail
           1  random_resized_crop     image to 224x224, scale 0.0800 to 1.0000, ratio 0.7500 to 1.3333, parallelism 4
           2  random_horizontal_flip  image, p 0.5
           3  normalize               image to float32 hwc, mean [0.485, 0.456, 0.406], std [0.229, 0.224, 0.225]
           4  batch                   128 rows, remainder emit
    "#]].assert_eq(&pipeline.build().unwrap().render());
}

#[test]
fn every_other_operator() {
    let pipeline = Pipeline::builder("rest")
        .source(Source::parquet("a/").with_url("s3://b/c/"))
        .order(OrderMode::Relaxed)
        .on_error(OnError::Skip)
        .decode_image("image")
        .resize("image", [8, 8])
        .center_crop("image", [6, 4])
        .cast("label", ScalarType::Int64)
        .rename([("y", "label")])
        .select(["image", "y"])
        .filter("y > 0\n  AND y < 9")
        .tokenize("text", "t.json")
        .truncate("text", 9)
        .pad("text", 9)
        .repeat(2)
        .burn(1)
        .wait(1)
        .wait(2)
        .batch(4);
    expect![[r#"
        pipeline rest
              source        parquet a/, s3://b/c/
              order         relaxed, storage order, seed 0, on error skip
           1  decode_image  image
           2  resize        image to 8x8
           3  center_crop   image to 6x4
           4  cast          label to int64
           5  rename        y <- label
           6  select        image, y
           7  filter        where y > 0 AND y < 9
           8  tokenize      text with t.json
           9  truncate      text to 9
          10  pad           text to 9 with 0
          11  repeat        2 passes
          12  burn          1 us of CPU per row
          13  wait          1 ms per row
          14  wait#2        2 ms per row
          15  batch         4 rows, remainder emit
    "#]]
    .assert_eq(&pipeline.build().unwrap().render());
}

proptest! {
    #[test]
    fn one_line_per_operator(pipeline in pipelines()) {
        prop_assert_eq!(pipeline.render().lines().count(), pipeline.operators.len() + 3, "{}", pipeline.render());
    }
}
