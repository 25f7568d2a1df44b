//! Parses a command line, and rejects flags that would have no effect: flags for workers in this process if the
//! command uses a cluster, and flags for clients and servers if it does not.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, CommandFactory, FromArgMatches};

use super::cluster::{COORDINATOR_VARIABLE, REMOTE_GROUP, non_empty};
use super::{AccessArgs, AutoCacheArgs, LocalArgs, ServerAccessArgs, SwitchArg};

/// A parsed command line.
pub(crate) struct ParsedArgs<T> {
    /// The arguments.
    pub(crate) args: T,
    /// A notice for the user, if the environment selects the cluster.
    pub(crate) notice: Option<String>,
}

/// Parses a command line and rejects flags that would have no effect.
pub(crate) fn parse<T: CommandFactory + FromArgMatches>(
    arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<ParsedArgs<T>, clap::Error> {
    let mut command = T::command();
    let mut matches = command.try_get_matches_from_mut(arguments)?;
    let notice = match matches.subcommand() {
        Some((name, matches)) => match command.find_subcommand_mut(name) {
            Some(subcommand) => check_flags(subcommand, matches)?,
            None => None,
        },
        None => check_flags(&mut command, &matches)?,
    };
    let args = T::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))?;
    Ok(ParsedArgs { args, notice })
}

/// Returns the flags of `A`.
fn flags_of<A: Args>() -> Vec<Arg> {
    let command = A::augment_args(Command::new("flags"));
    command.get_arguments().filter(|flag| flag.get_long().is_some()).cloned().collect()
}

/// Returns every flag that applies to workers in this process only.
fn local_flags() -> Vec<Arg> {
    [flags_of::<LocalArgs>(), flags_of::<AutoCacheArgs>()].concat()
}

/// Whether the user gave the flag on the command line. The environment and defaults do not count.
fn is_given(matches: &ArgMatches, id: &str) -> bool {
    matches.try_contains_id(id).is_ok() && matches.value_source(id) == Some(ValueSource::CommandLine)
}

/// Returns the first given flag as `--name`.
fn first_given_flag(matches: &ArgMatches, flags: &[Arg]) -> Option<String> {
    let flag = flags.iter().find(|flag| is_given(matches, flag.get_id().as_str()))?;
    flag.get_long().map(|long| format!("--{long}"))
}

/// Checks the flags of one command. Returns the notice if the environment selects the cluster.
fn check_flags(command: &mut Command, matches: &ArgMatches) -> Result<Option<String>, clap::Error> {
    let reject = |command: &mut Command, message| Err(command.error(ErrorKind::ArgumentConflict, message));
    if command.get_name() == "worker" && is_given(matches, "cache_disk") && !is_given(matches, "cache_dir") {
        let message =
            "--cache-disk needs --cache-dir: without a directory, `feedline worker` has no disk cache";
        return reject(command, message.to_owned());
    }
    let functions = matches.try_get_one::<SwitchArg>("functions").ok().flatten();
    if functions == Some(&SwitchArg::Off) && is_given(matches, "python") {
        let message = "--python has no effect with --functions off: remove one of them";
        return reject(command, message.to_owned());
    }
    if !command.get_groups().any(|group| group.get_id() == REMOTE_GROUP) {
        return Ok(None);
    }
    let urls: Vec<String> = matches.get_many("coordinator").into_iter().flatten().cloned().collect();
    let is_flag = is_given(matches, "coordinator");
    if is_flag && urls.iter().any(String::is_empty) {
        let message = "invalid --coordinator: the URL is empty; pass a URL such as http://10.0.0.1:7070";
        return Err(command.error(ErrorKind::InvalidValue, message));
    }
    let urls = non_empty(&urls);
    if urls.is_empty() {
        return match ineffective_flag_message(matches) {
            Some(message) => reject(command, message),
            None => Ok(None),
        };
    }
    if let Some(flag) = first_given_flag(matches, &local_flags()) {
        let (selects, fix) = if is_flag {
            ("--coordinator selects a cluster".to_owned(), "remove --coordinator".to_owned())
        } else {
            (
                format!("{COORDINATOR_VARIABLE} selects the cluster at {}", urls.join(",")),
                format!("unset {COORDINATOR_VARIABLE}"),
            )
        };
        let message = format!(
            "{flag} cannot be used with a cluster: it configures workers in this process, and {selects}; remove {flag} or {fix}"
        );
        return reject(command, message);
    }
    let notice = || format!("using the cluster at {}, from {COORDINATOR_VARIABLE}", urls.join(","));
    Ok((!is_flag).then(notice))
}

