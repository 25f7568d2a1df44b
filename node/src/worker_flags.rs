//! The flags that `feedline up --autoscale` passes to its worker processes. The flags of `feedline worker` define them.

use std::ffi::OsString;

use clap::{Arg, CommandFactory};

use crate::cli::{Cli, GivenFlags};

/// Flags of `feedline worker` that are not passed on, and the reasons.
const NOT_FORWARDED: [(&str, &str); 22] = [
    ("advertise", "it is a URL for a worker, and a host for `feedline up`"),
    ("advertise_host", "it is --advertise of `feedline up`"),
    ("cache_dir", "its default differs between a worker and `feedline up`"),
    ("cache_disk", "each worker process has a share"),
    ("cache_disk_together", "it is --cache-disk of `feedline up`"),
    ("coordinator", "the parent process is the coordinator"),
    ("cores", "each worker process has a share"),
    ("grace", "worker processes exit before their parent"),
    ("graph_memory", "each worker process has a share"),
    ("health", "the parent process listens on the address"),
    ("http", "the parent process listens on the address"),
    ("listen", "each worker process listens on a free port"),
    ("max_fetches", "`feedline up` does not have the flag"),
    ("memory", "each worker process has a share"),
    ("nic", "the worker processes share the network of the host"),
    ("own_file", "it protects the files of all roles of the parent process"),
    ("planner_uses_cache_dir", "it depends on --cache-dir of `feedline up`"),
    ("pool", "the scaler adds it, also if it is from the environment"),
    ("tls_name", "`feedline up` does not have the flag"),
    ("token_file", "worker processes receive a separate token in the environment"),
    ("upgrade_timeout", "the coordinator has the same release"),
    ("while_input", "worker processes always exit with their parent"),
];

/// Returns the flags of `feedline up` that its worker processes receive unchanged, as arguments of `feedline worker`.
/// Worker processes inherit the environment, so that flags from the environment are not included.
pub(crate) fn forwarded(given: &GivenFlags) -> Vec<OsString> {
    let flags = flags_of("worker").into_iter().filter(is_forwarded);
    flags.flat_map(|flag| render(&flag, given)).collect()
}

/// Returns the flags of a command, including global flags.
fn flags_of(command: &str) -> Vec<Arg> {
    let mut cli = Cli::command();
    cli.build();
    let flags = cli.find_subcommand(command).into_iter().flat_map(|command| command.get_arguments());
    flags.filter(|flag| flag.get_long().is_some_and(|long| long != "help")).cloned().collect()
}

fn is_forwarded(flag: &Arg) -> bool {
    NOT_FORWARDED.iter().all(|(id, _)| flag.get_id().as_str() != *id)
}

/// Returns one argument for each value of a flag. Returns nothing if the user did not give the flag.
fn render(flag: &Arg, given: &GivenFlags) -> Vec<OsString> {
    let (Some(long), Some(values)) = (flag.get_long(), given.values(flag.get_id().as_str())) else {
        return Vec::new();
    };
    if !flag.get_action().takes_values() {
        return vec![format!("--{long}").into()];
    }
    let with_value = |value: &OsString| {
        let mut argument = OsString::from(format!("--{long}="));
        argument.push(value);
        argument
    };
    values.iter().map(with_value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{self, Command};

    fn forwarded_by(arguments: &[&str]) -> Vec<String> {
        let Command::Up(args) = cli::parse::<Cli>(arguments).unwrap().args.command else {
            panic!("the command is `up`");
        };
        let arguments = forwarded(&args.given).into_iter();
        arguments.map(|argument| argument.into_string().unwrap()).collect()
    }

    #[test]
    fn every_flag_of_a_worker_is_forwarded_or_excluded() {
        let (worker, up) = (flags_of("worker"), flags_of("up"));
        for flag in worker.iter().filter(|flag| is_forwarded(flag)) {
            let id = flag.get_id().as_str();
            let same = up.iter().find(|other| other.get_id().as_str() == id).unwrap_or_else(|| {
                panic!("`feedline up` has no flag `{id}`: add it to `LocalArgs`, or to NOT_FORWARDED with a reason")
            });
            assert_eq!(same.get_value_names(), flag.get_value_names(), "`{id}` has different values");
            assert!(flag.get_value_delimiter().is_none(), "`{id}` would be rendered without its delimiter");
        }
        for (id, reason) in NOT_FORWARDED {
            let is_flag = worker.iter().any(|flag| flag.get_id().as_str() == id);
            assert!(is_flag && !reason.is_empty(), "`feedline worker` has no flag `{id}`");
        }
    }

    #[test]
    fn given_flags_are_forwarded_with_their_values() {
        assert!(forwarded_by(&["feedline", "up", "--autoscale", "1..2"]).is_empty());
        let arguments = [
            &["feedline", "--log", "json", "up", "--autoscale", "1..2", "--cores", "8", "--memory", "1GiB"][..],
            &["--cache-dir", "/cache", "--token-file", "token", "--store-retry-timeout", "5s", "--insecure"],
            &["--allow-url", "s3://a", "--allow-url=s3://b/-c", "--trace", "off"],
        ];
        let mut flags = forwarded_by(&arguments.concat());
        flags.sort();
        let expected = [
            "--allow-url=s3://a",
            "--allow-url=s3://b/-c",
            "--insecure",
            "--log=json",
            "--store-retry-timeout=5s",
            "--trace=off",
        ];
        assert_eq!(flags, expected);
    }
}
