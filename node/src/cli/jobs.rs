//! Flags of `feedline job`.

use clap::{Args, Subcommand};
use feedline_data::ids::JobId;

use super::{AccessArgs, ClusterArgs};

/// Arguments of `feedline job`.
#[derive(Args, Debug, Clone)]
#[command(after_help = "Examples:\n  \
    feedline job list --coordinator http://10.0.0.1:7070\n  \
    feedline job show 3 --json\n  \
    feedline job cancel 3\n  \
    feedline job set-weights 3 0.7,0.3")]
pub(crate) struct JobArgs {
    /// The action.
    #[command(subcommand)]
    pub(crate) action: JobAction,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

/// An action on the jobs of a cluster.
#[derive(Subcommand, Debug, Clone)]
pub(crate) enum JobAction {
    /// Lists all jobs.
    List {
        /// Print one JSON array on one line instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Shows one job.
    Show {
        /// Id of the job, as `feedline job list` prints it.
        #[arg(value_name = "ID", value_parser = parse_job)]
        job: JobId,
        /// Print one JSON object on one line instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Cancels a job.
    Cancel {
        /// Id of the job, as `feedline job list` prints it.
        #[arg(value_name = "ID", value_parser = parse_job)]
        job: JobId,
    },
    /// Changes the weights of the datasets in a job's mix, from the first row that is not leased.
    SetWeights {
        /// Id of the job, as `feedline job list` prints it.
        #[arg(value_name = "ID", value_parser = parse_job)]
        job: JobId,
        /// One weight for each dataset, in the order of the pipeline.
        #[arg(value_name = "W,W", value_delimiter = ',', required = true, allow_negative_numbers = true, value_parser = parse_weight)]
        weights: Vec<f64>,
    },
}

/// The removed command `feedline jobs`.
#[derive(Args, Debug, Clone)]
#[command(disable_help_flag = true)]
pub(crate) struct RemovedJobsArgs {
    /// The flags, which are ignored.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    flags: Vec<String>,
}

impl RemovedJobsArgs {
    /// Returns the command that replaces the removed command.
    pub(crate) fn replacement(&self) -> &'static str {
        let has = |name: &str| self.flags.iter().any(|flag| flag.split('=').next() == Some(name));
        if has("--cancel") {
            "feedline job cancel ID"
        } else if has("--weights") {
            "feedline job set-weights ID W,W"
        } else {
            "feedline job list"
        }
    }
}

fn parse_job(text: &str) -> Result<JobId, String> {
    let id = u64::from_str_radix(text, 16);
    id.map(JobId)
        .map_err(|_| format!("invalid job id `{text}`: expected an id from `feedline job list`, such as 1f"))
}

fn parse_weight(text: &str) -> Result<f64, String> {
    text.trim().parse().map_err(|_| format!("invalid weight `{text}`: expected a number, such as 0.7"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_id_is_parsed_as_hexadecimal() {
        assert_eq!(parse_job("1f"), Ok(JobId(31)));
        assert!(parse_job("job").is_err());
    }

    #[test]
    fn the_removed_command_names_its_replacement() {
        let replacement = |flags: &[&str]| {
            RemovedJobsArgs { flags: flags.iter().map(|flag| (*flag).to_owned()).collect() }.replacement()
        };
        assert_eq!(replacement(&["--json"]), "feedline job list");
        assert_eq!(replacement(&["--cancel=3"]), "feedline job cancel ID");
        assert_eq!(replacement(&["--weights", "3=1,2"]), "feedline job set-weights ID W,W");
    }
}
