//! The keys of a Kafka source.

use serde::de::{self, MapAccess};
use serde::ser::SerializeMap;

use super::urls::{Urls, set_once};
use crate::pipeline::spec::{
    EndOffset, EpochEnd, Format, Isolation, KafkaOptions, OnGap, OnTombstone, Payload, StartOffset,
};

/// The values of the keys that only a Kafka source has.
#[derive(Debug, Default)]
pub(super) struct KafkaEntries {
    topics: Option<Urls>,
    start: Option<StartOffset>,
    until: Option<EndOffset>,
    isolation: Option<Isolation>,
    payload: Option<Payload>,
    on_tombstone: Option<OnTombstone>,
    on_gap: Option<OnGap>,
    commit_group: Option<String>,
    epoch: Option<EpochEnd>,
}

impl KafkaEntries {
    /// Reads the value of a key.
    pub(super) fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "topics" => set_once(&mut self.topics, "topics", map.next_value()?),
            "start" => set_once(&mut self.start, "start", map.next_value()?),
            "until" => set_once(&mut self.until, "until", map.next_value()?),
            "isolation" => set_once(&mut self.isolation, "isolation", map.next_value()?),
            "payload" => set_once(&mut self.payload, "payload", map.next_value()?),
            "on_tombstone" => set_once(&mut self.on_tombstone, "on_tombstone", map.next_value()?),
            "on_gap" => set_once(&mut self.on_gap, "on_gap", map.next_value()?),
            "commit_group" => set_once(&mut self.commit_group, "commit_group", map.next_value()?),
            _ => set_once(&mut self.epoch, "epoch", map.next_value()?),
        }
    }

    /// The keys, with whether they have a value.
    pub(super) fn keys(&self) -> [(&'static str, bool); 9] {
        [
            ("topics", self.topics.is_some()),
            ("start", self.start.is_some()),
            ("until", self.until.is_some()),
            ("isolation", self.isolation.is_some()),
            ("payload", self.payload.is_some()),
            ("on_tombstone", self.on_tombstone.is_some()),
            ("on_gap", self.on_gap.is_some()),
            ("commit_group", self.commit_group.is_some()),
            ("epoch", self.epoch.is_some()),
        ]
    }

    /// Returns the settings of a Kafka source; `None` for other formats.
    pub(super) fn into_options<E: de::Error>(self, format: Format) -> Result<Option<KafkaOptions>, E> {
        if format != Format::Kafka {
            return match self.keys().into_iter().find(|(_, is_set)| *is_set) {
                Some((key, _)) => Err(E::custom(format!(
                    "`{key}` applies to `format: kafka`, but the format is {}; remove `{key}`, or set `format: kafka`",
                    format.name()
                ))),
                None => Ok(None),
            };
        }
        Ok(Some(KafkaOptions {
            topics: self.topics.ok_or_else(|| E::missing_field("topics"))?.0,
            start: self.start.unwrap_or_default(),
            until: self.until.unwrap_or_default(),
            isolation: self.isolation.unwrap_or_default(),
            payload: self.payload.unwrap_or_default(),
            on_tombstone: self.on_tombstone.unwrap_or_default(),
            on_gap: self.on_gap.unwrap_or_default(),
            commit_group: self.commit_group,
            epoch: self.epoch,
        }))
    }
}

