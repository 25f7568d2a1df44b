//! Compressed files deliver the rows of the plain files, and are decompressed about once per epoch. `feedline lint` and `feedline explain`
//! report files that must be decompressed from their start.

use std::fs;
use std::io::Read;
use std::path::Path;

use feedline_tests::http::{get, metric};
use feedline_tests::process::{Processes, Role};
use feedline_tests::running::Running;
use feedline_tests::{Scratch, assert_clean, compress, wait_for_rows};
use flate2::read::GzDecoder;
use serde_json::Value;

/// Compresses each file of a directory into another directory.
fn compress_all(from: &str, to: &str, ending: &str, compress: impl Fn(&[u8]) -> Vec<u8>) {
    fs::create_dir(to).expect("the scratch directory is writable");
    for entry in fs::read_dir(from).expect("the directory exists") {
        let entry = entry.expect("the directory is readable");
        let name = entry.file_name().into_string().expect("the name is text");
        let content = fs::read(entry.path()).expect("the file is readable");
        fs::write(Path::new(to).join(name + ending), compress(&content)).expect("the file is writable");
    }
}

#[test]
fn gzip_files_of_every_format_deliver_the_rows_of_the_plain_files() {
    let scratch = Scratch::new();
    let cases = [
        ("jsonl", "table", "3000"),
        ("csv", "table", "3000"),
        ("text", "text", "4000"),
        ("tfrecord", "images", "60"),
        ("webdataset", "images", "60"),
    ];
    for (format, kind, rows) in cases {
        scratch.make_data(kind, format, &["--format", format, "--rows", rows, "--seed", "2"]);
        let compressed = format!("{format}-gz");
        compress_all(&scratch.file(format), &scratch.file(&compressed), ".gz", |content| {
            compress::gzip(content, 6)
        });
        for window in [0, 500] {
            let run = |folder: &str| {
                let text = format!(
                    "name: job\nsource: {{ url: \"{}/*\", format: {format} }}\nseed: 3\nshuffle: {{ window: {window} }}\n\
                     operators: [ batch: {{ size: 50 }} ]\n",
                    scratch.file(folder)
                );
                let file = scratch.write(&format!("{folder}.yaml"), &text);
                let report = scratch.run(&file, &["--workers", "2"]);
                assert_clean(&report);
                report
            };
            let (plain, compressed) = (run(format), run(&compressed));
            assert_eq!(compressed["content_digest"], plain["content_digest"], "{format}");
            if window == 0 {
                assert_eq!(compressed["digest"], plain["digest"], "{format}");
            }
        }
    }
}

