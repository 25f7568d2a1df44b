//! The long runs of a dataset in the report: parts of compressed files that can only be decompressed from their start.

use feedline_data::layout::Layout;
use feedline_data::manifest::Manifest;
use serde::Serialize;

use crate::recompress;
use crate::size::format_count;

/// The long runs of a dataset.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct LongRuns {
    /// The number of files with long runs.
    files: u64,
    /// The number of rows in long runs.
    rows: u64,
    /// The number of runs that a pass reads in turn.
    lanes: u32,
    /// The number of splits of an epoch. Without lanes, any worker may compute any of them.
    splits: u64,
    /// The first files.
    first_files: Vec<String>,
    /// The command that compresses the first file again.
    command: String,
    /// The largest number of rows that are mixed.
    window: u64,
    /// Whether the source is a mix of datasets, whose splits have rows of all of them.
    is_mix: bool,
    /// Whether the splits of a lane or of a group go to one worker.
    has_keys: bool,
    /// Whether a pass has too many splits for lanes.
    has_tiny_splits: bool,
}

impl LongRuns {
    /// Returns the long runs of a manifest. `None` if there are none.
    pub(super) fn of(manifest: &Manifest, layout: &Layout, window: u64) -> Option<Self> {
        let files = recompress::long_run_files(manifest);
        let (first, codec) = *files.first()?;
        let rows = manifest.long_runs().flat_map(|(shard, run)| &shard.index.blocks[run]);
        Some(Self {
            files: files.len() as u64,
            rows: rows.map(|block| u64::from(block.rows)).sum(),
            lanes: layout.runs.lanes,
            splits: (0..layout.streams).map(|stream| layout.splits(stream)).sum(),
            first_files: files
                .iter()
                .take(recompress::MAX_LISTED_FILES)
                .map(|(url, _)| (*url).to_owned())
                .collect(),
            command: recompress::command(codec, first),
            window: window.min(layout.split_rows),
            has_keys: !layout.runs.is_empty(),
            has_tiny_splits: layout.has_undivided_windows(),
            is_mix: manifest.shards.iter().any(|shard| shard.object.part > 0),
        })
    }

    /// Formats the section of the report.
    pub(super) fn to_text(&self) -> String {
        let mixing = match (self.window, self.lanes) {
            _ if self.has_tiny_splits => format!(
                "the `window` of `pack` or `bucket_by_length` is too small for lanes, so each worker may decompress {}",
                if self.files == 1 { "the file" } else { "all of these files" },
            ),
            _ if self.is_mix && !self.has_keys => format!(
                "they are a small part of the mix, so each worker may decompress {}",
                if self.files == 1 { "the file" } else { "all of these files" },
            ),
            (0, _) if self.is_mix => {
                "the rows keep their order, and one worker at a time reads a group of files of all datasets"
                    .to_owned()
            }
            (0, _) => "the rows keep their order, and one worker at a time reads each file".to_owned(),
            (window, 0) if self.splits <= 1 => format!(
                "one worker decompresses {}, and windows of {} mix the rows",
                if self.files == 1 { "the file" } else { "all of these files" },
                format_count(window, "row")
            ),
            (window, 0) => format!(
                "the long runs have fewer rows than a split, so each worker may decompress {}, and windows of {} mix the rows",
                if self.files == 1 { "the file" } else { "all of these files" },
                format_count(window, "row")
            ),
            (window, 1) if self.is_mix => format!(
                "windows of about {} of one dataset are mixed, and one worker at a time computes all splits; recompress {} for \
                 more workers",
                format_count(window, "row"),
                if self.files == 1 { "the file" } else { "these files" },
            ),
            (window, lanes) if self.is_mix => format!(
                "only windows of about {} of one dataset are mixed, from {} of each dataset in turn, each on one worker",
                format_count(window, "row"),
                format_count(u64::from(lanes), "file"),
            ),
            (window, 1) => format!(
                "windows of {} are mixed, and one worker at a time computes all splits with rows of {}; recompress {} for more workers",
                format_count(window, "row"),
                if self.files == 1 { "the file" } else { "these files" },
                if self.files == 1 { "it" } else { "them" },
            ),
            (window, lanes) => format!(
                "only windows of {} are mixed, from {} in turn, each on one worker",
                format_count(window, "row"),
                format_count(u64::from(lanes), "file"),
            ),
        };
        format!(
            "\nlong runs\n  {} with {} can only be decompressed from their start: {mixing}\n  compress them again, such as the first one: {}\n{}",
            format_count(self.files, "file"),
            format_count(self.rows, "row"),
            self.command,
            self.listed_files(),
        )
    }

