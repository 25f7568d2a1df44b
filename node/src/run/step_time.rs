//! The time that a consumer spends on a batch, which may change during the run.

use std::str::FromStr;
use std::time::Duration;

/// The duration of a training step, which depends on the time since the first batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StepTime {
    first: Duration,
    /// Changes of the duration in order: start time and new duration.
    changes: Vec<(Duration, Duration)>,
}

impl StepTime {
    /// Returns the duration of a step at `elapsed` after the first batch.
    pub(super) fn at(&self, elapsed: Duration) -> Duration {
        let started = self.changes.iter().take_while(|(from, _)| *from <= elapsed);
        started.last().map_or(self.first, |(_, step)| *step)
    }

    /// Returns the longest duration.
    pub(super) fn longest(&self) -> Duration {
        self.changes.iter().map(|(_, step)| *step).fold(self.first, Duration::max)
    }
}

impl FromStr for StepTime {
    type Err = String;

    /// Parses `MS` or `MS,SECONDS:MS,...`.
    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| {
            let invalid = || {
                format!(
                    "invalid number `{part}`: expected milliseconds such as 40, or 40,60:10 for 10 ms from second 60"
                )
            };
            part.trim().parse::<u64>().map_err(|_| invalid())
        };
        let mut parts = text.split(',');
        let first = Duration::from_millis(number(parts.next().unwrap_or_default())?);
        let mut changes: Vec<(Duration, Duration)> = Vec::new();
        for part in parts {
            let (from, step) = part
                .split_once(':')
                .ok_or_else(|| format!("`{part}` has no start time: write SECOND:MS, such as 60:{part}"))?;
            let from = Duration::from_secs(number(from)?);
            if changes.last().map_or(Duration::ZERO, |(before, _)| *before) >= from {
                return Err(format!(
                    "`{part}` does not start after the previous change: sort the changes by time"
                ));
            }
            changes.push((from, Duration::from_millis(number(step)?)));
        }
        Ok(Self { first, changes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_duration_changes_at_the_given_times() {
        let steps: StepTime = "72,60:18,180:90".parse().expect("the text is valid");
        let at = |seconds| steps.at(Duration::from_secs(seconds)).as_millis();
        assert_eq!([at(0), at(59), at(60), at(179), at(180), at(9999)], [72, 72, 18, 18, 90, 90]);
        assert_eq!(steps.longest(), Duration::from_millis(90));
        let always: StepTime = "5".parse().expect("the text is valid");
        assert_eq!(always.at(Duration::from_secs(100)), Duration::from_millis(5));
        assert_eq!(StepTime::default(), "0".parse().expect("the text is valid"));
    }

    #[test]
    fn invalid_texts_are_rejected_with_a_fix() {
        let error = |text: &str| text.parse::<StepTime>().expect_err("the text is invalid");
        assert_eq!(
            error("4x"),
            "invalid number `4x`: expected milliseconds such as 40, or 40,60:10 for 10 ms from second 60"
        );
        assert_eq!(error("40,10"), "`10` has no start time: write SECOND:MS, such as 60:10");
        assert_eq!(
            error("40,0:10"),
            "`0:10` does not start after the previous change: sort the changes by time"
        );
        assert_eq!(
            error("40,60:10,60:20"),
            "`60:20` does not start after the previous change: sort the changes by time"
        );
    }
}
