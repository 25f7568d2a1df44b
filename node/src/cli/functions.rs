//! Flags on Python functions of pipelines: whether workers run them, and with which Python.

use std::path::PathBuf;

use clap::Args;
use feedline_worker::FunctionSettings;

use super::SwitchArg;
use crate::environment;

/// Whether users' code runs on workers, and with which Python.
#[derive(Args, Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FunctionArgs {
    /// Whether pipelines may have Python functions run here, with this user's rights [default: on; off where tokens are in
    /// use].
    #[arg(long, value_enum, value_name = "SWITCH")]
    pub(crate) functions: Option<SwitchArg>,
    /// The Python that runs them: a path or a name [default: python3].
    #[arg(long, value_name = "PATH", env = "FEEDLINE_PYTHON", hide_env_values = true)]
    pub(crate) python: Option<PathBuf>,
}

impl FunctionArgs {
    /// As a worker's setting; `usual` where nobody said.
    pub(crate) fn settings(&self, usual: SwitchArg) -> Option<FunctionSettings> {
        self.functions.unwrap_or(usual).is_on().then(|| FunctionSettings {
            python: self.python.clone().unwrap_or_else(|| "python3".into()),
            environment: environment::for_functions(),
        })
    }
}

impl SwitchArg {
    /// What is usual for functions: on, but not where several people's jobs run.
    pub(crate) fn of_functions(is_shared: bool) -> Self {
        if is_shared { Self::Off } else { Self::On }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_run_unless_said_or_shared() {
        let runs = |functions, is_shared| {
            let args = FunctionArgs { functions, python: None };
            args.settings(SwitchArg::of_functions(is_shared)).is_some()
        };
        assert!(runs(None, false) && runs(Some(SwitchArg::On), true));
        assert!(!runs(None, true) && !runs(Some(SwitchArg::Off), false));
    }
}