/// Returns an error message if a given flag has no effect in a command without a cluster.
fn ineffective_flag_message(matches: &ArgMatches) -> Option<String> {
    let has_http = is_given(matches, "http");
    let fix = "remove it, or pass --coordinator";
    if let Some(flag) = first_given_flag(matches, &flags_of::<AccessArgs>()).filter(|_| !has_http) {
        return Some(format!(
            "{flag} has no effect without a cluster: the workers are in this process; {fix}"
        ));
    }
    let server: Vec<Arg> =
        flags_of::<ServerAccessArgs>().into_iter().filter(|flag| flag.get_id() != "token_file").collect();
    if let Some(flag) = first_given_flag(matches, &server).filter(|_| !has_http) {
        return Some(format!("{flag} has no effect without --http: remove it, or pass --http"));
    }
    is_given(matches, "transport").then(|| {
        format!("--transport has no effect without a cluster: the workers are in this process; {fix}")
    })
}

#[cfg(test)]
mod tests {
    use clap::ArgAction;

    use super::super::Cli;
    use super::*;

    /// Returns the flag with a value that it accepts, and a flag that it requires.
    fn example(flag: &Arg) -> Vec<String> {
        let long = format!("--{}", flag.get_long().expect("local flags have long names"));
        let required = match &*long {
            "--cache-store-limit" => vec!["--cache-store=s3://bucket/x".to_owned()],
            _ => Vec::new(),
        };
        if matches!(flag.get_action(), ArgAction::SetTrue) {
            return vec![long];
        }
        let is_valid = |value: &&str| {
            let flag = format!("{long}={value}");
            let words = ["feedline", "run", "p.yaml", &flag].into_iter().map(str::to_owned);
            parse::<Cli>(words.chain(required.clone())).is_ok()
        };
        let value = match flag.get_possible_values().first() {
            Some(value) => value.get_name().to_owned(),
            None => ["1", "1GiB", "1s", "s3://bucket/x"]
                .into_iter()
                .find(is_valid)
                .unwrap_or_else(|| panic!("no example value fits {long}"))
                .to_owned(),
        };
        [vec![long, value], required].concat()
    }

    fn error_of(arguments: &[&str]) -> String {
        let arguments = ["feedline"].iter().chain(arguments);
        parse::<Cli>(arguments).err().expect("the command line is rejected").to_string()
    }

    #[test]
    fn every_flag_of_local_workers_is_rejected_with_a_coordinator() {
        let flags = local_flags();
        assert!(flags.len() > 10, "{}", flags.len());
        for command in ["run", "index"] {
            for flag in &flags {
                let example = example(flag);
                let local =
                    ["feedline", command, "p.yaml"].map(str::to_owned).into_iter().chain(example.clone());
                assert!(parse::<Cli>(local.clone()).is_ok(), "{command} {example:?}");
                let remote = local.chain(["--coordinator", "http://h:1"].map(str::to_owned));
                let error = parse::<Cli>(remote).err().expect("the flag is rejected");
                assert_eq!(error.kind(), ErrorKind::ArgumentConflict, "{command} {example:?}");
                assert!(error.to_string().contains("cannot be used with a cluster"), "{error}");
            }
        }
    }

    #[test]
    fn an_empty_url_is_rejected() {
        let error = error_of(&["run", "p.yaml", "--coordinator", ""]);
        assert!(error.contains("the URL is empty"), "{error}");
    }

    #[test]
    fn flags_without_an_effect_are_rejected() {
        for (arguments, part) in [
            (&["run", "p.yaml", "--token-file", "t"][..], "--token-file has no effect without a cluster"),
            (&["index", "p.yaml", "--tls-ca", "ca"], "--tls-ca has no effect without a cluster"),
            (&["run", "p.yaml", "--insecure"], "--insecure has no effect without --http"),
            (&["run", "p.yaml", "--tls-clients", "any"], "--tls-clients has no effect without --http"),
            (&["run", "p.yaml", "--transport", "tcp"], "--transport has no effect without a cluster"),
            (&["run", "p.yaml", "--cache-store-limit", "1GiB"], "--cache-store <URL>"),
            (&["worker", "--cache-disk", "1GiB"], "--cache-disk needs --cache-dir"),
            (&["up", "--shrink-after", "5s"], "--autoscale <MIN..MAX>"),
            (&["top", "--once", "--interval", "5s"], "cannot be used with"),
            (&["explain", "p.yaml", "--auto-cache", "on"], "unexpected argument '--auto-cache'"),
            (&["run", "p.yaml", "--functions", "off", "--python", "python3"], "--python has no effect"),
        ] {
            let error = error_of(arguments);
            assert!(error.contains(part), "{arguments:?}: {error}");
        }
        assert!(parse::<Cli>(["feedline", "run", "p.yaml", "--http", "127.0.0.1:0", "--insecure"]).is_ok());
    }
}
