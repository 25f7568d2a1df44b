//! Reads a whole topic with the crate `rdkafka` and drops the payloads: what `make kafka-speed` compares a worker with.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::Message;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, servers, topic] = arguments.as_slice() else {
        return Err("usage: drop_payloads SERVERS TOPIC".into());
    };
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", servers)
        .set("group.id", "drop-payloads")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("check.crcs", "true")
        .set("isolation.level", "read_committed")
        .create()?;
    let metadata = consumer.fetch_metadata(Some(topic), Duration::from_secs(10))?;
    let partitions = metadata.topics().first().ok_or("the topic does not exist")?.partitions();
    let mut assignment = TopicPartitionList::new();
    for partition in partitions {
        assignment.add_partition_offset(topic, partition.id(), Offset::Beginning)?;
    }
    let mut open: BTreeSet<i32> = partitions.iter().map(rdkafka::metadata::MetadataPartition::id).collect();
    consumer.assign(&assignment)?;
    let started = Instant::now();
    let (mut records, mut bytes) = (0_u64, 0_u64);
    while !open.is_empty() {
        match consumer.poll(Duration::from_secs(10)) {
            Some(Ok(message)) => {
                records += 1;
                bytes += message.payload().map_or(0, <[u8]>::len) as u64;
            }
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                open.remove(&partition);
            }
            Some(Err(error)) => return Err(error.into()),
            None => return Err("no records arrived".into()),
        }
    }
    println!(
        "{{\"records\": {records}, \"bytes\": {bytes}, \"seconds\": {}}}",
        started.elapsed().as_secs_f64()
    );
    Ok(())
}
