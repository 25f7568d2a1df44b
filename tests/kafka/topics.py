"""Creates topics and produces records with the Python client of librdkafka."""

import json

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic, OffsetSpec, ResourceType
from jobs import wait_for


class Topics:
    """Topics of one cluster."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.admin = _connect(servers)

    def create(self, name: str, partitions: int = 1, copies: int = 1, **config: object) -> str:
        self._create(NewTopic(name, num_partitions=partitions, replication_factor=copies, config=_settings(config)))
        return name

    def create_on(self, name: str, brokers: list[int], **config: object) -> str:
        """Creates a topic with one partition, whose copies are on these brokers."""
        self._create(NewTopic(name, num_partitions=1, replica_assignment=[brokers], config=_settings(config)))
        return name

    def _create(self, topic: NewTopic) -> None:
        self.admin.create_topics([topic])[topic.topic].result(30)

    def add_partitions(self, name: str, count: int) -> None:
        """Increases the number of partitions to `count`. Returns when each broker lists them, so that producers know them."""
        self.admin.create_partitions([NewPartitions(name, count)])[name].result(30)
        for server in self.servers.split(","):
            admin = _connect(server)
            wait_for(lambda: _count_partitions(admin, name) == count, f"{server} lists {count} partitions of {name}")

    def set_config(self, name: str, **config: object) -> None:
        """Changes settings of a topic."""
        entries = [
            ConfigEntry(key.replace("_", "."), str(value), incremental_operation=AlterConfigOpType.SET) for key, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        [changed] = self.admin.incremental_alter_configs([resource]).values()
        changed.result(30)

    def delete(self, name: str) -> None:
        self.admin.delete_topics([name])[name].result(30)

    def exists(self, name: str) -> bool:
        """Whether the brokers list a topic, or do not answer soon."""
        return _count_partitions(self.admin, name) != 0

    def producer(self, **config: object) -> Producer:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        return Producer({"bootstrap.servers": self.servers, "enable.idempotence": True, "log_level": 0, **settings})

    def produce(self, name: str, count: int, partitions: int = 1, first: int = 0, padding: int = 0, **config: object) -> None:
        """Produces JSON objects with the keys `n` and `text`."""
        producer, failed = self.producer(**config), []

        def on_delivery(error, _):
            if error:
                failed.append(str(error))

        for number in range(first, first + count):
            payload = json.dumps({"n": number, "text": f"row {number}" + "x" * padding})
            send(producer, name, payload, number % partitions, key=f"key {number}", on_delivery=on_delivery)
        assert producer.flush(60) == 0 and failed == [], failed[:3]

    def delete_records(self, name: str, before: int, partition: int = 0) -> None:
        """Deletes the records before an offset."""
        [deleted] = self.admin.delete_records([TopicPartition(name, partition, before)]).values()
        assert deleted.result(30).low_watermark == before

    def end_offset(self, name: str, partition: int = 0) -> int:
        """The offset of the next record."""
        return self._offset(name, partition, OffsetSpec.latest())

    def _offset(self, name: str, partition: int, spec: OffsetSpec) -> int:
        place = TopicPartition(name, partition)
        return self.admin.list_offsets({place: spec})[place].result(10).offset


def _settings(config: dict[str, object]) -> dict[str, str]:
    return {key.replace("_", "."): str(value) for key, value in config.items()}


def _connect(servers: str) -> AdminClient:
    # By default, librdkafka waits for up to 10 s before it connects again.
    return AdminClient({"bootstrap.servers": servers, "log_level": 0, "reconnect.backoff.max.ms": 200})


def _count_partitions(admin: AdminClient, name: str) -> int | None:
    """Returns the number of partitions of a topic, and 0 if it does not exist. `None` if the brokers do not answer soon."""
    try:
        topic = admin.list_topics(timeout=5).topics.get(name)
    except KafkaException:
        return None
    return len(topic.partitions) if topic else 0


def send(producer: Producer, name: str, payload: str | bytes | None, partition: int = 0, **options: object) -> None:
    """Adds a record to the queue of the producer, which waits if it is full."""
    while True:
        try:
            producer.produce(name, payload, partition=partition, **options)
            producer.poll(0)
            return
        except BufferError:
            producer.poll(0.1)
