//! Checks of shared type names, import cycles and phrases.

use std::collections::BTreeSet;

use feedline_tests::root;
use feedline_tests::source::checkout::Checkout;
use feedline_tests::source::cycles::{file_cycles, package_cycles};
use feedline_tests::source::dialect::dialect;
use feedline_tests::source::imports::imports;
use feedline_tests::source::names::homonyms;
use feedline_tests::source::product::Product;

use super::reasons::check_reasons;
use super::refuse;

/// The most names that several types may share. `shared-names.txt` lists them with their reasons.
const MAX_SHARED_NAMES: usize = 10;

#[test]
fn types_share_a_name_only_for_a_reason() {
    let found = homonyms(&product());
    for (name, places) in &found {
        println!("{name}: {}", places.join(" "));
    }
    assert!(found.len() <= MAX_SHARED_NAMES, "more than {MAX_SHARED_NAMES} names are shared: rename a type");
    check_reasons(
        "shared-names.txt",
        &found.into_keys().collect(),
        "give each type a name that describes it without its module, or add the name with a reason",
    );
}

#[test]
fn files_import_each_other_only_for_a_reason() {
    let product = product();
    let imports = imports(&product);
    assert_eq!(package_cycles(&product, &imports), Vec::<Vec<String>>::new(), "crates import each other");
    let mut found = BTreeSet::new();
    for cycle in file_cycles(&product, &imports) {
        for import in &cycle.imports {
            println!(
                "{}:{} imports {} of {}",
                import.from, import.import.line, import.import.path, import.to
            );
        }
        found.insert(cycle.files.join(" "));
    }
    check_reasons(
        "cycles.txt",
        &found,
        "move what both files need to a third file, or add the cycle with a reason",
    );
}

#[test]
fn phrases_of_the_old_dialect_are_rejected() {
    let found = dialect(&checkout()).expect("the sources can be read");
    let hits = found.into_values().flatten();
    refuse(
        hits.map(|hit| format!("{}: `{}`; write: {}", hit.place, hit.phrase, hit.advice)),
        "rewrite these phrases",
    );
}

fn checkout() -> Checkout {
    Checkout::read(&root()).expect("git and cargo list the checkout")
}

fn product() -> Product {
    Product::parse(checkout()).expect("the sources can be parsed")
}
