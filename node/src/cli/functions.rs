//! Flags for Python functions of pipelines: whether workers run them, and with which Python.

use std::path::PathBuf;

use clap::Args;
use feedline_worker::FunctionSettings;

use super::SwitchArg;
use crate::environment;

/// Whether workers run Python functions, and with which Python.
#[derive(Args, Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FunctionArgs {
    /// Run the Python functions of pipelines, with the permissions of this user [default: on; off with tokens].
    #[arg(long, value_enum, value_name = "SWITCH")]
    pub(crate) functions: Option<SwitchArg>,
    /// Python interpreter for functions: a path or a name [default: python3].
    #[arg(long, value_name = "PATH", env = "FEEDLINE_PYTHON", hide_env_values = true)]
    pub(crate) python: Option<PathBuf>,
}

impl FunctionArgs {
    /// Returns a worker's settings for functions. `default` applies without `--functions`.
    pub(crate) fn settings(&self, default: SwitchArg) -> Option<FunctionSettings> {
        self.functions.unwrap_or(default).is_on().then(|| FunctionSettings {
            python: self.python.clone().unwrap_or_else(|| "python3".into()),
            environment: environment::function_environment(),
        })
    }
}

impl SwitchArg {
    /// Returns the default of `--functions`: off if tokens are in use, because then several users share the workers.
    pub(crate) fn default_for_functions(has_tokens: bool) -> Self {
        if has_tokens { Self::Off } else { Self::On }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_run_by_default_only_without_tokens() {
        let runs = |functions, has_tokens| {
            let args = FunctionArgs { functions, python: None };
            args.settings(SwitchArg::default_for_functions(has_tokens)).is_some()
        };
        assert!(runs(None, false) && runs(Some(SwitchArg::On), true));
        assert!(!runs(None, true) && !runs(Some(SwitchArg::Off), false));
    }
}