/// The workers, the copies of the file and the shuffle window of a job.
type CountedJob = (&'static str, u32, u32);

const JOBS: [CountedJob; 4] = [("1", 4, 0), ("1", 4, 3000), ("3", 4, 0), ("3", 4, 3000)];
/// Jobs over copies of a small file. Several workers decompress up to 10 MiB of a job twice, whatever its size, so the job on three workers
/// has more data. bzip2 and xz are slow, and splits do not depend on the codec, so they run on one worker only.
const JOBS_OF_SMALL_FILES: [CountedJob; 2] = [("1", 2, 3000), ("3", 14, 3000)];

/// Runs jobs on copies of a compressed file, and compares the decompressed bytes with the content.
fn check_decompressed_bytes(file: &[u8], ending: &str, content_bytes: usize, jobs: &[CountedJob]) {
    let scratch = Scratch::new();
    for &(workers, copies, window) in jobs {
        let folder = scratch.file(&format!("data-{copies}"));
        if fs::create_dir(&folder).is_ok() {
            for shard in 0..copies {
                fs::write(format!("{folder}/{shard}.txt.{ending}"), file).expect("the file is writable");
            }
        }
        let source = format!("url: \"{folder}/*\", format: text");
        check_job(&scratch, &source, workers, window, copies as usize * content_bytes);
    }
}

/// Runs a job, and compares the decompressed bytes with the content.
fn check_job(scratch: &Scratch, source: &str, workers: &str, window: u32, content_bytes: usize) {
    let text = format!(
        "name: job\nsource: {{ {source} }}\nseed: 3\nshuffle: {{ window: {window} }}\noperators: [ batch: {{ size: 64 }} ]\n"
    );
    let file = scratch.write("job.yaml", &text);
    let arguments = ["up", "--listen", "127.0.0.1:0", "--workers", workers, "--http", "127.0.0.1:0"];
    let up = Role::start(&arguments, &[]);
    assert_clean(&scratch.run(&file, &["--coordinator", &up.url()]));
    let read = metric(up.http(), "feedline_worker_decompressed_bytes_total{purpose=\"read\"}");
    let ratio = read / content_bytes as f64;
    println!("{source}, {workers} workers, window {window}: {ratio}");
    let page = get(up.http(), "/metrics");
    assert!((0.99..1.1).contains(&ratio), "{source}, {workers} workers, window {window}: {ratio}\n{page}");
}

#[test]
fn an_epoch_decompresses_at_most_a_tenth_more_than_the_content() {
    let content = compress::text();
    check_decompressed_bytes(&compress::gzip(content, 6), "gz", content.len(), &JOBS);
}

#[test]
fn an_epoch_decompresses_a_gzip_file_with_one_block_once() {
    // The first compression level writes a single block.
    let content = compress::text();
    check_decompressed_bytes(&compress::gzip(content, 1), "gz", content.len(), &JOBS);
}

#[test]
fn an_epoch_decompresses_a_zstd_file_with_one_frame_once() {
    let content = compress::text();
    let file = zstd::encode_all(content, 1).expect("memory is writable");
    check_decompressed_bytes(&file, "zst", content.len(), &JOBS);
}

#[test]
fn an_epoch_of_a_mix_decompresses_files_with_one_frame_once() {
    let content = compress::text();
    let file = zstd::encode_all(content, 1).expect("memory is writable");
    let scratch = Scratch::new();
    let copies = [("a", 6), ("b", 3)];
    for (folder, copies) in copies {
        fs::create_dir(scratch.file(folder)).expect("the scratch directory is writable");
        for shard in 0..copies {
            fs::write(scratch.file(&format!("{folder}/{shard}.zst")), &file).expect("the file is writable");
        }
    }
    let part = |folder: &str, weight: u32| {
        format!("{{ url: \"{}/*\", format: text, weight: {weight} }}", scratch.file(folder))
    };
    let source = format!("mix: [ {}, {} ]", part("a", 2), part("b", 1));
    for window in [0, 3000] {
        check_job(&scratch, &source, "3", window, 9 * content.len());
    }
}

#[test]
fn an_epoch_decompresses_bzip2_xz_and_zstd_files_with_blocks_at_most_a_tenth_more() {
    // One block of xz with this content is a long run.
    let content = &compress::text()[..10 << 20];
    for (file, ending, jobs) in [
        (compress::bzip2(content), "bz2", 1),
        (compress::xz(content), "one-block.xz", 1),
        (compress::xz_blocks(content), "blocks.xz", 1),
        (compress::zstd_frames(content), "zst", 2),
    ] {
        check_decompressed_bytes(&file, ending, content.len(), &JOBS_OF_SMALL_FILES[..jobs]);
    }
}

/// Writes copies of a file into a folder.
fn write_copies(scratch: &Scratch, folder: &str, copies: usize, file: &[u8]) {
    fs::create_dir(scratch.file(folder)).expect("the scratch directory is writable");
    for shard in 0..copies {
        fs::write(scratch.file(&format!("{folder}/{shard}")), file).expect("the file is writable");
    }
}

/// Writes a pipeline that reads all files of a folder.
fn write_pipeline(scratch: &Scratch, folder: &str, format: &str, batch_rows: u32) -> String {
    let text = format!(
        "name: job\nsource: {{ url: \"{}/*\", format: {format} }}\nseed: 3\nshuffle: {{ window: 500 }}\n\
         operators: [ batch: {{ size: {batch_rows} }} ]\n",
        scratch.file(folder)
    );
    scratch.write(&format!("{folder}.yaml"), &text)
}

/// Runs a job with 1, 2 and 4 workers, and with two workers of which one is killed. Checks that each run delivers each row once, in the
/// same order. Returns the digest of the content.
fn run_on_fleets(scratch: &Scratch, folder: &str, format: &str, batch_rows: u32) -> Value {
    let pipeline = write_pipeline(scratch, folder, format, batch_rows);
    let shape = ["--virtual-consumers", "4"];
    let mut reports: Vec<Value> = ["1", "2", "4"]
        .iter()
        .map(|workers| scratch.run(&pipeline, &[&["--workers", workers][..], &shape].concat()))
        .collect();
    let mut processes = Processes::start(scratch.path().join(format!("processes-{folder}")), 2);
    let url = processes.url();
    let slow = ["run", &pipeline, "--coordinator", &url, "--step-ms", "5", "--audit", "--report", "json"];
    let run = Running::start(&[&slow[..], &shape].concat());
    wait_for_rows(&url, 10 * u64::from(batch_rows));
    processes.workers[0].kill();
    reports.push(run.wait().report());
    for (fleet, report) in reports.iter().enumerate() {
        assert_clean(report);
        assert_eq!(report["content_digest"], reports[0]["content_digest"], "{folder}, fleet {fleet}");
        assert_eq!(report["digest"], reports[0]["digest"], "{folder}, fleet {fleet}");
    }
    reports[0]["content_digest"].clone()
}

/// The order of a shuffled job depends on the access points, so only the content of codecs is equal.
#[test]
fn all_detected_codecs_deliver_the_rows_of_the_plain_files_on_any_fleet_and_if_a_worker_is_killed() {
    let scratch = Scratch::new();
    let content = &compress::text()[..2 << 20];
    let codecs: [(&str, Vec<u8>); 6] = [
        ("plain", content.to_vec()),
        ("gzip", compress::gzip(content, 6)),
        ("zstd-frames", compress::zstd_frames(content)),
        ("zstd-run", compress::zstd_run(content)),
        ("bzip2", compress::bzip2(content)),
        ("xz", compress::xz_blocks(content)),
    ];
    let mut first_digest = None;
    for (name, file) in codecs {
        write_copies(&scratch, name, 3, &file);
        let digest = run_on_fleets(&scratch, name, "text", 50);
        assert_eq!(digest, *first_digest.get_or_insert_with(|| digest.clone()), "{name}");
    }
}

#[test]
fn long_runs_of_xz_deliver_the_rows_of_the_plain_files_on_any_fleet_and_if_a_worker_is_killed() {
    let scratch = Scratch::new();
    // Slightly more than the largest block.
    let content = &compress::text()[..(8 << 20) + (64 << 10)];
    write_copies(&scratch, "plain", 2, content);
    write_copies(&scratch, "xz-run", 2, &compress::xz(content));
    let plain = scratch.run(&write_pipeline(&scratch, "plain", "text", 50), &[]);
    assert_clean(&plain);
    assert_eq!(run_on_fleets(&scratch, "xz-run", "text", 50), plain["content_digest"]);
    let indexed = scratch.call(&["index", &scratch.file("xz-run.yaml")]);
    assert!(indexed.stdout.contains("can only be decompressed from its start"), "{}", indexed.stdout);
}

#[test]
fn tfrecord_files_of_zlib_deliver_the_rows_of_the_plain_files_on_any_fleet_and_if_a_worker_is_killed() {
    let scratch = Scratch::new();
    scratch.make_data("images", "plain", &["--format", "tfrecord", "--rows", "400", "--seed", "2"]);
    compress_all(&scratch.file("plain"), &scratch.file("zlib"), ".zlib", compress::zlib);
    let plain = scratch.run(&write_pipeline(&scratch, "plain", "tfrecord", 1), &[]);
    assert_clean(&plain);
    assert_eq!(run_on_fleets(&scratch, "zlib", "tfrecord", 1), plain["content_digest"]);
}

/// A long run is decompressed from its start, by one worker.
#[test]
fn a_stopped_run_and_a_killed_worker_continue_within_a_compressed_file() {
    let scratch = Scratch::new();
    let content = &compress::text()[..9 << 20];
    let files = [
        ("plain", content.to_vec()),
        ("gzip", compress::gzip(content, 6)),
        ("zstd-run", compress::zstd_run(content)),
        ("bzip2", compress::bzip2(content)),
    ];
    let mut content_digest = None;
    for (name, file) in files {
        write_copies(&scratch, name, 1, &file);
        let pipeline = write_pipeline(&scratch, name, "text", 50);
        let shape = ["--virtual-consumers", "2"];
        let whole = scratch.run(&pipeline, &shape);
        assert_clean(&whole);
        assert_eq!(
            whole["content_digest"],
            *content_digest.get_or_insert_with(|| whole["content_digest"].clone())
        );
        let place = scratch.file(&format!("{name}.json"));
        let parts = [("1", "1", "97"), ("3", "2", "301"), ("2", "1", "1000000")];
        let mut last = Value::Null;
        for (workers, consumers, limit) in parts {
            let part =
                ["--workers", workers, "--consumers", consumers, "--limit", limit, "--position", &place];
            last = scratch.run(&pipeline, &[&shape[..], &part].concat());
        }
        assert_eq!(last["digest"], whole["digest"], "{name}");
        let mut processes = Processes::start(scratch.path().join(format!("processes-{name}")), 2);
        let url = processes.url();
        let slow = ["run", &pipeline, "--coordinator", &url, "--step-ms", "2", "--audit", "--report", "json"];
        let run = Running::start(&[&slow[..], &shape].concat());
        wait_for_rows(&url, 3000);
        processes.workers[0].kill();
        let report = run.wait().report();
        assert_clean(&report);
        assert_eq!(report["digest"], whole["digest"], "{name}");
    }
}

/// The offset is a place in the content before the damage.
#[test]
fn a_damaged_file_of_each_codec_is_one_sentence_with_the_file_and_the_offset() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.file("data")).expect("the scratch directory is writable");
    let content = &compress::text()[..3 << 20];
    let text = format!(
        "name: job\nsource: {{ url: \"{}/*\", format: text }}\noperators: [ batch: {{ size: 50 }} ]\n",
        scratch.file("data")
    );
    let pipeline = scratch.write("job.yaml", &text);
    for (name, file) in [
        ("a.gz", compress::gzip(content, 6)),
        ("a.zst", compress::zstd_frames(content)),
        ("a.bz2", compress::bzip2(content)),
        ("a.xz", compress::xz_blocks(content)),
    ] {
        let mut flipped = file.clone();
        flipped[file.len() * 2 / 3] ^= 0x10;
        let with_garbage = [&file[..], b"no compressed data"].concat();
        for (damage, bytes) in
            [("truncated", &file[..file.len() * 2 / 3]), ("flipped", &flipped), ("garbage", &with_garbage)]
        {
            if (name, damage) == ("a.zst", "flipped") {
                // These frames have no checksums.
                continue;
            }
            let path = scratch.file(&format!("data/{name}"));
            fs::write(&path, bytes).expect("the file is writable");
            let failed = scratch.call(&["run", &pipeline]);
            assert_ne!(failed.status, 0, "{name} {damage}");
            let message = failed.stderr.lines().find(|line| line.contains(name));
            let message = message.unwrap_or_else(|| panic!("{name} {damage}: {}", failed.stderr));
            let offset = message
                .split("at byte ")
                .nth(1)
                .and_then(|rest| rest.split(|next: char| !next.is_ascii_digit()).next());
            let offset: usize = offset
                .and_then(|offset| offset.parse().ok())
                .unwrap_or_else(|| panic!("{name} {damage}: {message}"));
            // The last line may continue after the damage.
            let expected = match damage {
                "garbage" => content.len() - 1000..content.len() + 1,
                _ => content.len() / 4..content.len(),
            };
            assert!(expected.contains(&offset), "{name} {damage}: {message}");
            fs::remove_file(path).expect("the file exists");
        }
    }
}

