//! The termination message of a container: the error with which the process ends, which `kubectl describe pod` shows.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use clap::error::ErrorKind;
use rustix::process::getpid;

use crate::environment;

/// The file that the kubelet reads after a container has ended. Kubernetes limits the message to 4,096 bytes.
const MESSAGE_FILE: &str = "/dev/termination-log";
const MAX_MESSAGE_BYTES: usize = 4096;

/// Writes the termination message, if this is the first process of a container in Kubernetes. A command that runs in the
/// container of a role, such as `kubectl exec`, does not replace the message of the role.
pub(crate) fn write_termination_message(message: &str) {
    if environment::is_in_kubernetes() && getpid().is_init() {
        write_to(Path::new(MESSAGE_FILE), message);
    }
}

/// Returns an error of the command line as one sentence: its first paragraph without the usage. Standard error has all of it.
pub(crate) fn usage_error_sentence(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "the command line has no command or lacks a required argument".to_owned();
    }
    let text = error.to_string();
    let paragraph = text.lines().map(str::trim).take_while(|line| !line.is_empty());
    let mut sentence = String::new();
    let mut is_list = false;
    for line in paragraph {
        if sentence.is_empty() {
            line.strip_prefix("error: ").unwrap_or(line).clone_into(&mut sentence);
            continue;
        }
        // A list of missing flags has one flag in a line.
        let is_first_item = sentence.ends_with(':');
        sentence.push_str(if is_list { ", " } else { " " });
        sentence.push_str(line);
        is_list |= is_first_item;
    }
    sentence
}

/// Replaces the contents of a file that exists. The message is also on standard error, so an error is ignored.
fn write_to(file: &Path, message: &str) {
    let end = message.floor_char_boundary(MAX_MESSAGE_BYTES);
    let opened = OpenOptions::new().write(true).truncate(true).open(file);
    if let Err(error) = opened.and_then(|mut file| file.write_all(&message.as_bytes()[..end])) {
        tracing::debug!(file = %file.display(), %error, "cannot write the termination message");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::{Arg, ColorChoice, Command, value_parser};

    use super::*;

    #[test]
    fn the_message_replaces_the_contents_of_an_existing_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("termination-log");
        write_to(&file, "not written");
        assert!(!file.exists(), "the kubelet creates the file");
        fs::write(&file, "a longer message of an earlier process").unwrap();
        write_to(&file, "cannot listen on 0.0.0.0:7070");
        assert_eq!(fs::read_to_string(&file).unwrap(), "cannot listen on 0.0.0.0:7070");
    }

    fn sentence(args: &[&str]) -> String {
        let command = Command::new("feedline")
            .color(ColorChoice::Always)
            .arg(Arg::new("cache").long("cache").value_parser(["on", "off"]))
            .arg(Arg::new("url").long("url").required(true))
            .arg(Arg::new("size").long("size").required(true).value_parser(value_parser!(u32)));
        let all = [&["feedline"][..], args].concat();
        usage_error_sentence(&command.try_get_matches_from(all).expect_err("the arguments are invalid"))
    }

    #[test]
    fn an_error_of_the_command_line_is_one_sentence() {
        assert_eq!(sentence(&["--urls=a"]), "unexpected argument '--urls' found");
        assert_eq!(
            sentence(&["--cache=often"]),
            "invalid value 'often' for '--cache <cache>' [possible values: on, off]"
        );
        assert_eq!(
            sentence(&["--url=a", "--size=big"]),
            "invalid value 'big' for '--size <size>': invalid digit found in string"
        );
        assert_eq!(
            sentence(&[]),
            "the following required arguments were not provided: --url <url>, --size <size>"
        );
        let error = Command::new("feedline").error(ErrorKind::ArgumentConflict, "--a needs --b");
        assert_eq!(usage_error_sentence(&error), "--a needs --b");
        let bare = Command::new("feedline").subcommand_required(true).arg_required_else_help(true);
        let error = bare.try_get_matches_from(["feedline"]).expect_err("a command is required");
        assert!(!usage_error_sentence(&error).contains('\n'));
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("termination-log");
        fs::write(&file, "").unwrap();
        write_to(&file, &format!("{}é{}", "a".repeat(MAX_MESSAGE_BYTES - 1), "b".repeat(100)));
        assert_eq!(fs::read_to_string(&file).unwrap(), "a".repeat(MAX_MESSAGE_BYTES - 1));
    }
}
