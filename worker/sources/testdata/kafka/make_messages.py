"""Writes messages of confluent-kafka's serialisers, and what a schema registry answers, for the tests of payloads.

Run with the packages `confluent-kafka[avro,json,protobuf,schemaregistry]==2.16.1`: python make_messages.py
"""

import base64
import json
import sys
from pathlib import Path
from urllib.parse import quote

from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

HERE = Path(__file__).parent
CONFIG = {"auto.register.schemas": False, "use.latest.version": True}


def record(name, fields, **options):
    return json.dumps({"type": "record", "name": name, "namespace": "test", "fields": fields, **options})


def field(name, kind, **options):
    return {"name": name, "type": kind, **options}


POINT = record("Point", [field("x", "double"), field("y", ["null", "double"], default=None)])
AVRO_OLD = record("Event", [field("id", "int"), field("name", "string"), field("gone", "string")])
AVRO_NEW = record(
    "Event",
    [
        field("id", "long"),
        field("title", "string", aliases=["name"]),
        field("score", "double", default=1.5),
        field("flags", {"type": "array", "items": "boolean"}, default=[]),
        field("kind", {"type": "enum", "name": "Kind", "symbols": ["A", "B"], "default": "A"}, default="B"),
        field("raw", ["null", "bytes"], default=None),
        field("place", ["null", "test.Point"], default=None),
        field("at", {"type": "long", "logicalType": "timestamp-millis"}, default=0),
    ],
)
AVRO_OTHER = record("Other", [field("id", "string")])
JSON_SCHEMA = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Event",
        "type": "object",
        "properties": {"id": {"type": "integer"}, "name": {"type": ["null", "string"]}, "tags": {"type": "array", "items": {"type": "string"}}},
    }
)
JSON_OTHER = json.dumps({"title": "Event", "type": "object", "properties": {"id": {"type": "string"}}})


def protobuf_messages():
    """Builds the messages of event.proto without protoc."""
    file = descriptor_pb2.FileDescriptorProto(name="event.proto", package="test", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    kinds = descriptor_pb2.FieldDescriptorProto
    outer = file.message_type.add(name="Event")

    def add(message, name, number, kind, repeated=False, type_name="", optional=False):
        label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
        added = message.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)
        if optional:
            added.proto3_optional = True
            added.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{name}")

    add(outer, "id", 1, kinds.TYPE_INT64)
    add(outer, "name", 2, kinds.TYPE_STRING)
    add(outer, "data", 3, kinds.TYPE_BYTES)
    add(outer, "ratios", 4, kinds.TYPE_FLOAT, repeated=True)
    add(outer, "place", 5, kinds.TYPE_MESSAGE, type_name=".test.Event.Place")
    add(outer, "kind", 6, kinds.TYPE_ENUM, type_name=".test.Kind")
    add(outer, "small", 7, kinds.TYPE_UINT32, optional=True)
    add(outer, "at", 8, kinds.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
    place = outer.nested_type.add(name="Place")
    add(place, "city", 1, kinds.TYPE_STRING)
    add(place, "zip", 2, kinds.TYPE_SINT32)
    enum = file.enum_type.add(name="Kind")
    enum.value.add(name="UNKNOWN", number=0)
    enum.value.add(name="CLICK", number=1)
    other = file.message_type.add(name="Other")
    add(other, "id", 1, kinds.TYPE_INT64)
    from google.protobuf import timestamp_pb2  # noqa: F401 - registers the file

    pool = descriptor_pool.Default()
    pool.Add(file)
    # The client sends schemas in this form; a registry answers with their text.
    serialized = base64.b64encode(file.SerializeToString()).decode()
    get = lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name))  # noqa: E731
    return serialized, get("test.Event"), get("test.Event.Place"), get("test.Other")


def route_message():
    """Builds route.proto, which imports point.proto. Returns its message."""
    kinds = descriptor_pb2.FieldDescriptorProto
    pool = descriptor_pool.Default()
    imported = descriptor_pb2.FileDescriptorProto(name="common/point.proto", package="common", syntax="proto3")
    point = imported.message_type.add(name="Point")
    for number, name in enumerate(("x", "y"), 1):
        point.field.add(name=name, number=number, type=kinds.TYPE_DOUBLE, label=kinds.LABEL_OPTIONAL)
    pool.Add(imported)
    file = descriptor_pb2.FileDescriptorProto(name="route.proto", package="test", syntax="proto3", dependency=["common/point.proto"])
    route = file.message_type.add(name="Route")
    route.field.add(name="name", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    for number, name in enumerate(("start", "end"), 2):
        route.field.add(name=name, number=number, type=kinds.TYPE_MESSAGE, label=kinds.LABEL_OPTIONAL, type_name=".common.Point")
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("test.Route"))


