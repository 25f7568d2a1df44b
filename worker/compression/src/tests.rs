//! Compares the decoders with files that the reference tools write.

pub(crate) mod checks;

use std::io::Write;
use std::process::{Command, Stdio};

use feedline_data::compression::{AccessPoint, Codec};

use checks::{check, text};

/// Compresses data with a command. `None` if the command is not installed.
fn compress(command: &[&str], content: &[u8]) -> Option<Vec<u8>> {
    let (program, options) = command.split_first().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("content");
    std::fs::File::create(&path).unwrap().write_all(content).unwrap();
    let output = Command::new(program).args(options).arg(&path).stdin(Stdio::null()).output();
    let Ok(output) = output else {
        println!("skipped: {program} is not installed");
        return None;
    };
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Some(output.stdout)
}

/// Checks the files of a command. The file has at least `points` access points.
fn check_command(codec: Codec, command: &[&str], content: &[u8], points: usize) {
    let Some(file) = compress(command, content) else { return };
    assert_eq!(crate::detect(&file), Some(codec));
    let found = check(codec, &file, content).len();
    assert!(found >= points, "{command:?}: {found} access points");
}

#[test]
fn gzip_files() {
    let content = text(600_000);
    check_command(Codec::Gzip, &["gzip", "-c", "-1"], &content, 2);
    check_command(Codec::Gzip, &["gzip", "-c", "-9"], &content, 2);
    check_command(Codec::Gzip, &["pigz", "-c", "-6"], &content, 2);
    check_command(Codec::Gzip, &["bgzip", "-c"], &content, 9);
    check_command(Codec::Gzip, &["gzip", "-c"], b"", 0);
    // Huffman codes only, runs of one byte, and fixed codes.
    for strategy in ["0", "1", "2", "3", "4"] {
        let script = format!(
            "import sys, zlib; data = open(sys.argv[1], 'rb').read(); c = zlib.compressobj(6, zlib.DEFLATED, 31, 9, {strategy}); sys.stdout.buffer.write(c.compress(data) + c.flush())"
        );
        check_command(Codec::Gzip, &["python3", "-c", &script], &content, 1);
    }
}

#[test]
fn the_commands_that_lint_recommends_write_access_points() {
    let content = text(600_000);
    for (codec, command) in [
        (Codec::Gzip, "gzip -6 < \"$0\""),
        (Codec::Zstd, "split -b 100K --filter='zstd -q -c' \"$0\""),
        (Codec::Xz, "xz -T0 --block-size=100KiB < \"$0\""),
    ] {
        check_command(codec, &["sh", "-c", command], &content, 2);
    }
}

#[test]
fn zstd_files() {
    let content = text(3_000_000);
    for options in [
        &["-1"][..],
        &["-19"],
        &["--no-check"],
        &["--long=27"],
        &["-T2", "-B600K"],
        &["--content-size"],
        &["--fast=5"],
    ] {
        check_command(Codec::Zstd, &[&["zstd", "-q", "-c"], options].concat(), &content, 0);
    }
    check_command(Codec::Zstd, &["pzstd", "-q", "-1", "-c", "-p2"], &content, 1);
    check_command(Codec::Zstd, &["zstd", "-q", "-c"], b"", 0);
}

#[test]
fn xz_files() {
    let content = text(1_000_000);
    for (options, points) in [
        (&["-0"][..], 0),
        (&["-6", "--check=sha256"], 0),
        (&["--block-size=200000", "--check=none"], 4),
        (&["-T2", "--block-size=300000"], 3),
        (&["--x86", "--lzma2=preset=1"], 0),
        (&["--delta=dist=4", "--lzma2=preset=1"], 0),
        (&["--block-list=100000,300000"], 3),
    ] {
        check_command(Codec::Xz, &[&["xz", "-q", "-c"], options].concat(), &content, points);
    }
    check_command(Codec::Xz, &["xz", "-q", "-c"], b"", 0);
}

#[test]
fn bzip2_files() {
    let content = text(1_000_000);
    check_command(Codec::Bzip2, &["bzip2", "-c", "-9"], &content, 1);
    check_command(Codec::Bzip2, &["bzip2", "-c", "-1"], &content, 9);
    check_command(Codec::Bzip2, &["pbzip2", "-c", "-b1"], &content, 9);
    check_command(Codec::Bzip2, &["lbzip2", "-c", "-1"], &content, 9);
    check_command(Codec::Bzip2, &["bzip2", "-c"], b"", 0);
    // Python's module writes one stream per call of `compress`.
    let script = "import bz2, sys; data = open(sys.argv[1], 'rb').read(); sys.stdout.buffer.write(b''.join(bz2.compress(data[i:i + 99_999], 5) for i in range(0, len(data), 99_999)))";
    check_command(Codec::Bzip2, &["python3", "-c", script], &content, 10);
    let script = "import lzma, sys; data = open(sys.argv[1], 'rb').read(); sys.stdout.buffer.write(b''.join(lzma.compress(data[i:i + 99_999]) for i in range(0, len(data), 99_999)))";
    check_command(Codec::Xz, &["python3", "-c", script], &content, 10);
}

/// `testdata/make_parallel.sh` wrote the files.
#[test]
fn files_of_compressors_that_divide_their_input() {
    let line = |row: u32| {
        let word = if row.is_multiple_of(7) { "line" } else { "word" };
        format!("{row} {} {word}\n", row * row % 9973)
    };
    let content: Vec<u8> = (0..5200).map(line).collect::<String>().into_bytes();
    let files: [(Codec, &[u8], usize, usize); 5] = [
        (Codec::Gzip, include_bytes!("../testdata/pigz.gz"), 1, 2),
        (Codec::Gzip, include_bytes!("../testdata/pigz-independent.gz"), 1, 2),
        (Codec::Gzip, include_bytes!("../testdata/bgzip.gz"), 1, 2),
        (Codec::Bzip2, include_bytes!("../testdata/pbzip2.bz2"), 2, 1),
        (Codec::Bzip2, include_bytes!("../testdata/lbzip2.bz2"), 2, 1),
    ];
    for (number, (codec, file, times, points)) in files.into_iter().enumerate() {
        assert_eq!(crate::detect(file), Some(codec));
        let found = check(codec, file, &content.repeat(times)).len();
        assert!(found >= points, "file {number}: {found} access points");
    }
}

#[test]
fn an_access_point_beyond_the_largest_shard_is_a_corrupted_index() {
    let states =
        [(Codec::Gzip, &[1][..]), (Codec::Zstd, &[]), (Codec::Bzip2, &[9, 0, 0, 0, 0]), (Codec::Xz, &[1])];
    for (codec, state) in states {
        let resume = |bit_offset| {
            let point = AccessPoint { bit_offset, content_offset: 0, state: state.to_vec() };
            let mut decoder = crate::resume(codec, &point)?;
            decoder.decode(&[0xff; 64], true, &mut [0; 8], 0)
        };
        let error = resume(u64::MAX - 7).unwrap_err();
        assert!(error.reason.contains("feedline index --rebuild"), "{codec:?}: {error}");
        // Damaged data at the largest offset is an error without an overflow.
        assert!(resume(1 << 60).is_err(), "{codec:?}");
    }
}
