//! The tokens that belong to the ids of a `tokenize` operator, from its `tokenizer.json`.

use std::collections::HashMap;

use serde_json::Value;

/// Returns the token of each id. Returns no tokens if the file has another form.
pub(crate) fn of_tokenizer(file: &[u8]) -> HashMap<u64, String> {
    let Ok(json) = serde_json::from_slice::<Value>(file) else { return HashMap::new() };
    let mut tokens = HashMap::new();
    match &json["model"]["vocab"] {
        Value::Object(vocab) => {
            tokens.extend(vocab.iter().filter_map(|(token, id)| Some((id.as_u64()?, readable(token)))));
        }
        // A Unigram model lists pairs of a token and its score.
        Value::Array(vocab) => {
            let token = |pair: &Value| pair[0].as_str().map(readable);
            tokens.extend((0..).zip(vocab).filter_map(|(id, pair)| Some((id, token(pair)?))));
        }
        _ => {}
    }
    for added in json["added_tokens"].as_array().into_iter().flatten() {
        if let (Some(id), Some(token)) = (added["id"].as_u64(), added["content"].as_str()) {
            tokens.insert(id, token.to_owned());
        }
    }
    tokens
}

/// Replaces the characters with which byte-level BPE and SentencePiece represent a space and a line break.
fn readable(token: &str) -> String {
    token.replace(['\u{120}', '\u{2581}'], " ").replace('\u{10a}', "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vocabularies_of_each_model_are_read() {
        let bpe = br#"{"model": {"vocab": {"\u0120the": 5, "a": 1}}, "added_tokens": [{"id": 9, "content": "<eos>"}]}"#;
        let tokens = of_tokenizer(bpe);
        assert_eq!((tokens[&5].as_str(), tokens[&1].as_str(), tokens[&9].as_str()), (" the", "a", "<eos>"));
        let unigram = of_tokenizer(r#"{"model": {"vocab": [["<unk>", 0], ["▁a", -1.5]]}}"#.as_bytes());
        assert_eq!(unigram[&1], " a");
        assert!(of_tokenizer(b"[]").is_empty() && of_tokenizer(b"{").is_empty());
    }
}
