//! Checks of a Kafka source.

use crate::pipeline::check_error::{CheckError, ErrorPath};
use crate::pipeline::{
    EndOffset, EpochEnd, Format, KafkaOptions, OperatorKind, PartitionOffsets, Payload, PayloadFormat,
    Pipeline, Remainder, Source, StartOffset,
};
use crate::urls::{is_kafka, kafka_servers};

/// Maximum number of names and patterns in `topics`.
const MAX_TOPICS: usize = 10_000;
/// Maximum length of a topic name in bytes, as in Kafka.
const MAX_TOPIC_BYTES: usize = 249;
/// Maximum length of the name of a consumer group in bytes.
const MAX_GROUP_BYTES: usize = 255;
/// Maximum length of a pattern in bytes.
const MAX_PATTERN_BYTES: usize = 1_024;

/// Minimum length of an epoch in milliseconds.
const MIN_EPOCH_MS: u64 = 1_000;

/// Checks the URL and the settings of a Kafka source, and that other sources have no Kafka URL.
pub(super) fn check_kafka(source: &Source) -> Result<(), CheckError> {
    let error = |field| move |sentence: String| CheckError::new(ErrorPath::Source(field), sentence);
    if source.format != Format::Kafka {
        return match source.url.iter().find(|url| is_kafka(url)) {
            Some(url) => Err(error("url")(format!("`{url}` is a Kafka cluster; set `format: kafka`"))),
            None => Ok(()),
        };
    }
    let [url] = source.url.as_slice() else {
        return Err(error("url")(
            "a Kafka source has one URL with all servers, such as `kafka://host1:9092,host2:9092`".to_owned(),
        ));
    };
    check_url(url).map_err(error("url"))?;
    let Some(options) = &source.kafka else {
        return Err(error("topics")("the list is empty; add at least one topic".to_owned()));
    };
    check_topics(options).map_err(error("topics"))?;
    if let StartOffset::Offsets(offsets) = &options.start {
        check_offsets(offsets).map_err(error("start"))?;
    }
    if let EndOffset::Offsets(offsets) = &options.until {
        check_offsets(offsets).map_err(error("until"))?;
    }
    match (&options.until, options.epoch) {
        (EndOffset::Unbounded, Some(EpochEnd::Rows(0))) => {
            return Err(error("epoch")("an epoch has 0 rows; set `rows` to at least 1".to_owned()));
        }
        (EndOffset::Unbounded, Some(EpochEnd::Every(period))) if period.0 < MIN_EPOCH_MS => {
            return Err(error("epoch")(format!(
                "an epoch of {period} is too short; set `every` to at least 1s"
            )));
        }
        (EndOffset::Unbounded, _) | (_, None) => {}
        (_, Some(_)) => {
            return Err(error("epoch")(
                "`epoch` applies to `until: none`; remove `epoch`, or set `until: none`".to_owned(),
            ));
        }
    }
    check_payload(&options.payload).map_err(error("payload"))?;
    options.commit_group.as_deref().map_or(Ok(()), check_group).map_err(error("commit_group"))
}

fn check_group(group: &str) -> Result<(), String> {
    if group.is_empty() || group.len() > MAX_GROUP_BYTES || group.chars().any(char::is_control) {
        return Err(format!(
            "invalid group name of {} bytes; a group name has 1 to {MAX_GROUP_BYTES} characters, without control characters",
            group.len()
        ));
    }
    Ok(())
}

/// Checks a pipeline whose source has no end.
pub(super) fn check_unbounded(pipeline: &Pipeline) -> Result<(), CheckError> {
    let source = |sentence: &str| CheckError::new(ErrorPath::Source("until"), sentence);
    if pipeline.source.mix.as_ref().is_some_and(|mix| mix.parts.iter().any(|part| part.source.is_unbounded()))
    {
        return Err(CheckError::new(
            ErrorPath::Source("mix"),
            "a mix cannot contain a dataset with `until: none`; read the topics in a job of their own, or set `until: latest`",
        ));
    }
    if !pipeline.source.is_unbounded() {
        return Ok(());
    }
    for (index, operator) in pipeline.operators.iter().enumerate() {
        let sentence = match &operator.kind {
            OperatorKind::Repeat(_) => {
                "`repeat` needs an end, but the source has `until: none`; remove `repeat`"
            }
            OperatorKind::Cache(_) => {
                "with `until: none` each record is read once, so cached rows would never be used; remove `cache`"
            }
            kind if kind.is_coordinated() => {
                "the operator forms batches from rounds of a known size, but the source has `until: none`; use `batch`"
            }
            kind if kind.is_indivisible() => {
                "the operator samples the seeds of a known number of rows, but the source has `until: none`; set `until: latest`"
            }
            OperatorKind::Batch(batch) if batch.remainder == Remainder::Drop => {
                "with `until: none` an epoch has no remainder, because its rows fill the next batch; remove `remainder: drop`"
            }
            _ => continue,
        };
        return Err(CheckError::new(ErrorPath::Operator(index), sentence));
    }
    match pipeline.source.kafka.as_deref().and_then(|kafka| kafka.epoch) {
        Some(EpochEnd::Rows(rows)) if rows < u64::from(pipeline.batch_size()) => {
            Err(source("an epoch has fewer rows than a batch; set more `rows` under `epoch`"))
        }
        _ => Ok(()),
    }
}

