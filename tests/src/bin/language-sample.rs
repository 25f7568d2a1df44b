//! Prints a sample of the language of the code and the documents, chosen by seed.

use std::path::PathBuf;

use clap::Parser;
use feedline_tests::source::checkout::Checkout;
use feedline_tests::source::product::Product;
use feedline_tests::source::sample::sample;

/// Print 40 identifiers, 20 messages, 20 comments and 10 paragraphs of a checkout, chosen by seed.
#[derive(Parser)]
struct Arguments {
    /// The seed; the sample depends on it and on the files alone.
    seed: u64,
    /// The checkout to sample.
    #[arg(long, default_value = ".")]
    root: PathBuf,
}

fn main() -> Result<(), String> {
    let arguments = Arguments::parse();
    let product = Product::parse(Checkout::read(&arguments.root)?)?;
    println!("{}", sample(&product, arguments.seed)?);
    Ok(())
}
