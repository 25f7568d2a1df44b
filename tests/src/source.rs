//! The source code of a checkout, as the statistics and the tidiness tests read it: files, modules, imports, names.
//!
//! Test code is everything that no library, binary or build script of the product reaches: files of test targets,
//! benches, examples and fuzzers, the test crate, and items under `#[cfg(test)]`. Everything else is product code.

pub mod checkout;
pub mod cycles;
pub mod dialect;
pub mod functions;
pub mod imports;
pub mod lines;
pub mod modules;
pub mod names;
pub mod product;
pub mod prose;
pub mod random;
pub mod sample;
pub mod touched;
pub mod uses;

/// Returns a checkout that contains one crate, `one`, with these files.
#[cfg(test)]
fn one_crate(files: &[(&str, &str)]) -> product::Product {
    let target = checkout::Target::library("one", "one/src/lib.rs");
    let files = files.iter().map(|(path, text)| (format!("one/src/{path}"), (*text).to_owned())).collect();
    product::Product::parse(checkout::Checkout { files, targets: vec![target] }).unwrap()
}
