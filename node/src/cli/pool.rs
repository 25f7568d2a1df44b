//! The flag for the pool of workers. All commands that start workers have it.

use clap::Args;

/// The pool of workers.
#[derive(Args, Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PoolArgs {
    /// Pool of the workers that this command starts, such as spot. The planner treats each pool as a separate type of
    /// workers, and a scaler sets the number of workers of each pool [default: none].
    #[arg(
        long,
        value_name = "NAME",
        env = "FEEDLINE_POOL",
        hide_env_values = true,
        default_value = "",
        hide_default_value = true,
        value_parser = super::scaling::parse_pool
    )]
    pub(crate) pool: String,
}
