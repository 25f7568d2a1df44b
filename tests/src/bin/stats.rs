//! Prints metrics of the structure of the code; `--help` has the counting rules.

use std::path::{Path, PathBuf};

use clap::Parser;
use feedline_tests::source::checkout::Checkout;
use feedline_tests::source::cycles::{Cycle, file_cycles, package_cycles};
use feedline_tests::source::functions::function_lengths;
use feedline_tests::source::imports::{Imports, imports};
use feedline_tests::source::lines::{LineCount, Spread, file_lengths, lines_by_package};
use feedline_tests::source::names::homonyms;
use feedline_tests::source::product::Product;
use feedline_tests::source::touched::{ADDITIONS, touched};

const RULES: &str = "Counting rules:
  lines      All lines of Rust files that git tracks or would add, with comments and blank lines. Product code is what
             a library, binary or build script reaches through `mod`, outside the test crate. Test code is the rest:
             items under #[test], #[cfg(test)] and #[cfg(all(test, ...))], files of test modules, tests/, benches/,
             examples/ and fuzz/.
  files      Lines of product files, without their inline tests.
  functions  Lines of product functions from the first line of the signature to the closing brace, without attributes
             and comments above. Closures count in the function around them. Percentiles take the nearest rank.
  cycles     An import is a path in one file that names an item of another, without `mod`, `pub use` (of any
             visibility) and tests. `use` trees, paths in code, in macro arguments and in serde's attributes count.
             Re-exports and globs are followed to the file that defines the item. Method calls and paths to a module
             alone do not count. A cycle is a strongly connected component of more than one file. It lies within a
             directory if each file is in that directory directly or is its module file (`a.rs` beside `a/`).
  names      Names that two or more structs, enums, unions, traits or aliases have which are pub, pub(crate),
             pub(super) or pub(in ...). Generated types do not count.
  touched    Files of `git show --stat COMMIT` outside tests, test data, benches, fuzz, docs, examples, *.md and lock
             files. Without arguments: commits with a trailer `Adds: operator | rpc | format | flag`.";

/// Measure the structure of a checkout.
#[derive(Parser)]
#[command(after_help = RULES)]
struct Arguments {
    /// The checkout to measure.
    #[arg(long, default_value = ".")]
    root: PathBuf,
    /// Print every import inside a cycle.
    #[arg(long)]
    imports: bool,
    /// Additions whose files are counted: KIND=COMMIT with the kinds operator, rpc, format and flag.
    additions: Vec<String>,
}

fn main() -> Result<(), String> {
    let arguments = Arguments::parse();
    let product = Product::parse(Checkout::read(&arguments.root)?)?;
    print_lines(&product);
    print_lengths(&product);
    let imports = imports(&product);
    print_cycles(&product, &imports, arguments.imports);
    print_names(&product);
    print_touched(&arguments.root, &arguments.additions)?;
    println!("\ngolden rows, order, digests, positions: cargo test --workspace golden");
    println!("mutants caught: make mutants SEED=1");
    println!("language samples: make language-sample SEED=1, judged by two readers");
    println!("CPU seconds per row: make kernels, make speed");
    Ok(())
}

fn print_lines(product: &Product) {
    println!("{:24} {:>8} {:>8} {:>7}", "Rust lines", "product", "test", "test %");
    let print = |name: &str, count: LineCount| {
        println!("  {name:22} {:8} {:8} {:7.1}", count.product, count.test, count.test_percent());
    };
    let mut all = LineCount::default();
    for (package, count) in lines_by_package(product) {
        print(&package, count);
        all.product += count.product;
        all.test += count.test;
    }
    print("all", all);
}

fn print_lengths(product: &Product) {
    println!(
        "\n{:24} {:>8} {:>8} {:>7} {:>7} {:>7}",
        "length in lines", "count", "median", "p90", "p99", "max"
    );
    let print = |name: &str, values: Vec<usize>| {
        let (count, Spread { median, p90, p99, max }) = (values.len(), Spread::of(values));
        println!("  {name:22} {count:8} {median:8} {p90:7} {p99:7} {max:7}");
    };
    let files = file_lengths(product);
    let functions = function_lengths(product);
    print("files", files.iter().map(|(lines, _)| *lines).collect());
    print("functions", functions.iter().map(|function| function.lines).collect());
    if let Some((lines, path)) = files.iter().max() {
        println!("  longest file: {path} ({lines})");
    }
    if let Some(longest) = functions.iter().max_by_key(|function| function.lines) {
        println!("  longest function: {} at {} ({})", longest.name, longest.place, longest.lines);
    }
}

fn print_cycles(product: &Product, imports: &Imports, with_imports: bool) {
    let cycles = file_cycles(product, imports);
    let (within, across): (Vec<&Cycle>, Vec<&Cycle>) =
        cycles.iter().partition(|cycle| cycle.folder().is_some());
    println!("\nimports between files: {}", imports.len());
    println!("import cycles between files: {}", cycles.len());
    for (title, cycles) in [("across directories", across), ("within one directory", within)] {
        let files: usize = cycles.iter().map(|cycle| cycle.files.len()).sum();
        println!("  {title}: {} cycles of {files} files", cycles.len());
        for cycle in cycles {
            println!(
                "    {} files, {} imports: {}",
                cycle.files.len(),
                cycle.imports.len(),
                cycle.files.join(" ")
            );
            for import in cycle.imports.iter().filter(|_| with_imports) {
                let (line, path) = (import.import.line, &import.import.path);
                println!("      {}:{line} names {path} of {}", import.from, import.to);
            }
        }
    }
    let packages = package_cycles(product, imports);
    println!("import cycles between crates: {}", packages.len());
    for cycle in packages {
        println!("    {}", cycle.join(" "));
    }
}

fn print_names(product: &Product) {
    let homonyms = homonyms(product);
    let types: usize = homonyms.values().map(Vec::len).sum();
    println!("\nnames that several visible types have: {} of {types} types", homonyms.len());
    for (name, places) in homonyms {
        println!("    {name}: {}", places.join(" "));
    }
}

fn print_touched(root: &Path, additions: &[String]) -> Result<(), String> {
    println!("\nfiles touched by an addition");
    let touched = touched(root, additions)?;
    for (kind, most) in ADDITIONS {
        let commits: Vec<_> = touched.iter().filter(|touched| touched.kind == kind).collect();
        if commits.is_empty() {
            println!("  {kind}: no commit (target {most}); name one with TOUCHED=\"{kind}=COMMIT\"");
        }
        for touched in commits {
            println!("  {kind}: {} in {} (target {most})", touched.files.len(), touched.commit);
            for file in &touched.files {
                println!("    {file}");
            }
        }
    }
    Ok(())
}
