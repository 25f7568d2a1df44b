//! PyArrow reads a job as a plain Arrow Flight client.

use std::process::Command;

use feedline_tests::process::Role;
use feedline_tests::{Scratch, data};
use serde_json::{Value, json};

/// Reads all endpoints of a flight in turn, and prints one JSON object. Then it exits without closing its streams.
const CLIENT: &str = "
import json, os, sys
import pyarrow
import pyarrow.flight as flight
client = flight.connect(sys.argv[1])
descriptor = flight.FlightDescriptor.for_command(sys.argv[2].encode())
limit = int(sys.argv[3])
try:
    info = client.get_flight_info(descriptor)
    batches = []
    for endpoint in info.endpoints:
        reader = client.do_get(endpoint.ticket)
        schema = reader.schema
        while limit:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                break
            columns = {}
            for name, column in zip(chunk.data.schema.names, chunk.data.columns):
                if 'tensor' in str(column.type):
                    array = column.to_numpy_ndarray()
                    columns[name] = [str(array.dtype), list(array.shape), int(array.sum())]
                else:
                    columns[name] = column.to_pylist()
            batches.append({'rows': chunk.data.num_rows, 'columns': columns, 'metadata': json.loads(chunk.app_metadata.to_pybytes())})
            limit -= 1
    print(json.dumps({'records': info.total_records, 'schema': [str(field.type) for field in schema],
                      'same': info.schema.equals(schema), 'batches': batches}))
except pyarrow.ArrowException as error:
    print(json.dumps({'error': str(error)}))
sys.stdout.flush()
os._exit(0)
";

/// Returns the output of PyArrow; `None` if it is not installed.
fn read(url: &str, command: &str, limit: &str) -> Option<Value> {
    let python = data::python("reading by Arrow Flight")?;
    let url = url.replace("http://", "grpc://");
    let output =
        Command::new(python).args(["-c", CLIENT, &url, command, limit]).output().expect("Python starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).expect("the script prints JSON"))
}

fn up() -> Role {
    let up = ["up", "--listen", "127.0.0.1:0", "--workers", "2", "--cores", "2", "--memory", "256MiB"];
    Role::start(&up, &[])
}

fn images(scratch: &Scratch) -> String {
    scratch.make_data("images", "images", &["--format", "tfrecord", "--rows", "50", "--shards", "3"]);
    format!(
        "name: flight\nsource: {{ url: \"{}/*\", format: tfrecord, features: {{ image: image/encoded, label: image/class/label }} }}\n\
         seed: 3\nshuffle: {{ window: 40 }}\noperators: [ random_resized_crop: {{ column: image, size: [24, 32] }}, batch: {{ size: 16 }} ]",
        scratch.file("images")
    )
}

#[test]
fn pyarrow_reads_batches_as_tensors_with_their_positions() {
    let (scratch, up) = (Scratch::new(), up());
    let pipeline = images(&scratch);
    let Some(read_all) = read(&up.url(), &pipeline, "100") else { return };
    assert_eq!(read_all["records"], 50, "{read_all}");
    assert_eq!(read_all["same"], true);
    assert!(read_all["schema"].to_string().contains("fixed_shape_tensor"), "{}", read_all["schema"]);
    let batches = read_all["batches"].as_array().expect("a list");
    let rows: Vec<u64> = batches.iter().map(|batch| batch["rows"].as_u64().expect("a count")).collect();
    assert_eq!(rows, [16, 16, 16, 2]);
    assert_eq!(batches[0]["columns"]["image"][0], "uint8");
    assert_eq!(batches[0]["columns"]["image"][1], json!([16, 24, 32, 3]));
    // A job from the position of the second batch delivers the rest.
    let start = batches[1]["metadata"]["position"].clone();
    let command = json!({ "pipeline": pipeline, "start": start }).to_string();
    let rest = read(&up.url(), &command, "100").expect("Python was there");
    let columns = |batch: &Value| batch["columns"].clone();
    let rest: Vec<Value> = rest["batches"].as_array().expect("a list").iter().map(columns).collect();
    assert_eq!(rest, batches[2..].iter().map(columns).collect::<Vec<_>>());
}

#[test]
fn every_consumer_of_a_job_has_its_own_ticket() {
    let (scratch, up) = (Scratch::new(), up());
    scratch.make_data("table", "table", &["--format", "jsonl", "--rows", "100", "--shards", "2"]);
    let pipeline = format!(
        "name: table\nsource: {{ url: \"{}/*\", format: jsonl }}\noperators: [ select: {{ columns: [id] }}, batch: {{ size: 8 }} ]",
        scratch.file("table")
    );
    let command = json!({ "pipeline": pipeline, "consumers": 2, "epochs": 2 }).to_string();
    let Some(read) = read(&up.url(), &command, "1000") else { return };
    let batches = read["batches"].as_array().expect("a list");
    let mut ids: Vec<i64> = Vec::new();
    for batch in batches {
        ids.extend(batch["columns"]["id"].as_array().expect("a list").iter().filter_map(Value::as_i64));
    }
    ids.sort_unstable();
    let expected: Vec<i64> = (0..100).flat_map(|id| [id, id]).collect();
    assert_eq!(ids, expected);
}

/// A batch has 6 MB. The buffers of the connection may contain one that the reader has not received.
#[test]
fn a_reader_that_disappears_loses_at_most_the_batch_in_its_buffers() {
    let (scratch, up) = (Scratch::new(), up());
    let pipeline = images(&scratch).replace("[24, 32]", "[512, 512]").replace("size: 16", "size: 8");
    let command = |job: &str| json!({ "pipeline": pipeline, "job": job }).to_string();
    let Some(all) = read(&up.url(), &command("all"), "100") else { return };
    let columns = |read: &Value| -> Vec<Value> {
        let batches = read["batches"].as_array().expect("a list");
        batches.iter().map(|batch| batch["columns"].clone()).collect()
    };
    let all = columns(&all);
    assert_eq!(all.len(), 7);
    let first = columns(&read(&up.url(), &command("interrupted"), "2").expect("Python was there"));
    assert_eq!(first, all[..2]);
    let rest = columns(&read(&up.url(), &command("interrupted"), "100").expect("Python was there"));
    // The coordinator may not have received the report of earlier batches, which are then delivered again.
    assert!(rest.len() >= 4, "{} batches", rest.len());
    assert_eq!(rest, all[all.len() - rest.len()..]);
}

#[test]
fn an_invalid_flight_is_an_error() {
    let (scratch, up) = (Scratch::new(), up());
    let pipeline = images(&scratch);
    for (command, reason) in [
        (pipeline.replace("column: image, size", "column: imge, size"), "did you mean `image`"),
        (pipeline.replace("/images/", "/nowhere/"), "nowhere"),
        ("{\"pipeline\": \"\", \"epoch\": 2}".to_owned(), "unknown field `epoch`"),
    ] {
        let Some(read) = read(&up.url(), &command, "1") else { return };
        assert!(read["error"].as_str().is_some_and(|error| error.contains(reason)), "{read}");
    }
}
