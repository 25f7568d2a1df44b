//! The bodies of responses, which are read up to a limit.

use bytes::Bytes;
use futures::{Stream, TryStreamExt};

/// Reads a body completely; `None` if it has more than `max_bytes`, of which the rest is not read.
pub(crate) async fn read_body<E>(
    chunks: impl Stream<Item = Result<Bytes, E>>,
    max_bytes: usize,
) -> Result<Option<Vec<u8>>, E> {
    let mut chunks = std::pin::pin!(chunks);
    let mut body = Vec::new();
    while let Some(chunk) = chunks.try_next().await? {
        if chunk.len() > max_bytes - body.len() {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[tokio::test]
    async fn a_body_is_read_up_to_the_limit() {
        let chunks = || {
            let parts = ["abc", "de"].map(|part| Ok::<_, Infallible>(Bytes::from_static(part.as_bytes())));
            futures::stream::iter(parts)
        };
        assert_eq!(read_body(chunks(), 5).await, Ok(Some(b"abcde".to_vec())));
        assert_eq!(read_body(chunks(), 4).await, Ok(None));
    }
}