POINT_PROTO = """syntax = "proto3";
package common;
message Point { double x = 1; double y = 2; }
"""
ROUTE_PROTO = """syntax = "proto3";
package test;
import "common/point.proto";
message Route {
  string name = 1;
  common.Point start = 2;
  common.Point end = 3;
}
"""
EVENT_PROTO = """syntax = "proto3";
package test;
import "google/protobuf/timestamp.proto";
message Event {
  int64 id = 1;
  string name = 2;
  bytes data = 3;
  repeated float ratios = 4;
  Place place = 5;
  Kind kind = 6;
  optional uint32 small = 7;
  google.protobuf.Timestamp at = 8;
  message Place { string city = 1; sint32 zip = 2; }
}
enum Kind { UNKNOWN = 0; CLICK = 1; }
message Other { int64 id = 1; }
"""
# The text of the schemas of subjects; the others have EVENT_PROTO.
PROTOS = {"common/point.proto": POINT_PROTO, "route-value": ROUTE_PROTO}


def main():
    client = SchemaRegistryClient.new_client({"url": "mock://"})
    messages = {}

    def keep(topic, serializer, *values):
        context = SerializationContext(topic, MessageField.VALUE)
        messages.setdefault(topic, []).extend(serializer(value, context).hex() for value in values)

    client.register_schema("point", Schema(POINT, "AVRO"))
    client.register_schema("avro-value", Schema(AVRO_OLD, "AVRO"))
    keep("avro", AvroSerializer(client, conf=CONFIG), {"id": 1, "name": "old", "gone": "x"})
    reference = SchemaReference("test.Point", "point", 1)
    client.register_schema("avro-value", Schema(AVRO_NEW, "AVRO", [reference]))
    new = {"id": 2, "title": "new", "score": 0.5, "flags": [True, False], "kind": "A", "raw": b"\x01\xff", "place": {"x": 1.0, "y": None}, "at": 5}
    keep("avro", AvroSerializer(client, conf=CONFIG), new, {**new, "id": 3, "place": None, "raw": None, "flags": []})
    client.register_schema("other-value", Schema(AVRO_OTHER, "AVRO"))
    keep("other", AvroSerializer(client, conf=CONFIG), {"id": "text"})

    client.register_schema("json-value", Schema(JSON_SCHEMA, "JSON"))
    keep("json", JSONSerializer(JSON_SCHEMA, client, conf=CONFIG), {"id": 1, "name": "a", "tags": ["x", "y"]}, {"id": 2, "name": None})
    client.register_schema("json-other-value", Schema(JSON_OTHER, "JSON"))
    keep("json-other", JSONSerializer(JSON_OTHER, client, conf=CONFIG), {"id": "no number"})

    serialized, Event, Place, Other = protobuf_messages()
    client.register_schema("protobuf-value", Schema(serialized, "PROTOBUF"))
    conf = {**CONFIG, "use.deprecated.format": False, "skip.known.types": True}
    full = Event(id=-7, name="ä", data=b"\x00\x01", ratios=[0.5, 1.5], place=Place(city="c", zip=-3), kind=1, small=0)
    full.at.seconds = 9
    keep("protobuf", ProtobufSerializer(Event, client, conf=conf), full, Event(id=1))
    keep("protobuf", ProtobufSerializer(Other, client, conf=conf), Other(id=2))
    # The serialiser finds nested messages only if it registers the schema.
    registering = {**conf, "auto.register.schemas": True, "use.latest.version": False}
    keep("place", ProtobufSerializer(Place, client, conf=registering), Place(city="nested", zip=4))
    # The serialiser registers the imported file as a subject with the name of the file.
    Route = route_message()
    route = Route(name="both", start={"x": 1.5}, end={"y": -2.0})
    keep("route", ProtobufSerializer(Route, client, conf=registering), route, Route(name="none"))

    answers = {}
    for subject in client.get_subjects():
        for version in client.get_versions(subject):
            found = client.get_version(subject, version)
            schema = found.schema
            answer = {"subject": subject, "version": version, "id": found.schema_id, "schema": PROTOS.get(subject, EVENT_PROTO) if schema.schema_type == "PROTOBUF" else schema.schema_str}
            if schema.schema_type != "AVRO":
                answer["schemaType"] = schema.schema_type
            if schema.references:
                answer["references"] = [{"name": r.name, "subject": r.subject, "version": r.version} for r in schema.references]
            escaped = quote(subject, safe="")
            answers[f"/subjects/{escaped}/versions/{version}"] = answer
            answers[f"/subjects/{escaped}/versions/latest"] = answer
            answers[f"/schemas/ids/{found.schema_id}"] = {key: answer[key] for key in ("schema", "schemaType", "references") if key in answer}
    (HERE / "messages.json").write_text(json.dumps({"messages": messages, "answers": answers}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(main())
