//! Parses a command line, and rejects flags that would have no effect. [`RULES`] lists the cases that depend on the
//! command, on the cluster or on flags of other structs; the structs of flags declare all other conflicts.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Args, Command, CommandFactory, FromArgMatches};

use super::cluster::{COORDINATOR_VARIABLE, REMOTE_GROUP, non_empty};
use super::given::is_given;
use super::{
    AccessArgs, AutoCacheArgs, CacheArgs, FunctionArgs, LocalArgs, RunArgs, ServerAccessArgs, SwitchArg,
};

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

/// Rejects flags in command lines in which they have no effect.
struct FlagRule {
    /// Returns the flags. Commands that lack a flag ignore it.
    flags: fn() -> Vec<Arg>,
    /// Whether the flags have no effect in a command line.
    is_ineffective: fn(&CommandLine<'_>) -> bool,
    /// Returns the error message for a flag, such as `--cores`.
    message: fn(&CommandLine<'_>, &str) -> String,
}

/// The rules, in the order in which they are checked.
const RULES: [FlagRule; 6] = [
    FlagRule {
        flags: || flag_of::<CacheArgs>("cache_disk"),
        is_ineffective: |line| {
            let has_directory = line.is_given("cache_dir") || line.is_given("graph_dir");
            line.command == "worker" && !has_directory
        },
        message: |_, flag| {
            format!("{flag} needs --cache-dir: without a directory, `feedline worker` has no disk cache")
        },
    },
    FlagRule {
        flags: || flag_of::<FunctionArgs>("python"),
        is_ineffective: disables_functions,
        message: |_, flag| format!("{flag} has no effect with --functions off: remove one of them"),
    },
    FlagRule {
        flags: local_flags,
        is_ineffective: |line| matches!(line.target, CommandTarget::Cluster(_)),
        message: cluster_message,
    },
    FlagRule {
        flags: flags_of::<AccessArgs>,
        is_ineffective: |line| matches!(line.target, CommandTarget::Process) && !line.is_given("http"),
        message: no_cluster_message,
    },
    FlagRule {
        flags: server_flags,
        is_ineffective: |line| !matches!(line.target, CommandTarget::Fixed) && !line.is_given("http"),
        message: |_, flag| format!("{flag} has no effect without --http: remove it, or pass --http"),
    },
    FlagRule {
        flags: || flag_of::<RunArgs>("transport"),
        is_ineffective: |line| matches!(line.target, CommandTarget::Process),
        message: no_cluster_message,
    },
];

/// Where the workers of a command run.
enum CommandTarget {
    /// The command has no flag that selects a cluster.
    Fixed,
    /// In this process.
    Process,
    /// On the cluster with these coordinators.
    Cluster(Vec<String>),
}

/// The flags of one command.
struct CommandLine<'a> {
    command: &'a str,
    matches: &'a ArgMatches,
    target: CommandTarget,
}

impl CommandLine<'_> {
    fn is_given(&self, id: &str) -> bool {
        is_given(self.matches, id)
    }

    /// Returns the error message of the first rule that rejects a given flag.
    fn rejection(&self) -> Option<String> {
        RULES.iter().filter(|rule| (rule.is_ineffective)(self)).find_map(|rule| {
            let flags = (rule.flags)();
            let flag = flags.iter().find(|flag| self.is_given(flag.get_id().as_str()))?;
            Some((rule.message)(self, &format!("--{}", flag.get_long()?)))
        })
    }
}

fn disables_functions(line: &CommandLine<'_>) -> bool {
    line.matches.try_get_one::<SwitchArg>("functions").ok().flatten() == Some(&SwitchArg::Off)
}

fn cluster_message(line: &CommandLine<'_>, flag: &str) -> String {
    let (selects, fix) = match &line.target {
        CommandTarget::Cluster(urls) if !line.is_given("coordinator") => (
            format!("{COORDINATOR_VARIABLE} selects the cluster at {}", urls.join(",")),
            format!("unset {COORDINATOR_VARIABLE}"),
        ),
        _ => ("--coordinator selects a cluster".to_owned(), "remove --coordinator".to_owned()),
    };
    format!(
        "{flag} cannot be used with a cluster: it configures workers in this process, and {selects}; remove {flag} or {fix}"
    )
}

