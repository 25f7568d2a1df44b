//! Files in YAML, other than pipelines: read, or refused with the file, the line and what is wrong there.

pub(crate) mod values;

use std::fs;
use std::path::Path;

use feedline_planner::plan;
use serde::de::DeserializeOwned;

use crate::failure::{Failure, reason};

/// Reads a file with `parse`, which is given its text and its name; `what` it should be.
pub(crate) fn load<T>(
    path: &Path,
    what: &str,
    parse: impl Fn(&str, &str) -> Result<T, String>,
) -> Result<T, Failure> {
    let file = path.display().to_string();
    let text = fs::read_to_string(path).map_err(|error| {
        let reason = reason(&error);
        Failure::wrong_use(format!("cannot read {file}: {reason}; give the path of {what}"))
    })?;
    parse(&text, &file).map_err(Failure::wrong_use)
}

/// Reads text; one sentence on what is wrong with it.
pub(crate) fn read<T: DeserializeOwned>(text: &str, file: &str) -> Result<T, String> {
    let refused = |error: serde_yaml_ng::Error| {
        let line = error.location().map(|at| format!(":{}", at.line())).unwrap_or_default();
        let sentence = error.to_string();
        let end = sentence.rfind(" at line ").unwrap_or(sentence.len());
        format!("{file}{line}: {}", &sentence[..end])
    };
    // A key that is given twice is an error only here.
    serde_yaml_ng::from_str::<serde_yaml_ng::Value>(text).map_err(refused)?;
    serde_yaml_ng::from_str(text).map_err(refused)
}

/// The planner's settings in a file.
pub(crate) fn planner_settings(path: &Path) -> Result<plan::PlannerSettings, Failure> {
    load(path, "a file of the planner's settings", parse_settings)
}

fn parse_settings(text: &str, file: &str) -> Result<plan::PlannerSettings, String> {
    let settings: plan::PlannerSettings = read(text, file)?;
    settings.check().map_err(|sentence| format!("{file}: {sentence}"))?;
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_planners_settings_are_read_and_checked() {
        let parse = |text: &str| parse_settings(text, "p.yaml");
        let settings = parse("prices: { core_hour: 0.1 }").unwrap();
        assert_eq!(settings.prices.core_hour, 0.1);
        assert_eq!(settings.headroom, plan::PlannerSettings::default().headroom);
        let wrong = |text: &str| parse(text).unwrap_err();
        assert_eq!(
            wrong("prices: { core_hour: -1 }"),
            "p.yaml: prices.core_hour: -1 makes no sense; give 0 or more"
        );
        assert_eq!(
            wrong("cache_memory_share: 2"),
            "p.yaml: cache_memory_share: 2 is no share; give one from 0 to 1"
        );
        assert!(wrong("headroom: 1\nheadrom: 2").starts_with("p.yaml:2: unknown field `headrom`"));
    }
}
