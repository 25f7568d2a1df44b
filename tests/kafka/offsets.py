"""Reads the offsets of consumer groups."""

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from jobs import wait_for
from topics import Topics

# A broker answers so while it reads the offsets of a group that it has just become the coordinator of.
NOT_READY = {KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR}


def committed(topics: Topics, group: str, name: str, partitions: int) -> dict[int, int]:
    """Returns the committed offsets of the partitions of a topic. Partitions without an offset have a negative one."""
    request = ConsumerGroupTopicPartitions(group, [TopicPartition(name, partition) for partition in range(partitions)])

    def answer():
        [future] = topics.admin.list_consumer_group_offsets([request]).values()
        try:
            return future.result(30).topic_partitions
        except KafkaException as error:
            if error.args[0].code() in NOT_READY:
                return None
            raise

    return {one.partition: one.offset for one in wait_for(answer, "the offsets of the group")}
