//! Tests of the names of files in the cache.

use super::*;

#[test]
fn names_are_converted_like_those_of_datasets() {
    for (name, snake) in [
        ("json", "json"),
        ("MyData", "my_data"),
        ("HTMLPages2Go", "html_pages2_go"),
        ("a-b", "a-b"),
        ("", ""),
    ] {
        assert_eq!(snake_case(name), snake);
    }
}

#[test]
fn the_files_of_a_split_are_named() {
    let info = serde_json::json!({
        "builder_name": "json",
        "dataset_name": "MyData",
        "splits": {
            "train": {"shard_lengths": [5, 6]},
            "test": {"dataset_name": "other"},
            "huge": {"shard_lengths": vec![1; MAX_SHARDS + 1]}
        }
    });
    let names = |split| cached_names(&info, split);
    assert_eq!(
        names("train").unwrap(),
        ["my_data-train-00000-of-00002.arrow", "my_data-train-00001-of-00002.arrow"]
    );
    assert_eq!(names("test").unwrap(), ["other-test.arrow"]);
    assert!(names("huge").is_none() && names("none").is_none());
}
