//! Parses the command of a Flight descriptor.

use feedline_data::checkpoint::Position;
use feedline_data::messages::JobSpec;
use feedline_data::pipeline::Pipeline;
use serde::Deserialize;

use crate::entropy;

/// The JSON command of a descriptor.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FlightCommand {
    /// The text of a pipeline file.
    pipeline: String,
    /// Name of the job. Clients with the same name share the job.
    #[serde(default)]
    job: Option<String>,
    #[serde(default = "default_count")]
    epochs: u32,
    #[serde(default = "default_count")]
    consumers: u32,
    #[serde(default)]
    virtual_consumers: Option<u32>,
    /// The start position, from the `app_metadata` of a batch.
    #[serde(default)]
    start: Option<Position>,
}

fn default_count() -> u32 {
    1
}

impl FlightCommand {
    /// Parses JSON, or the plain text of a pipeline file.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes)
            .map_err(|_| "the command is not UTF-8: send the text of a pipeline file")?;
        if text.trim_start().starts_with('{') {
            return serde_json::from_str(text).map_err(|error| format!("invalid command: {error}"));
        }
        let pipeline = text.to_owned();
        Ok(Self { pipeline, job: None, epochs: 1, consumers: 1, virtual_consumers: None, start: None })
    }

    /// Returns the job that the command describes.
    pub(super) fn spec(self) -> Result<JobSpec, String> {
        let pipeline =
            Pipeline::from_yaml(&self.pipeline, "the command").map_err(|error| error.to_string())?;
        let name = self.job.unwrap_or_else(|| format!("{}-{}", pipeline.name, entropy::name_suffix()));
        Ok(JobSpec {
            name,
            epochs: self.epochs,
            consumers: self.consumers,
            virtual_consumers: self.virtual_consumers.unwrap_or(self.consumers),
            start: self.start,
            ..JobSpec::new(pipeline)
        })
    }
}