fn no_cluster_message(_: &CommandLine<'_>, flag: &str) -> String {
    format!(
        "{flag} has no effect without a cluster: the workers are in this process; remove it, or pass --coordinator"
    )
}

/// Returns the flags of `A`.
fn flags_of<A: Args>() -> Vec<Arg> {
    let command = A::augment_args(Command::new("flags"));
    command.get_arguments().filter(|flag| flag.get_long().is_some()).cloned().collect()
}

/// Returns one flag of `A`.
fn flag_of<A: Args>(id: &str) -> Vec<Arg> {
    flags_of::<A>().into_iter().filter(|flag| flag.get_id() == id).collect()
}

/// Returns every flag that applies to workers in this process only.
fn local_flags() -> Vec<Arg> {
    [flags_of::<LocalArgs>(), flags_of::<AutoCacheArgs>()].concat()
}

/// Returns every flag that applies to servers only.
fn server_flags() -> Vec<Arg> {
    let access = flags_of::<AccessArgs>();
    let is_access = |flag: &Arg| access.iter().any(|other| other.get_id() == flag.get_id());
    flags_of::<ServerAccessArgs>().into_iter().filter(|flag| !is_access(flag)).collect()
}

/// Checks the flags of one command. Returns the notice if the environment selects the cluster.
fn check_flags(command: &mut Command, matches: &ArgMatches) -> Result<Option<String>, clap::Error> {
    let target = if command.get_groups().any(|group| group.get_id() == REMOTE_GROUP) {
        let urls: Vec<String> = matches.get_many("coordinator").into_iter().flatten().cloned().collect();
        if is_given(matches, "coordinator") && urls.iter().any(String::is_empty) {
            let message = "invalid --coordinator: the URL is empty; pass a URL such as http://10.0.0.1:7070";
            return Err(command.error(ErrorKind::InvalidValue, message));
        }
        let urls = non_empty(&urls);
        if urls.is_empty() { CommandTarget::Process } else { CommandTarget::Cluster(urls) }
    } else {
        CommandTarget::Fixed
    };
    let name = command.get_name().to_owned();
    let line = CommandLine { command: &name, matches, target };
    if let Some(message) = line.rejection() {
        return Err(command.error(ErrorKind::ArgumentConflict, message));
    }
    match &line.target {
        CommandTarget::Cluster(urls) if !line.is_given("coordinator") => {
            Ok(Some(format!("using the cluster at {}, from {COORDINATOR_VARIABLE}", urls.join(","))))
        }
        _ => Ok(None),
    }
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
            (
                &["run", "p.yaml", "--coordinator", "http://h:1", "--insecure"],
                "--insecure has no effect without --http",
            ),
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

    #[test]
    fn every_rule_names_existing_flags_and_rejects_one() {
        let mut cli = Cli::command();
        cli.build();
        let commands = || cli.get_subcommands().flat_map(|command| command.get_arguments());
        let ids: Vec<&str> = commands().map(|flag| flag.get_id().as_str()).collect();
        let rejected = [
            ("worker --coordinator http://h:1 --cache-disk 1GiB", "--cache-disk needs --cache-dir"),
            ("worker --coordinator http://h:1 --functions off --python python3", "--python has no effect"),
            ("run p.yaml --coordinator http://h:1 --cores 2", "--cores cannot be used with a cluster"),
            ("run p.yaml --token-file t", "--token-file has no effect without a cluster"),
            ("run p.yaml --insecure", "--insecure has no effect without --http"),
            ("run p.yaml --transport tcp", "--transport has no effect without a cluster"),
        ];
        for (index, (rule, (line, message))) in RULES.iter().zip(rejected).enumerate() {
            let flags = (rule.flags)();
            assert!(!flags.is_empty(), "rule {index} has no flags");
            for flag in flags {
                let id = flag.get_id().as_str();
                assert!(ids.contains(&id), "rule {index}: no command has {id}");
            }
            let error = error_of(&line.split(' ').collect::<Vec<_>>());
            assert!(error.contains(message), "rule {index}: {error}");
        }
        assert_eq!(RULES.len(), rejected.len());
    }
}
