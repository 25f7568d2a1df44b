//! Text: sentence pairs are tokenized, filtered by length, padded and batched. The tokens equal those of the Python package
//! `tokenizers`.

use std::path::Path;
use std::process::Command;

use feedline_tests::{Scratch, assert_clean, data};
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, TokenizerBuilder};

/// Trains a byte-level BPE tokenizer on a file and saves it as Hugging Face's `tokenizer.json`.
fn train_tokenizer(text: &Path, file: &str) {
    let mut trainer = BpeTrainerBuilder::new()
        .show_progress(false)
        .vocab_size(4000)
        .special_tokens(vec![AddedToken::from("<unk>", true)])
        .build();
    let mut tokenizer = TokenizerBuilder::new()
        .with_model(BPE::default())
        .with_normalizer(Some(NFC))
        .with_pre_tokenizer(Some(ByteLevel::default()))
        .with_post_processor(Some(ByteLevel::default()))
        .with_decoder(Some(ByteLevel::default()))
        .build()
        .expect("every part is given");
    let files = vec![text.to_str().expect("the path is text").to_owned()];
    tokenizer.train_from_files(&mut trainer, files).expect("the text is readable");
    tokenizer.save(file, false).expect("the scratch directory is writable");
}

#[test]
fn sentence_pairs_become_padded_batches() {
    let Some(sentences) = data::sentences("tokenising sentence pairs") else { return };
    let scratch = Scratch::new();
    let tokenizer = scratch.file("tokenizer.json");
    train_tokenizer(&sentences.join("multi30k.train.en"), &tokenizer);
    let from = sentences.to_str().expect("the path is text").to_owned();
    scratch.make_data("text", "pairs", &["--format", "jsonl", "--from", &from]);
    let operators = |column: &str| {
        format!(
            "operators:
  - tokenize: {{ column: {column}, tokenizer: {tokenizer}, output: tokens }}
  - filter: {{ where: \"length(tokens) <= 24\" }}
  - pad: {{ column: tokens, length: 24 }}
  - select: {{ columns: [tokens] }}
  - batch: {{ size: 64 }}
"
        )
    };
    let jsonl = format!(
        "name: pairs\nsource: {{ url: \"{}/*\", format: jsonl }}\nseed: 2\nshuffle: {{ window: 4096 }}\n{}",
        scratch.file("pairs"),
        operators("en")
    );
    let jsonl = scratch.write("jsonl.yaml", &jsonl);
    let text = format!(
        "name: lines\nsource: {{ url: \"{from}/multi30k.train.en\", format: text }}\nseed: 2\nshuffle: {{ window: 4096 }}\n{}",
        operators("text")
    );
    let text = scratch.write("text.yaml", &text);
    let one = scratch.run(&jsonl, &["--workers", "1"]);
    let two = scratch.run(&jsonl, &["--workers", "2"]);
    let lines = scratch.run(&text, &["--workers", "2"]);
    for report in [&one, &two, &lines] {
        assert_clean(report);
        assert_eq!(report["audit"]["expected"], 29_000);
    }
    assert_eq!(one["digest"], two["digest"]);
    // Another format has other blocks, so the order differs, but the rows are equal.
    assert_eq!(one["content_digest"], lines["content_digest"]);
    let rows = one["rows"].as_u64().expect("a count");
    assert!((20_000..29_000).contains(&rows), "{rows} rows are short enough");
}

const REFERENCE: &str = "
import json, sys
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[1])
lines = open(sys.argv[2], encoding='utf-8', newline='\\n').read().split('\\n')[:1000]
json.dump([tokenizer.encode(line).ids for line in lines], sys.stdout)
";

#[test]
fn tokens_equal_those_of_the_python_package() {
    let Some(sentences) = data::sentences("comparing tokens") else { return };
    let Some(python) = data::python("comparing tokens with Python") else { return };
    let scratch = Scratch::new();
    let file = scratch.file("tokenizer.json");
    let text = sentences.join("multi30k.train.de");
    train_tokenizer(&text, &file);
    let output =
        Command::new(python).args(["-c", REFERENCE, &file]).arg(&text).output().expect("Python starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected: Vec<Vec<i32>> = serde_json::from_slice(&output.stdout).expect("the script prints JSON");
    let found = feedline_tokens(&scratch, &file, &text);
    assert_eq!(expected.len(), 1000);
    assert_eq!(found[..1000], expected);
}

/// Returns the tokens of each line of a file from the client library with embedded roles.
fn feedline_tokens(scratch: &Scratch, tokenizer: &str, text: &Path) -> Vec<Vec<i32>> {
    let pipeline = format!(
        "name: lines\nsource: {{ url: {}, format: text }}\noperators:\n  - tokenize: {{ column: text, tokenizer: {tokenizer} }}\n  - batch: {{ size: 100 }}\n",
        text.display()
    );
    let mut lines = Vec::new();
    feedline_tests::embedded::for_each_batch(scratch.path(), &pipeline, |records| {
        lines.extend(feedline_tests::embedded::int_lists(records, "text"));
    });
    lines
}
