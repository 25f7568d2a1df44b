//! The embedded mode through the library: what a pipeline's batches hold.

use feedline_tests::{Scratch, embedded};

#[test]
fn lines_come_in_storage_order_in_batches_of_the_right_size() {
    let scratch = Scratch::new();
    let lines: Vec<String> = (0..1000).map(|number| format!("line {number}")).collect();
    let file = scratch.write("lines.txt", &lines.join("\n"));
    let pipeline =
        format!("name: lines\nsource: {{ url: {file}, format: text }}\noperators: [ batch: {{ size: 64 }} ]");
    let (mut sizes, mut found) = (Vec::new(), Vec::new());
    embedded::for_each_batch(scratch.path(), &pipeline, |records| {
        sizes.push(records.num_rows());
        found.extend(embedded::texts(records, "text"));
    });
    assert_eq!(found, lines);
    assert_eq!(sizes.len(), 16);
    assert!(sizes[..15].iter().all(|&size| size == 64));
}