    fn listed_files(&self) -> String {
        let mut text: String = self.first_files.iter().map(|url| format!("  {url}\n")).collect();
        if let Some(more) = self.files.checked_sub(self.first_files.len() as u64).filter(|more| *more > 0) {
            text.push_str(&format!("  and {}\n", format_count(more, "more file")));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use feedline_data::compression::{Codec, ShardCompression};
    use feedline_data::manifest::{Block, Shard, ShardIndex, ShardRef};
    use feedline_data::pipeline::Pipeline;
    use feedline_data::schema::Schema;

    use super::*;

    const BLOCK_ROWS: u32 = 20;
    const BLOCK_BYTES: u64 = 1_000_000;

    #[test]
    fn the_section_names_a_file_its_mixing_and_the_command() {
        let runs = LongRuns {
            files: 40,
            rows: 1_000_000,
            lanes: 16,
            splits: 100,
            first_files: ["s3://b/0.jsonl.zst", "s3://b/1.jsonl.zst"].map(str::to_owned).to_vec(),
            command: "zstd".to_owned(),
            window: 4096,
            is_mix: false,
            has_keys: true,
            has_tiny_splits: false,
        };
        expect![[r#"

            long runs
              40 files with 1000000 rows can only be decompressed from their start: only windows of 4096 rows are mixed, from 16 files in turn, each on one worker
              compress them again, such as the first one: zstd
              s3://b/0.jsonl.zst
              s3://b/1.jsonl.zst
              and 38 more files
        "#]]
        .assert_eq(&runs.to_text());
        let sequential = LongRuns { window: 0, ..runs };
        assert!(sequential.to_text().contains("the rows keep their order"));
    }

    /// A file of one long run.
    fn file(number: u32, blocks: u32) -> Shard {
        let block = |block: u32| Block {
            rows: BLOCK_ROWS,
            offset: u64::from(block) * BLOCK_BYTES,
            bytes: BLOCK_BYTES,
            group: 0,
            row_bytes: Vec::new(),
        };
        let compression = ShardCompression {
            codec: Codec::Zstd,
            content_bytes: u64::from(blocks) * BLOCK_BYTES,
            readable_bytes: 9,
            decoder_bytes: 3 << 20,
            points: Vec::new(),
        };
        let index = ShardIndex {
            blocks: (0..blocks).map(block).collect(),
            compression: Some(compression),
            ..ShardIndex::default()
        };
        Shard::new(ShardRef { url: format!("file:///d/{number}"), ..ShardRef::default() }, index)
    }

    /// The text about files with these numbers of blocks.
    fn text(files: &[u32], window: u64, batch: u32) -> String {
        let shards = (0..).zip(files).map(|(number, blocks)| file(number, *blocks)).collect();
        text_of("url: /d, format: text", shards, window, batch)
    }

    fn text_of(source: &str, shards: Vec<Shard>, window: u64, batch: u32) -> String {
        let yaml = format!(
            "name: p\nsource: {{{source}}}\nshuffle: {{window: {window}}}\noperators: [batch: {{size: {batch}}}]\n"
        );
        let pipeline = Pipeline::from_yaml(&yaml, "p.yaml").expect("the pipeline is valid");
        let manifest = Manifest { schema: Schema::default(), shards };
        let layout = Layout::new(&pipeline, &manifest.summary(), 1, 1);
        LongRuns::of(&manifest, &layout, window).expect("a long run").to_text()
    }

    #[test]
    fn the_section_says_who_decompresses_the_files() {
        for (files, window, batch, expected) in [
            (vec![500, 500], 100, 8, "in turn, each on one worker"),
            (
                vec![500, 500],
                8_000,
                8,
                "windows of 5368 rows are mixed, and one worker at a time computes all splits",
            ),
            (vec![3], 60, 100, "one worker decompresses the file, and windows of 60 rows mix the rows"),
            (vec![2, 2], 60, 100, "one worker decompresses all of these files, and windows of 60 rows"),
        ] {
            let text = text(&files, window, batch);
            assert!(text.contains(expected), "{files:?}, window {window}: {text}");
        }
    }

    #[test]
    fn the_section_says_how_the_files_of_a_mix_are_read() {
        let source = "mix: [{url: /a, format: text}, {url: /b, format: text}]";
        for (window, expected) in [
            (
                0,
                "the rows keep their order, and one worker at a time reads a group of files of all datasets\n",
            ),
            (
                100,
                "windows of about 100 rows of one dataset are mixed, and one worker at a time computes all splits; recompress",
            ),
        ] {
            let mut shards = vec![file(0, 500), file(1, 500)];
            shards[1].object.part = 1;
            let text = text_of(source, shards, window, 8);
            assert!(text.contains(expected), "window {window}: {text}");
        }
    }
}