/// Returns the complete lines before the damage of a truncated gzip file.
fn complete_lines(truncated: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    let decoded = GzDecoder::new(truncated).read_to_end(&mut content);
    assert!(decoded.is_err(), "the file is not truncated");
    let end = content.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
    content.truncate(end);
    content
}

#[test]
fn damaged_gzip_files_are_one_sentence_and_lose_no_row_before_the_damage() {
    let scratch = Scratch::new();
    for folder in ["data", "plain"] {
        fs::create_dir(scratch.file(folder)).expect("the scratch directory is writable");
    }
    let pipeline = |folder: &str, on_error: &str| {
        let text = format!(
            "name: job\nsource: {{ url: \"{}/*\", format: text }}\non_error: {on_error}\n\
             operators: [ batch: {{ size: 50 }} ]\n",
            scratch.file(folder)
        );
        scratch.write(&format!("{folder}-{on_error}.yaml"), &text)
    };
    let compressed = compress::gzip(&compress::text()[..4 << 20], 6);
    // The last file lacks a part of its checksum.
    for bytes in [compressed.len() / 3, compressed.len() / 2, compressed.len() - 5] {
        let truncated = &compressed[..bytes];
        fs::write(scratch.file("data/a.txt.gz"), truncated).expect("the file is writable");
        let failed = scratch.call(&["run", &pipeline("data", "fail")]);
        assert_ne!(failed.status, 0);
        assert!(
            failed.stderr.contains("a.txt.gz") && failed.stderr.contains("truncated"),
            "{}",
            failed.stderr
        );
        let report = scratch.run(&pipeline("data", "skip"), &[]);
        let lines = complete_lines(truncated);
        let rows = lines.iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(report["rows"].as_u64(), Some(rows as u64), "{bytes} of {} bytes", compressed.len());
        fs::write(scratch.file("plain/a.txt"), lines).expect("the file is writable");
        let plain = scratch.run(&pipeline("plain", "fail"), &[]);
        assert_eq!(
            report["content_digest"],
            plain["content_digest"],
            "{bytes} of {} bytes",
            compressed.len()
        );
    }
}

