"""Starts real Kafka brokers in KRaft mode on this machine, from the jars that Maven downloads, with temporary directories."""

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from certificates import Certificates

sys.path.append(str(Path(__file__).resolve().parents[1]))

from preparation import downloads  # noqa: E402
from preparation.ports import SHARED, Ports  # noqa: E402

# The security protocol of each listener that clients use.
LISTENERS = {"PLAINTEXT": "PLAINTEXT", "TLS": "SSL", "MUTUAL": "SSL", "SASL": "SASL_PLAINTEXT", "SASLTLS": "SASL_SSL", "OAUTH": "SASL_PLAINTEXT"}
USERS = {"alice": "alice-secret-1"}
START_TIMEOUT_S = 60
# Small heaps and one compiler start faster; the programs do little.
JVM_FLAGS = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


def missing_programs() -> str:
    """Returns what is missing to run brokers, or an empty string."""
    missing = [program for program in ("java", "openssl") if not shutil.which(program)]
    if not downloads.is_available("kafka"):
        missing.append("mvn")
    return ", ".join(missing)


free_ports = Ports(SHARED).take


class Brokers:
    """A cluster of brokers. `secure` adds listeners for TLS and SASL. `jwks` is a file with the keys that sign OAuth tokens."""

    def __init__(self, folder: Path, count: int = 1, secure: bool = False, jwks: Path | None = None) -> None:
        self.jars = downloads.provide("kafka") / "jars"
        self.folder, self.count, self.jwks = folder, count, jwks
        folder.mkdir(parents=True, exist_ok=True)
        names = list(LISTENERS) if secure else ["PLAINTEXT"]
        ports = iter(free_ports(count * (len(names) + 1)))
        self.ports = [{name: next(ports) for name in [*names, "CONTROLLER"]} for _ in range(count)]
        self.certificates = Certificates(folder / "certificates") if secure else None
        self.processes: list[subprocess.Popen | None] = [None] * count
        for number in range(count):
            self._configure(number)
        self._format()

    def start(self) -> None:
        for number in range(self.count):
            self.start_broker(number)
        self.wait_until_ready()

    def start_broker(self, number: int) -> None:
        log = (self.folder / f"{number}.log").open("ab")
        java = ["java", *JVM_FLAGS, *self._oauth_flags(), "-cp", f"{self.jars}/*", "kafka.Kafka"]
        self.processes[number] = subprocess.Popen([*java, str(self._config(number))], stdout=log, stderr=log)

    def kill(self, number: int) -> None:
        """Ends a broker without warning."""
        process = self.processes[number]
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.processes[number] = None

    def stop(self) -> None:
        for number, process in enumerate(self.processes):
            if process:
                self.kill(number)
        shutil.rmtree(self.folder, ignore_errors=True)

    def servers(self, listener: str = "PLAINTEXT") -> str:
        return ",".join(f"127.0.0.1:{ports[listener]}" for ports in self.ports)

    def url(self, listener: str = "PLAINTEXT") -> str:
        return f"kafka://{self.servers(listener)}"

    def wait_until_ready(self) -> None:
        from confluent_kafka.admin import AdminClient

        # By default, librdkafka waits for up to 10 s before it connects again.
        admin = AdminClient({"bootstrap.servers": self.servers(), "log_level": 0, "reconnect.backoff.max.ms": 200})
        wanted = sum(process is not None for process in self.processes)
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end:
            try:
                if len(admin.list_topics(timeout=2).brokers) >= wanted:
                    return
            except Exception:  # noqa: BLE001 - the broker does not listen yet
                pass
            dead = [number for number, process in enumerate(self.processes) if process and process.poll() is not None]
            if dead:
                raise RuntimeError(f"broker {dead[0]} ended: {(self.folder / f'{dead[0]}.log').read_text()[-2000:]}")
        raise TimeoutError(f"the brokers did not start within {START_TIMEOUT_S} s")

    def _config(self, number: int) -> Path:
        return self.folder / f"{number}.properties"

    def _oauth_flags(self) -> list[str]:
        return [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.jwks.as_uri()}"] if self.jwks else []

    def _configure(self, number: int) -> None:
        ports = self.ports[number]
        copies = min(self.count, 3)
        voters = ",".join(f"{voter}@127.0.0.1:{ports['CONTROLLER']}" for voter, ports in enumerate(self.ports))
        protocols = {name: LISTENERS.get(name, "PLAINTEXT") for name in ports}
        settings = {
            "process.roles": "broker,controller",
            "node.id": number,
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": self.folder / f"data-{number}",
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": min(copies, 2),
            "transaction.state.log.num.partitions": 1,
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": min(copies, 2),
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
            # Retention and compaction run soon and often.
            "log.initial.task.delay.ms": 200,
            "log.retention.check.interval.ms": 300,
            "log.cleaner.backoff.ms": 200,
            "log.segment.delete.delay.ms": 100,
            "broker.session.timeout.ms": 3000,
            "broker.heartbeat.interval.ms": 500,
            **(self._security_settings() if self.certificates else {}),
        }
        self._config(number).write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def _format(self) -> None:
        """Formats the directories of all brokers at the same time."""
        users = [f"--add-scram={kind}=[name={user},password={word}]" for kind in ("SCRAM-SHA-256", "SCRAM-SHA-512") for user, word in USERS.items()]
        command = ["java", *JVM_FLAGS, "-cp", f"{self.jars}/*", "kafka.tools.StorageTool", "format", "-t", uuid.uuid4().hex[:22]]
        command += users if self.certificates else []
        formats = [subprocess.Popen([*command, "-c", str(self._config(number))], stdout=subprocess.DEVNULL) for number in range(self.count)]
        for process in formats:
            if process.wait(START_TIMEOUT_S) != 0:
                raise RuntimeError(f"cannot format a directory of a broker: status {process.returncode}")

    def _security_settings(self) -> dict[str, object]:
        plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        plain_users = " ".join(f'user_{user}="{word}"' for user, word in USERS.items())
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        bearer = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
        settings: dict[str, object] = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.certificates.server_store,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.certificates.authority,
            "listener.name.mutual.ssl.client.auth": "required",
        }
        for listener in ("sasl", "sasltls"):
            settings |= {
                f"listener.name.{listener}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
                f"listener.name.{listener}.plain.sasl.jaas.config": f"{plain} {plain_users};",
                f"listener.name.{listener}.scram-sha-256.sasl.jaas.config": scram,
                f"listener.name.{listener}.scram-sha-512.sasl.jaas.config": scram,
            }
        settings["listener.name.oauth.sasl.enabled.mechanisms"] = "OAUTHBEARER"
        settings["listener.name.oauth.oauthbearer.sasl.jaas.config"] = bearer
        if self.jwks:
            settings |= {
                "listener.name.oauth.oauthbearer.sasl.server.callback.handler.class": "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
                "listener.name.oauth.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": self.jwks.as_uri(),
                "listener.name.oauth.oauthbearer.sasl.oauthbearer.expected.audience": "kafka",
            }
        return settings


if __name__ == "__main__":
    # `make kafka` keeps brokers until it is interrupted.
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        brokers = Brokers(Path(folder), int(os.environ.get("BROKERS", "3")))
        try:
            brokers.start()
            print(f"{brokers.count} brokers listen; bootstrap servers: {brokers.servers()}; interrupt to stop them", flush=True)
            signal.pause()
        except KeyboardInterrupt:
            pass
        finally:
            brokers.stop()
