//! How long a consumer spends on a batch: always alike, or changing while it runs.

use std::str::FromStr;
use std::time::Duration;

/// The time that a training step takes, by the time since the first batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StepTime {
    first: Duration,
    /// From when on it takes how long, in order.
    changes: Vec<(Duration, Duration)>,
}

impl StepTime {
    /// What a step takes so long after the beginning.
    pub(super) fn at(&self, elapsed: Duration) -> Duration {
        let begun = self.changes.iter().take_while(|(from, _)| *from <= elapsed);
        begun.last().map_or(self.first, |(_, step)| *step)
    }

    pub(super) fn longest(&self) -> Duration {
        self.changes.iter().map(|(_, step)| *step).fold(self.first, Duration::max)
    }
}

impl FromStr for StepTime {
    type Err = String;

    /// `MS` or `MS,SECONDS:MS,...`.
    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| {
            let sentence = || {
                format!(
                    "`{part}` is no whole number of 0 or more; such as 40, or 40,60:10 for 10 ms from second 60 on"
                )
            };
            part.trim().parse::<u64>().map_err(|_| sentence())
        };
        let mut parts = text.split(',');
        let first = Duration::from_millis(number(parts.next().unwrap_or_default())?);
        let mut changes: Vec<(Duration, Duration)> = Vec::new();
        for part in parts {
            let (from, step) = part
                .split_once(':')
                .ok_or_else(|| format!("`{part}` does not say from which second on; such as 60:{part}"))?;
            let from = Duration::from_secs(number(from)?);
            if changes.last().map_or(Duration::ZERO, |(before, _)| *before) >= from {
                return Err(format!("`{part}` begins no later than what is before it; put them in order"));
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
    fn steps_take_what_is_said_for_their_time() {
        let steps: StepTime = "72,60:18,180:90".parse().expect("it is sound");
        let at = |seconds| steps.at(Duration::from_secs(seconds)).as_millis();
        assert_eq!([at(0), at(59), at(60), at(179), at(180), at(9999)], [72, 72, 18, 18, 90, 90]);
        assert_eq!(steps.longest(), Duration::from_millis(90));
        let always: StepTime = "5".parse().expect("it is sound");
        assert_eq!(always.at(Duration::from_secs(100)), Duration::from_millis(5));
        assert_eq!(StepTime::default(), "0".parse().expect("it is sound"));
    }

    #[test]
    fn what_is_wrong_is_said_with_the_fix() {
        let said = |text: &str| text.parse::<StepTime>().expect_err("it is wrong");
        assert_eq!(
            said("4x"),
            "`4x` is no whole number of 0 or more; such as 40, or 40,60:10 for 10 ms from second 60 on"
        );
        assert_eq!(said("40,10"), "`10` does not say from which second on; such as 60:10");
        assert_eq!(said("40,0:10"), "`0:10` begins no later than what is before it; put them in order");
        assert_eq!(
            said("40,60:10,60:20"),
            "`60:20` begins no later than what is before it; put them in order"
        );
    }
}
