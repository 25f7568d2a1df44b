//! `feedline graph`: builds, describes and checks stored graphs.

mod build;
mod check;
mod embedded;
mod folder;
mod inclusion_ranking;
mod info;

pub use self::embedded::build_graph_file;
use crate::cli::{GraphAction, GraphArgs};
use crate::failure::Failure;

/// Runs one action.
pub(crate) async fn run(args: GraphArgs) -> Result<(), Failure> {
    match args.action {
        GraphAction::Build(args) => build::run(*args).await,
        GraphAction::Info(args) => info::run(args).await,
        GraphAction::Check(args) => check::run(args).await,
    }
}
