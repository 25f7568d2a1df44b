"""Reads the offsets of consumer groups."""

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from jobs import wait_for
from topics import Topics

# A broker answers so while it reads the offsets of a group that it has just become the coordinator of.
NOT_READY = {KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR, KafkaError._TIMED_OUT}


def committed(topics: Topics, group: str, name: str, partitions: int) -> dict[int, int]:
    """Returns the committed offsets of the partitions of a topic. Partitions without an offset have a negative one."""
    # A consumer, because requests of an AdminClient for the offsets of a group have crashed librdkafka 2.16 on a busy machine.
    consumer = Consumer({"bootstrap.servers": topics.servers, "group.id": group, "enable.auto.commit": False, "log_level": 0})
    places = [TopicPartition(name, partition) for partition in range(partitions)]

    def answer():
        try:
            return consumer.committed(places, timeout=10)
        except KafkaException as error:
            if error.args[0].code() in NOT_READY:
                return None
            raise

    try:
        return {one.partition: one.offset for one in wait_for(answer, "the offsets of the group")}
    finally:
        consumer.close()
