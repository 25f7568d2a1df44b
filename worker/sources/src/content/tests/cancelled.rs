//! Tests of cancelled reads of compressed shards: they free their memory and their core.

use feedline_data::compression::{Codec, ShardCompression};

use super::codecs::{bzip2_file, xz_blocks, zstd_frames};
use super::{gzip, json_lines, object, without_points};
use crate::content::Content;
use crate::content::runs::RunPart;

#[tokio::test]
async fn a_cancelled_read_frees_its_memory_and_its_core() {
    let content = json_lines(12_000);
    let whole = 0..content.len() as u64;
    let files = [
        (Codec::Gzip, gzip(&content)),
        (Codec::Zstd, zstd_frames(&content, content.len())),
        (Codec::Bzip2, bzip2_file(&content, 9)),
        (Codec::Xz, xz_blocks(&content, content.len())),
    ];
    for (codec, file) in files {
        let compression = ShardCompression { codec, ..without_points(&content, &file) };
        for part in [None, Some(RunPart::Inner)] {
            let object = object(file.clone()).await;
            let decoders = object.decoders();
            let source = Content { part, ..Content::indexed(&object, Some(&compression)) };
            let is_decoding = async {
                while decoders.free_cores() != Some(0) || decoders.used_bytes() == 0 {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                biased;
                _ = source.read(whole.clone()) => panic!("{codec:?}: the read does not let other tasks run"),
                () = is_decoding => {}
            }
            assert_eq!(decoders.free_cores(), Some(1), "{codec:?} {part:?}");
            // The decoder of a run is paused, and the next read continues it.
            assert_eq!(decoders.used_bytes() > 0, part.is_some(), "{codec:?} {part:?}");
            let bytes = source.read(whole.clone()).await.unwrap();
            assert!(bytes == content, "{codec:?} {part:?} differs");
            decoders.retain_jobs(|_| false);
            assert_eq!((decoders.used_bytes(), decoders.free_cores()), (0, Some(1)), "{codec:?} {part:?}");
        }
    }
}