fn check_url(url: &str) -> Result<(), String> {
    const EXAMPLE: &str =
        "write `kafka://HOST:PORT`, or several servers such as `kafka://host1:9092,host2:9092`";
    let Some(servers) = kafka_servers(url) else {
        return Err(format!("`{url}` is not the URL of a Kafka cluster; {EXAMPLE}"));
    };
    if url.splitn(4, '/').nth(3).is_some_and(|path| !path.is_empty()) {
        return Err(format!(
            "`{url}` has a path; list topics under `topics`, and write only the servers in the URL"
        ));
    }
    for server in servers {
        let (host, port) = server.rsplit_once(':').unwrap_or((server, "9092"));
        if host.is_empty() || port.parse::<u16>().is_err() {
            return Err(format!("invalid server `{server}`; {EXAMPLE}"));
        }
    }
    Ok(())
}

fn check_topics(options: &KafkaOptions) -> Result<(), String> {
    if options.topics.is_empty() {
        return Err("the list is empty; add at least one topic".to_owned());
    }
    if options.topics.len() > MAX_TOPICS {
        return Err(format!(
            "{} entries exceed the limit of {MAX_TOPICS}; use a pattern, such as `^events-.*`",
            options.topics.len()
        ));
    }
    for topic in &options.topics {
        if topic.starts_with('^') {
            if topic.len() > MAX_PATTERN_BYTES {
                return Err(format!(
                    "a pattern is {} bytes long; the limit is {MAX_PATTERN_BYTES} bytes",
                    topic.len()
                ));
            }
        } else if !is_topic_name(topic) {
            return Err(format!(
                "invalid topic name `{}`; a topic name has 1 to {MAX_TOPIC_BYTES} letters, digits, `.`, `_` and `-`, and a pattern starts with `^`",
                topic.chars().take(64).collect::<String>()
            ));
        }
    }
    Ok(())
}

/// Whether Kafka allows this name of a topic.
fn is_topic_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    !name.is_empty()
        && name.len() <= MAX_TOPIC_BYTES
        && !matches!(name, "." | "..")
        && name.chars().all(allowed)
}

fn check_offsets(offsets: &PartitionOffsets) -> Result<(), String> {
    let is_partition = |name: &str| {
        name.rsplit_once('/').is_some_and(|(topic, partition)| {
            is_topic_name(topic) && partition.parse::<i32>().is_ok_and(|p| p >= 0)
        })
    };
    if let Some(name) = offsets.keys().find(|name| !is_partition(name)) {
        return Err(format!(
            "`{name}` is not a partition; write `TOPIC/PARTITION: OFFSET`, such as `events/0: 100`"
        ));
    }
    match offsets.iter().find(|(_, offset)| i64::try_from(**offset).is_err()) {
        Some((name, offset)) => {
            Err(format!("offset {offset} of {name} is too large; offsets are below 2^63"))
        }
        None => Ok(()),
    }
}

fn check_payload(payload: &Payload) -> Result<(), String> {
    let name = payload.format.name();
    match (&payload.registry, payload.format.has_registry()) {
        (None, true) => return Err(format!("`{name}` needs the schema registry; set `registry: URL`")),
        (Some(_), false) => return Err(format!("`{name}` has no schemas in a registry; remove `registry`")),
        (Some(url), true) if !url.starts_with("http://") && !url.starts_with("https://") => {
            return Err(format!("invalid registry `{url}`; write an http or https URL"));
        }
        _ => {}
    }
    if payload.message.is_some() && payload.format != PayloadFormat::Protobuf {
        return Err(format!(
            "`message` applies to `format: protobuf`, but the format is {name}; remove `message`"
        ));
    }
    if payload.subject.is_some() && !payload.format.has_registry() {
        return Err(format!("`{name}` has no schemas in a registry; remove `subject`"));
    }
    Ok(())
}
