//! The flags that select a cluster, the `FEEDLINE_COORDINATOR` default, and the check that rejects flags of this process's
//! own workers beside them.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, CommandFactory, FromArgMatches};

use super::LocalArgs;

/// Where a coordinator listens unless the user says otherwise.
const DEFAULT_COORDINATOR: &str = "http://127.0.0.1:7070";
/// The variable with the default of every `--coordinator`.
const VARIABLE: &str = "FEEDLINE_COORDINATOR";
/// The clap group of [`RemoteArgs`]: it marks the commands that run here or on a cluster.
const REMOTE: &str = "remote";

/// The cluster that a command talks to.
#[derive(Args, Debug, Clone)]
#[group(skip)]
pub(crate) struct ClusterArgs {
    /// URL of a coordinator, or URLs of several coordinators of one cluster.
    #[arg(
        long,
        global = true,
        env = VARIABLE,
        hide_env_values = true,
        value_name = "URL,URL",
        value_delimiter = ',',
        default_value = DEFAULT_COORDINATOR
    )]
    coordinator: Vec<String>,
}

impl ClusterArgs {
    /// The URLs; the default where the environment variable is empty.
    pub(crate) fn urls(&self) -> Vec<String> {
        let urls = non_empty(&self.coordinator);
        if urls.is_empty() { vec![DEFAULT_COORDINATOR.to_owned()] } else { urls }
    }
}

/// A cluster instead of workers in this process.
#[derive(Args, Debug, Clone, Default)]
#[group(id = REMOTE)]
pub(crate) struct RemoteArgs {
    /// Run on the workers of this cluster instead of in this process: URL of a coordinator, such as http://10.0.0.1:7070,
    /// or URLs of several coordinators of one cluster. Flags of this process's own workers are rejected beside it.
    #[arg(long, env = VARIABLE, hide_env_values = true, value_name = "URL,URL", value_delimiter = ',')]
    coordinator: Vec<String>,
}

impl RemoteArgs {
    /// The URLs; none where the command runs in this process.
    pub(crate) fn urls(&self) -> Vec<String> {
        non_empty(&self.coordinator)
    }
}

fn non_empty(urls: &[String]) -> Vec<String> {
    urls.iter().filter(|url| !url.is_empty()).cloned().collect()
}

/// A parsed command line.
pub(crate) struct Parsed<T> {
    /// The flags.
    pub(crate) args: T,
    /// One line for the user: the environment selects the cluster.
    pub(crate) notice: Option<String>,
}

/// Parses a command line and rejects flags of this process's workers beside a cluster.
pub(crate) fn parse<T: CommandFactory + FromArgMatches>(
    arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<Parsed<T>, clap::Error> {
    let mut command = T::command();
    let mut matches = command.try_get_matches_from_mut(arguments)?;
    let notice = match matches.subcommand() {
        Some((name, matches)) => match command.find_subcommand_mut(name) {
            Some(subcommand) => check_cluster(subcommand, matches)?,
            None => None,
        },
        None => check_cluster(&mut command, &matches)?,
    };
    let args = T::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))?;
    Ok(Parsed { args, notice })
}

/// Every flag that applies to workers in this process only.
fn local_flags() -> Vec<Arg> {
    let command = LocalArgs::augment_args(Command::new("local"));
    command.get_arguments().filter(|flag| flag.get_long().is_some()).cloned().collect()
}

/// Returns the notice for a cluster that the environment selects.
fn check_cluster(command: &mut Command, matches: &ArgMatches) -> Result<Option<String>, clap::Error> {
    if !command.get_groups().any(|group| group.get_id() == REMOTE) {
        return Ok(None);
    }
    let urls: Vec<String> = matches.get_many("coordinator").into_iter().flatten().cloned().collect();
    let is_flag = matches.value_source("coordinator") == Some(ValueSource::CommandLine);
    if is_flag && urls.iter().any(String::is_empty) {
        let said = "invalid --coordinator: the URL is empty; give a URL such as http://10.0.0.1:7070";
        return Err(command.error(ErrorKind::InvalidValue, said));
    }
    let urls = non_empty(&urls);
    if urls.is_empty() {
        return Ok(None);
    }
    let is_given =
        |flag: &Arg| matches.value_source(flag.get_id().as_str()) == Some(ValueSource::CommandLine);
    let given = local_flags().into_iter().find(is_given);
    if let Some(flag) = given.and_then(|flag| flag.get_long().map(str::to_owned)) {
        let (selects, fix) = if is_flag {
            ("--coordinator selects a cluster".to_owned(), "--coordinator")
        } else {
            (format!("{VARIABLE} selects the cluster at {}", urls.join(",")), VARIABLE)
        };
        let verb = if is_flag { "remove" } else { "unset" };
        let said = format!(
            "--{flag} cannot be used with a cluster: it configures workers in this process, and {selects}; remove --{flag} or {verb} {fix}"
        );
        return Err(command.error(ErrorKind::ArgumentConflict, said));
    }
    let notice = || format!("using the cluster at {}, from {VARIABLE}", urls.join(","));
    Ok((!is_flag).then(notice))
}

#[cfg(test)]
mod tests {
    use clap::ArgAction;

    use super::super::Cli;
    use super::*;

    /// The flag with a value that it accepts.
    fn example(flag: &Arg) -> Vec<String> {
        let long = format!("--{}", flag.get_long().expect("local flags have long names"));
        if matches!(flag.get_action(), ArgAction::SetTrue) {
            return vec![long];
        }
        let value = match flag.get_possible_values().first() {
            Some(value) => value.get_name().to_owned(),
            None => ["1", "1GiB", "s3://bucket/x"]
                .into_iter()
                .find(|value| Cli::try_parse_from_parts(&["run", "p.yaml", &long, value]))
                .unwrap_or_else(|| panic!("no example value fits {long}"))
                .to_owned(),
        };
        vec![long, value]
    }

    impl Cli {
        fn try_parse_from_parts(arguments: &[&str]) -> bool {
            parse::<Self>(["feedline"].iter().chain(arguments)).is_ok()
        }
    }

    #[test]
    fn every_flag_of_local_workers_is_rejected_beside_a_coordinator() {
        let flags = local_flags();
        assert!(flags.len() > 10, "{}", flags.len());
        for command in ["run", "index"] {
            for flag in &flags {
                let example = example(flag);
                let own =
                    ["feedline", command, "p.yaml"].map(str::to_owned).into_iter().chain(example.clone());
                assert!(parse::<Cli>(own.clone()).is_ok(), "{command} {example:?}");
                let remote = own.chain(["--coordinator", "http://h:1"].map(str::to_owned));
                let error = parse::<Cli>(remote).err().expect("the flag is rejected");
                assert_eq!(error.kind(), ErrorKind::ArgumentConflict, "{command} {example:?}");
                assert!(error.to_string().contains(&format!("remove {}", example[0])), "{error}");
            }
        }
    }

    #[test]
    fn an_empty_url_is_rejected() {
        let error = parse::<Cli>(["feedline", "run", "p.yaml", "--coordinator", ""]).err();
        assert!(error.is_some_and(|error| error.to_string().contains("the URL is empty")));
    }
}