pub(super) fn write_options<M: SerializeMap>(options: &KafkaOptions, map: &mut M) -> Result<(), M::Error> {
    match options.topics.as_slice() {
        [one] => map.serialize_entry("topics", one)?,
        many => map.serialize_entry("topics", many)?,
    }
    map.serialize_entry("start", &options.start)?;
    map.serialize_entry("until", &options.until)?;
    map.serialize_entry("isolation", &options.isolation)?;
    map.serialize_entry("payload", &options.payload)?;
    map.serialize_entry("on_tombstone", &options.on_tombstone)?;
    map.serialize_entry("on_gap", &options.on_gap)?;
    if let Some(group) = &options.commit_group {
        map.serialize_entry("commit_group", group)?;
    }
    match &options.epoch {
        Some(epoch) => map.serialize_entry("epoch", epoch),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::pipeline::{
        EndOffset, Isolation, KafkaOptions, OnGap, OnTombstone, PayloadFormat, Pipeline, StartOffset,
        Timestamp,
    };

    fn parse(source: &str) -> Result<Pipeline, String> {
        let yaml = format!("name: p\nsource:\n{source}operators: [ batch: {{ size: 8 }} ]\n");
        Pipeline::from_yaml(&yaml, "p.yaml").map_err(|error| error.to_string())
    }

    const SHORT: &str = "  url: kafka://a:9092,b:9092\n  format: kafka\n  topics: events\n";

    #[test]
    fn a_short_source_has_the_documented_defaults() {
        let pipeline = parse(SHORT).unwrap();
        let options = pipeline.source.kafka.as_deref().unwrap();
        assert_eq!(*options, KafkaOptions::topic("events"));
        assert_eq!((&options.start, &options.until), (&StartOffset::Earliest, &EndOffset::Latest));
        assert_eq!(options.payload.format, PayloadFormat::Bytes);
        assert_eq!((options.isolation, options.on_gap), (Isolation::ReadCommitted, OnGap::Fail));
        assert!(pipeline.changes_rows(), "rows without a record are removed");
    }

    #[test]
    fn all_settings_are_read_and_written() {
        let source = format!(
            "{SHORT}  start: {{ offsets: {{ events/0: 5 }} }}\n  until: {{ time: 2026-11-27T08:00:00Z }}\n  isolation: read_uncommitted\n  \
             payload: {{ format: avro, registry: 'http://registry:8081', subject: s }}\n  on_tombstone: null\n  on_gap: skip\n  \
             commit_group: trainers\n"
        );
        let source = source
            .replace("on_tombstone: null", "on_tombstone: \"null\"")
            .replace("topics: events", "topics: [^a, b]");
        let pipeline = parse(&source).unwrap();
        let options = pipeline.source.kafka.as_deref().unwrap();
        assert_eq!(options.topics, ["^a", "b"]);
        assert_eq!(options.start, StartOffset::Offsets([("events/0".to_owned(), 5)].into()));
        assert_eq!(options.until, EndOffset::Time(Timestamp(1_795_766_400_000)));
        assert_eq!(options.commit_group.as_deref(), Some("trainers"));
        assert_eq!((options.on_tombstone, options.payload.format), (OnTombstone::Null, PayloadFormat::Avro));
        assert_eq!(parse_text(&pipeline.to_yaml()), pipeline);
        let reads: Vec<String> = pipeline.read_locations().into_iter().map(|(place, _)| place).collect();
        assert_eq!(reads, ["source.url", "source.payload.registry"]);
    }

    fn parse_text(yaml: &str) -> Pipeline {
        Pipeline::from_yaml(yaml, "p.yaml").unwrap()
    }

    #[test]
    fn the_group_does_not_affect_positions_and_saved_indexes() {
        let (without, with) = (parse(SHORT).unwrap(), parse(&format!("{SHORT}  commit_group: g\n")).unwrap());
        assert_eq!(with.fingerprint(), without.fingerprint());
        assert_eq!(with.listed_source(), without.listed_source());
        assert_eq!(with.source.commit_group(), Some("g"));
        let mixed = "  mix:\n    - { url: 'kafka://a:1', format: kafka, topics: a, commit_group: g }\n    - { url: x, format: text }\n";
        let refused = parse(mixed).unwrap_err();
        assert!(refused.contains("commit_group") && refused.contains("not part of a mix"), "{refused}");
    }

    #[test]
    fn errors_name_the_key() {
        let refused = |source: &str| parse(source).unwrap_err();
        for (source, expected) in [
            ("  url: x\n  format: text\n  topics: a\n", "`topics` applies to `format: kafka`"),
            ("  url: kafka://a:1\n  format: kafka\n", "topics"),
            ("  url: kafka://a:1\n  format: text\n", "set `format: kafka`"),
            ("  url: /data\n  format: kafka\n  topics: a\n", "kafka://"),
            ("  url: kafka://a:1/x\n  format: kafka\n  topics: a\n", "list topics under `topics`"),
            ("  url: kafka://a:99999\n  format: kafka\n  topics: a\n", "invalid server `a:99999`"),
            ("  url: kafka://me:word@a:1\n  format: kafka\n  topics: a\n", "user name or password"),
            ("  url: kafka://a:1\n  format: kafka\n  topics: []\n", "the list is empty"),
            ("  url: kafka://a:1\n  format: kafka\n  topics: a/b\n", "invalid topic name"),
            ("  url: kafka://a:1\n  format: kafka\n  topics: a\n  start: none\n", "start"),
            ("  url: kafka://a:1\n  format: kafka\n  topics: a\n  payload: avro\n", "registry"),
            ("  url: kafka://a:1\n  format: kafka\n  topics: a\n  commit_group: ''\n", "1 to 255 characters"),
            (
                "  url: kafka://a:1\n  format: kafka\n  topics: a\n  payload: {format: json, registry: 'http://r'}\n",
                "registry",
            ),
            (
                "  url: kafka://a:1\n  format: kafka\n  topics: a\n  start: { offsets: { a: 1 } }\n",
                "TOPIC/PARTITION",
            ),
        ] {
            let message = refused(source);
            assert!(message.contains(expected) && !message.contains("word@"), "{source}: {message}");
        }
    }
}
