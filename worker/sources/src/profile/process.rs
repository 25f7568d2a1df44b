//! Runs the `credential_process` of a profile. The command is part of the user's own configuration; no pipeline can set it.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use feedline_common::child_processes::start_child;
use object_store::aws::AwsCredential;
use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use super::credential::ExpiringCredential;

/// Time limit of the command.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Number of runs of a command that fails, and the pause between them.
const ATTEMPTS: u32 = 3;
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Maximum size of the output in bytes.
const MAX_OUTPUT_BYTES: u64 = 64 << 10;

/// Runs the command until it succeeds, up to [`ATTEMPTS`] times.
///
/// # Errors
/// Returns the message of the last run.
pub(super) async fn run_with_retries(command: &str) -> Result<ExpiringCredential, String> {
    let mut result = run(command).await;
    for _ in 1..ATTEMPTS {
        if result.is_ok() {
            break;
        }
        sleep(RETRY_PAUSE).await;
        result = run(command).await;
    }
    result
}

/// Runs the command, and returns the credentials that it prints.
///
/// # Errors
/// Returns a message that contains neither the command's arguments nor its output.
async fn run(command: &str) -> Result<ExpiringCredential, String> {
    let words = split_words(command)?;
    let Some((program, arguments)) = words.split_first() else {
        return Err("credential_process is empty: write a command".to_owned());
    };
    let output = timeout(TIME_LIMIT, output_of(program, arguments))
        .await
        .unwrap_or_else(|_| Err(format!("it did not exit within {} s", TIME_LIMIT.as_secs())));
    let output = output.and_then(|output| parse(&output));
    output.map_err(|reason| format!("credential_process `{program}` failed: {reason}"))
}

async fn output_of(program: &str, arguments: &[String]) -> Result<Vec<u8>, String> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let start = || {
        let process = command.spawn()?;
        let id = process.id().unwrap_or_default();
        Ok((process, id))
    };
    let (mut process, _registration) =
        start_child(start).map_err(|error: std::io::Error| error.to_string())?;
    let stdout = process.stdout.take().ok_or("its output cannot be read")?;
    let mut output = Vec::new();
    stdout.take(MAX_OUTPUT_BYTES + 1).read_to_end(&mut output).await.map_err(|error| error.to_string())?;
    if output.len() as u64 > MAX_OUTPUT_BYTES {
        return Err(format!("it printed more than {MAX_OUTPUT_BYTES} bytes"));
    }
    let status = process.wait().await.map_err(|error| error.to_string())?;
    if status.success() { Ok(output) } else { Err(format!("{status}; run it yourself to see its messages")) }
}

/// Parses the output of the command.
fn parse(output: &[u8]) -> Result<ExpiringCredential, String> {
    let invalid =
        |part: &str| format!("its output has {part}; expected the JSON object of `credential_process`");
    let json: Value = serde_json::from_slice(output).map_err(|_| invalid("invalid JSON"))?;
    if json["Version"] != 1 {
        return Err(invalid("a `Version` other than 1"));
    }
    let text = |key: &str| json[key].as_str().map(str::to_owned);
    let key_id = text("AccessKeyId").ok_or_else(|| invalid("no text in `AccessKeyId`"))?;
    let secret_key = text("SecretAccessKey").ok_or_else(|| invalid("no text in `SecretAccessKey`"))?;
    let expires_at = match text("Expiration") {
        Some(time) => Some(parse_time(&time).ok_or_else(|| invalid("an invalid time in `Expiration`"))?),
        None => None,
    };
    let credential = Arc::new(AwsCredential { key_id, secret_key, token: text("SessionToken") });
    Ok(ExpiringCredential { credential, expires_at })
}

/// Parses a time such as `2026-01-01T00:00:00Z`.
pub(super) fn parse_time(text: &str) -> Option<SystemTime> {
    chrono::DateTime::parse_from_rfc3339(text).ok().map(SystemTime::from)
}

/// Splits a command into words at spaces outside of quotes. No other characters have a meaning.
fn split_words(command: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for character in command.chars() {
        match (quote, character) {
            (Some(open), close) if open == close => quote = None,
            (None, '"' | '\'') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, ' ' | '\t') => words.extend(word.take()),
            _ => word.get_or_insert_default().push(character),
        }
    }
    if quote.is_some() {
        return Err("credential_process has a quote without an end: add the quote".to_owned());
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_outside_of_quotes() {
        let words = |text: &str| split_words(text).unwrap();
        assert_eq!(words("a  'b c' \"d'e\" f\"g h\""), ["a", "b c", "d'e", "fg h"]);
        assert_eq!(words("a ''"), ["a", ""]);
        assert!(words("  ").is_empty());
        assert!(split_words("a 'b").is_err());
    }

    #[tokio::test]
    async fn a_command_prints_credentials_that_expire() {
        let output = r#"{"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "S", "SessionToken": "T", "Expiration": "2020-01-01T00:00:00Z"}"#;
        let found = run(&format!("echo '{output}'")).await.unwrap();
        assert_eq!((found.credential.key_id.as_str(), found.credential.token.as_deref()), ("A", Some("T")));
        assert!(found.expires_within(Duration::ZERO));
    }

    #[tokio::test]
    async fn a_command_that_fails_is_run_again() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("get");
        let path = folder.path().display();
        let output = r#"{"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "S"}"#;
        let text = format!("test -f {path}/second && echo '{output}' && exit\ntouch {path}/second; exit 1\n");
        std::fs::write(&script, text).unwrap();
        let found = run_with_retries(&format!("sh {}", script.display())).await.unwrap();
        assert_eq!(found.credential.key_id, "A");
        assert!(run_with_retries("sh -c 'exit 3'").await.is_err());
    }

    #[tokio::test]
    async fn failures_are_one_sentence_without_secrets() {
        for (command, part) in [
            ("echo HUSH", "`echo` failed: its output has invalid JSON"),
            ("echo '{\"Version\": 2}'", "`Version` other than 1"),
            ("echo '{\"Version\": 1, \"AccessKeyId\": \"HUSH\"}'", "`SecretAccessKey`"),
            ("sh -c 'exit 3' HUSH", "exit status: 3"),
            ("/nowhere/program HUSH", "No such file"),
            ("head -c 70000 /dev/zero", "more than 65536 bytes"),
        ] {
            let error = run(command).await.err().unwrap();
            assert!(error.contains(part) && !error.contains("HUSH"), "{error}");
        }
    }
}
