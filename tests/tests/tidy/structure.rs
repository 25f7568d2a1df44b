//! Names of types, imports and phrases: what the code has of each fault may only become less.

use std::collections::BTreeMap;

use feedline_tests::root;
use feedline_tests::source::checkout::Checkout;
use feedline_tests::source::cycles::{file_cycles, package_cycles};
use feedline_tests::source::dialect::dialect;
use feedline_tests::source::imports::imports;
use feedline_tests::source::names::homonyms;
use feedline_tests::source::product::Product;

use super::ratchet::{Update, hold};

/// Names that several types may share, with the reason; at most ten.
const SHARED_NAMES: [(&str, &str); 0] = [];
/// Files that may import each other, with the reason; the files are sorted and separated by spaces.
const ALLOWED_CYCLES: [(&str, &str); 0] = [];

#[test]
fn no_two_types_share_a_name() {
    const { assert!(SHARED_NAMES.len() <= 10, "at most ten names may be shared") };
    let mut found = homonyms(&product());
    for (name, reason) in SHARED_NAMES {
        assert!(
            found.remove(name).is_some(),
            "no two types are named {name} ({reason}): remove the exception"
        );
    }
    for (name, places) in &found {
        println!("{name}: {}", places.join(" "));
    }
    let counts = found.into_iter().map(|(name, places)| (name, places.len())).collect();
    hold(
        "shared-names.txt",
        &counts,
        Update::EachKey,
        "give each type a name that says what it is without its module",
    );
}

#[test]
fn files_do_not_import_each_other() {
    let product = product();
    let imports = imports(&product);
    assert_eq!(package_cycles(&product, &imports), Vec::<Vec<String>>::new(), "crates import each other");
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for cycle in file_cycles(&product, &imports) {
        for import in &cycle.imports {
            println!("{}:{} names {} of {}", import.from, import.import.line, import.import.path, import.to);
        }
        counts.insert(cycle.files.join(" "), cycle.files.len());
    }
    for (files, reason) in ALLOWED_CYCLES {
        assert!(counts.remove(files).is_some(), "no cycle is {files} ({reason}): remove the exception");
    }
    hold(
        "cycles.txt",
        &counts,
        Update::Sum,
        "move what both files need to a third, or list the cycle in ALLOWED_CYCLES with its reason",
    );
}

#[test]
fn the_old_dialect_becomes_less() {
    let found = dialect(&checkout()).expect("the sources can be read");
    for hit in found.values().flatten() {
        println!("{}: `{}`; write: {}", hit.place, hit.phrase, hit.advice);
    }
    let counts = found.into_iter().map(|(package, hits)| (package, hits.len())).collect();
    hold("dialect.txt", &counts, Update::Sum, "rewrite the phrases that are printed above");
}

fn checkout() -> Checkout {
    Checkout::read(&root()).expect("git and cargo list the checkout")
}

fn product() -> Product {
    Product::parse(checkout()).expect("the sources can be parsed")
}
