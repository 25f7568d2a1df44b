//! The commands that compress files again, so that decompression can start at many positions.

use std::collections::HashSet;

use feedline_data::compression::Codec;
use feedline_data::manifest::Manifest;

/// Returns the command that compresses a file of this codec again. A block of `bzip2 -1` has at most 5 MB of content, also if its bytes
/// repeat.
pub(crate) fn command(codec: Codec, url: &str) -> String {
    let name = url.rsplit('/').next().unwrap_or(url);
    match codec {
        Codec::Gzip => format!("gzip -dc {name} | gzip -6 > new/{name}"),
        Codec::Zstd => format!("zstd -dc {name} | split -b 4M --filter='zstd -c' > new/{name}"),
        Codec::Bzip2 => format!("bzip2 -dc {name} | bzip2 -1 > new/{name}"),
        Codec::Xz => format!("xz -dc {name} | xz -T0 --block-size=4MiB > new/{name}"),
        Codec::Zlib => format!("pigz -dc {name} | pigz -z -6 > new/{name}"),
    }
}

/// Maximum number of files that a message lists.
pub(crate) const MAX_LISTED_FILES: usize = 10;

/// Returns the files with long runs and their codecs, in listing order.
pub(crate) fn long_run_files(manifest: &Manifest) -> Vec<(&str, Codec)> {
    let mut seen = HashSet::new();
    let shards = manifest.long_runs().map(|(shard, _)| shard);
    let files =
        shards.filter_map(|shard| Some((shard.object.url.as_str(), shard.index.compression.as_ref()?.codec)));
    files.filter(|(url, _)| seen.insert(*url)).collect()
}

/// Returns a sentence about a file that can only be decompressed from its start.
pub(crate) fn long_run_message(codec: Codec, url: &str) -> String {
    format!(
        "`{url}` can only be decompressed from its start, so one worker reads it and only the shuffle window mixes its rows: compress it \
         again with `{}`",
        command(codec, url)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_contains_the_command() {
        assert_eq!(
            long_run_message(Codec::Zstd, "s3://b/d/0.jsonl.zst"),
            "`s3://b/d/0.jsonl.zst` can only be decompressed from its start, so one worker reads it and only the shuffle window mixes its \
             rows: compress it again with `zstd -dc 0.jsonl.zst | split -b 4M --filter='zstd -c' > new/0.jsonl.zst`"
        );
    }
}
