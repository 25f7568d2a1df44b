//! The options of credentials for Kafka clusters. Builds without the feature `kafka` have none.

/// The options of credentials for Kafka clusters.
#[cfg(feature = "kafka")]
pub(crate) const KAFKA_OPTIONS: &[&str] = &feedline_kafka::OPTION_NAMES;
#[cfg(not(feature = "kafka"))]
pub(crate) const KAFKA_OPTIONS: &[&str] = &[];

/// Checks the options of credentials for Kafka clusters.
#[cfg(feature = "kafka")]
pub(crate) fn check_kafka_options<'a>(
    options: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<(), String> {
    feedline_kafka::check_options(options)
}

#[cfg(not(feature = "kafka"))]
pub(crate) fn check_kafka_options<'a>(_: impl Iterator<Item = (&'a str, &'a str)>) -> Result<(), String> {
    Ok(())
}