#[test]
fn lint_index_and_explain_name_a_long_run_and_the_command_that_compresses_it_again() {
    let command = "zstd -dc a.jsonl.zst | split -b 4M --filter='zstd -c' > new/a.jsonl.zst";
    let scratch = Scratch::new();
    fs::create_dir(scratch.file("data")).expect("the scratch directory is writable");
    let (mut content, mut rows) = (Vec::new(), 0);
    for line in compress::text()[..20 << 20].split(|byte| *byte == b'\n') {
        content.extend_from_slice(&[b"{\"text\": \"".as_slice(), line, b"\"}\n"].concat());
        rows += 1;
    }
    fs::write(scratch.file("data/a.jsonl.zst"), compress::zstd_run(&content)).expect("the file is writable");
    let text = "name: runs\nsource: { url: data/*, format: jsonl }\nshuffle: { window: 500 }\n\
                operators: [ batch: { size: 64 } ]\n";
    let file = scratch.write("runs.yaml", text);

    let lint = scratch.call(&["lint", &file, "--format", "json"]);
    assert_eq!(lint.status, 0, "{}\n{}", lint.stdout, lint.stderr);
    let report = lint.last_json();
    let findings = report["findings"].as_array().expect("the report lists findings");
    let finding = findings.iter().find(|finding| finding["check"] == "long-run");
    let finding = finding.unwrap_or_else(|| panic!("{report}"));
    let url = finding["url"].as_str().expect("the finding names the file");
    assert!(url.starts_with("file://") && url.ends_with("/data/a.jsonl.zst"), "{url}");
    let message = format!(
        "`{url}` can only be decompressed from its start, so one worker reads it and only the shuffle window mixes its rows: compress it \
         again with `{command}`"
    );
    assert_eq!(finding["message"].as_str(), Some(message.as_str()));

    let indexed = scratch.call(&["index", &file]);
    assert_eq!(indexed.status, 0, "{}", indexed.stderr);
    assert!(indexed.stdout.ends_with(&format!("  {message}\n")), "{}", indexed.stdout);

    let explained = scratch.call(&["explain", &file, "--seconds", "1"]);
    assert_eq!(explained.status, 0, "{}", explained.stderr);
    let section = format!(
        "\nlong runs\n  1 file with {rows} rows can only be decompressed from their start: windows of 500 rows are mixed, and one worker \
         at a time computes all splits with rows of the file; recompress it for more workers\n  compress them again, such as the \
         first one: {command}\n  {url}\n"
    );
    assert!(explained.stdout.contains(&section), "{}", explained.stdout);
}

#[test]
fn a_row_that_decompresses_beyond_the_memory_is_one_sentence() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.file("data")).expect("the scratch directory is writable");
    let mut content = b"first\n".repeat(100_000);
    content.resize(200 << 20, b'z');
    content.extend_from_slice(b"\nlast\n");
    let bomb = compress::gzip(&content, 9);
    assert!(bomb.len() < 1 << 20);
    fs::write(scratch.file("data/a.txt.gz"), bomb).expect("the file is writable");
    let text = format!(
        "name: job\nsource: {{ url: \"{}/*\", format: text }}\noperators: [ batch: {{ size: 64 }} ]\n",
        scratch.file("data")
    );
    let file = scratch.write("job.yaml", &text);
    let failed = scratch.call(&["run", &file, "--memory", "128MiB"]);
    assert_ne!(failed.status, 0);
    let is_named =
        failed.stderr.contains("a.txt.gz") && failed.stderr.contains("raise the workers' --memory");
    assert!(is_named, "{}", failed.stderr);
}
