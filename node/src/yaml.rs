//! Reads YAML files other than pipelines. Error messages name the file and the line.

pub(crate) mod values;

use std::fs;
use std::path::Path;

use feedline_planner::plan;
use serde::de::DeserializeOwned;

use crate::failure::{Failure, reason};

/// Loads a file with `parse`, whose arguments are the text and the name of the file. `kind` describes the file in error
/// messages.
pub(crate) fn load<T>(
    path: &Path,
    kind: &str,
    parse: impl Fn(&str, &str) -> Result<T, String>,
) -> Result<T, Failure> {
    let file = path.display().to_string();
    let text = fs::read_to_string(path).map_err(|error| {
        let reason = reason(&error);
        Failure::invalid_usage(format!("cannot read {file}: {reason}; pass the path of {kind}"))
    })?;
    parse(&text, &file).map_err(Failure::invalid_usage)
}

/// Parses the text of a file. The error message contains the line number, if known.
pub(crate) fn parse<T: DeserializeOwned>(text: &str, file: &str) -> Result<T, String> {
    feedline_data::yaml::parse(text).map_err(|error| error.message(file))
}

/// Loads the planner's settings.
pub(crate) fn planner_settings(path: &Path) -> Result<plan::PlannerSettings, Failure> {
    load(path, "a planner settings file", parse_settings)
}

fn parse_settings(text: &str, file: &str) -> Result<plan::PlannerSettings, String> {
    let settings: plan::PlannerSettings = parse(text, file)?;
    settings.check().map_err(|sentence| format!("{file}: {sentence}"))?;
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planner_settings_are_parsed_and_validated() {
        let settings_of = |text: &str| parse_settings(text, "p.yaml");
        let settings = settings_of("prices: { core_hour: 0.1 }").unwrap();
        assert_eq!(settings.prices.core_hour, 0.1);
        assert_eq!(settings.headroom, plan::PlannerSettings::default().headroom);
        let error_of = |text: &str| settings_of(text).unwrap_err();
        assert_eq!(
            error_of("prices: { core_hour: -1 }"),
            "p.yaml: invalid prices.core_hour -1: expected a finite number of at least 0"
        );
        assert_eq!(
            error_of("cache_memory_share: 2"),
            "p.yaml: invalid cache_memory_share 2: expected a number from 0 to 1"
        );
        assert!(
            error_of("headroom: 1\nheadrom: 2")
                .starts_with("p.yaml:2: unknown key `headrom`; did you mean `headroom`?")
        );
    }
}
