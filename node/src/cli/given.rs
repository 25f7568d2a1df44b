//! The flags that the user gave on the command line, with their values as text.

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};

/// Whether the user gave the flag on the command line. The environment and defaults do not count.
pub(super) fn is_given(matches: &ArgMatches, id: &str) -> bool {
    matches.try_contains_id(id).is_ok() && matches.value_source(id) == Some(ValueSource::CommandLine)
}

/// The flags that the user gave on the command line of a command.
///
/// It is parsed like a struct of flags, but defines no flags. It must be the first field of the arguments of a command,
/// because parsing a field removes its flags from the matches.
#[derive(Debug, Clone, Default)]
pub(crate) struct GivenFlags(BTreeMap<String, Vec<OsString>>);

impl GivenFlags {
    /// Returns the values of a flag as the user wrote them, or `None` if the user did not give the flag.
    pub(crate) fn values(&self, id: &str) -> Option<&[OsString]> {
        self.0.get(id).map(Vec::as_slice)
    }
}

impl Args for GivenFlags {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl FromArgMatches for GivenFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = BTreeMap::new();
        for id in matches.ids().map(|id| id.as_str()).filter(|id| is_given(matches, id)) {
            let values = matches.try_get_raw(id).ok().flatten().into_iter().flatten();
            given.insert(id.to_owned(), values.map(OsString::from).collect());
        }
        Ok(Self(given))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
