//! Reads the headers of a tar file in order, without the bodies of its members.

use std::ops::Range;

use feedline_data::manifest::Defect;

use super::tar::{HEADER_BYTES, TarEntry, TarReader, padded_bytes, truncated, truncated_extension};
use crate::content::ContentWindow;
use crate::error::SourceError;

/// Receives the members of a shard in order. The content of a visited member is before the end of `window`, or in it.
pub(super) trait MemberVisitor {
    /// Handles a member, which is in the range of bytes from its first header to its end.
    fn on_member(&mut self, name: &str, bytes: Range<u64>, window: &ContentWindow<'_>) -> Result<(), String>;

    /// Handles the end of an archive. Another archive may follow.
    fn on_archive_end(&mut self);

    /// Handles the end of the content. Fails if members may be missing.
    fn on_content_end(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// Handles a truncated member.
    fn on_truncated(&mut self, _name: &str) {}

    /// Handles the end of the scan. `is_complete` is false after a defect.
    fn close(&mut self, is_complete: bool, window: &ContentWindow<'_>) -> Result<(), String>;
}

/// Reads the headers of a shard up to the byte `end` of its content. Returns the defect at which the scan stopped.
pub(super) async fn scan(
    window: &mut ContentWindow<'_>,
    end: u64,
    visitor: &mut impl MemberVisitor,
) -> Result<Option<Defect>, SourceError> {
    let mut tar = TarReader::default();
    let mut defect = None;
    // `member` is the offset of the current member with its extension headers. `at` is the offset of the current header.
    let (mut member, mut at) = (0, 0);
    while at < end {
        window.fill(at, HEADER_BYTES as u64).await?;
        let header = window.bytes(at);
        let step = match (header.is_empty(), window.error()) {
            (true, None) => match visitor.on_content_end() {
                Ok(()) => break,
                Err(reason) => Err(reason),
            },
            (true, Some(reason)) => Err(reason),
            (false, _) => tar.on_header(header, window.max_remaining(at)),
        };
        let stepped = match step {
            Ok(TarEntry::End) => {
                visitor.on_archive_end();
                member = at + HEADER_BYTES as u64;
                Ok(0)
            }
            Ok(TarEntry::Truncated { name }) => {
                visitor.on_truncated(&name);
                Err(truncated(&name))
            }
            Ok(TarEntry::Continued) => Ok(0),
            Ok(TarEntry::Extension { bytes }) => {
                let body = window.read_from(at + HEADER_BYTES as u64, bytes).await?;
                let body = body.get(..bytes as usize).ok_or_else(truncated_extension);
                body.and_then(|body| tar.on_extension(body)).map(|()| bytes)
            }
            Ok(TarEntry::Skip { bytes }) => {
                member = at + padded_bytes(bytes);
                Ok(bytes)
            }
            Ok(TarEntry::Member { name, bytes, .. }) => {
                let end = at + padded_bytes(bytes);
                let visited = visitor.on_member(&name, member..end, window);
                match visited {
                    // The end of compressed content is unknown before.
                    Ok(()) if !window.reaches(end).await? => Err(truncated(&name)),
                    visited => {
                        member = end;
                        visited.map(|()| bytes)
                    }
                }
            }
            Err(reason) => Err(reason),
        };
        match stepped {
            Ok(bytes) => at += padded_bytes(bytes),
            Err(reason) => {
                defect = Some(Defect { offset: member, reason: window.error().unwrap_or(reason) });
                break;
            }
        }
    }
    if let Err(reason) = visitor.close(defect.is_none(), window) {
        defect.get_or_insert(Defect { offset: member, reason });
    }
    Ok(defect)
}
