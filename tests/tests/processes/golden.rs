//! Golden files: runs deliver the same data as commit ef04d0d. Rows, their order, the batches of every virtual
//! consumer, skipped rows and positions are compared, through the binary alone.
//!
//! `UPDATE_EXPECT=1 cargo test -p feedline-tests --test processes golden` writes the files anew. They change only where a change of
//! results is intended.

mod cases;
mod inputs;
mod outcome;

use std::sync::atomic::{AtomicUsize, Ordering};

use expect_test::{ExpectFile, expect_file};
use feedline_tests::{Scratch, data};

use self::cases::Case;
use self::outcome::run_case;

/// Runs the cases on all cores and compares their lines with the golden file.
fn check(scratch: &Scratch, cases: &[Case], golden: &ExpectFile) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut lines = Vec::new();
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            lines.extend(run_case(scratch, case));
        }
        lines
    };
    let mut lines: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("every run succeeds")).collect()
    });
    lines.sort();
    golden.assert_eq(&(lines.join("\n") + "\n"));
}

#[test]
fn runs_on_generated_data_deliver_the_golden_rows() {
    let scratch = Scratch::new();
    inputs::generate(&scratch);
    check(&scratch, &cases::generated(), &expect_file!["../golden/ef04d0d/runs.txt"]);
}

#[test]
fn runs_with_python_functions_deliver_the_golden_rows() {
    let Some(python) = data::python("golden rows of Python functions") else { return };
    let scratch = Scratch::new();
    inputs::generate_tables(&scratch);
    inputs::write_functions(&scratch);
    let python = python.to_str().expect("the path is text");
    check(&scratch, &cases::functions(python), &expect_file!["../golden/ef04d0d/functions.txt"]);
}

#[test]
fn runs_on_photographs_deliver_the_golden_rows() {
    let Some(photographs) = data::photographs("golden rows of photographs") else { return };
    let scratch = Scratch::new();
    let url = photographs.to_str().expect("the path is text");
    check(&scratch, &cases::photographs(url), &expect_file!["../golden/ef04d0d/photographs.txt"]);
}

#[test]
fn runs_on_sentences_deliver_the_golden_rows() {
    let Some(sentences) = data::sentences("golden rows of sentence pairs") else { return };
    let scratch = Scratch::new();
    inputs::write_tokenizer(&scratch);
    let url = sentences.to_str().expect("the path is text");
    check(&scratch, &cases::sentences(url), &expect_file!["../golden/ef04d0d/sentences.txt"]);
}
