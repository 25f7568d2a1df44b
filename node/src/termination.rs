//! The termination message of a container: the error with which the process ends, which `kubectl describe pod` shows.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

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

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("termination-log");
        fs::write(&file, "").unwrap();
        write_to(&file, &format!("{}é{}", "a".repeat(MAX_MESSAGE_BYTES - 1), "b".repeat(100)));
        assert_eq!(fs::read_to_string(&file).unwrap(), "a".repeat(MAX_MESSAGE_BYTES - 1));
    }
}
