//! Relays the requests of one connection, as HTTP/1.1 messages with bodies that it does not interpret.

use std::io::{Error, ErrorKind, Result};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, sleep_until};

use super::{Exchange, Proxy};

/// Maximum size of the headers of a message.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Size of the chunks that responses are divided into.
const CHUNK_BYTES: usize = 16 << 10;

type Stream = BufReader<TcpStream>;

/// The headers of a request or a response.
struct Head {
    text: String,
    body: BodyLength,
    closes: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyLength {
    Bytes(u64),
    Chunked,
}

/// Serves requests until the client closes the connection.
pub(super) async fn serve(client: TcpStream, proxy: &Proxy) -> Result<()> {
    client.set_nodelay(true)?;
    let mut client = BufReader::new(client);
    let mut upstream: Option<Stream> = None;
    while let Some(request) = read_head(&mut client).await? {
        let arrived = Instant::now();
        let (is_accepted, arrived_s) = {
            let mut limits = proxy.limits();
            (limits.accept(arrived), limits.elapsed(arrived))
        };
        let (status, bytes) = if is_accepted {
            sleep(Duration::from_millis(proxy.args.latency_ms)).await;
            forward(&mut client, &mut upstream, &request, proxy).await?
        } else {
            copy_body(&mut client, &mut tokio::io::sink(), request.body, None).await?;
            client.get_mut().write_all(rejection(proxy).as_bytes()).await?;
            (proxy.args.status, 0)
        };
        if let Some(arrived_s) = arrived_s {
            let mut words = request.text.split(' ').map(str::to_owned);
            let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let ended_s = arrived_s + arrived.elapsed().as_secs_f64();
            proxy.add_to_record(Exchange { arrived_s, ended_s, status, bytes, method, path });
        }
        if request.closes {
            break;
        }
    }
    Ok(())
}

fn rejection(proxy: &Proxy) -> String {
    let args = &proxy.args;
    let retry_after =
        if args.retry_after > 0 { format!("Retry-After: {}\r\n", args.retry_after) } else { String::new() };
    let body = "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>";
    format!(
        "HTTP/1.1 {} Slow Down\r\n{retry_after}Content-Type: application/xml\r\nContent-Length: {}\r\n\r\n{body}",
        args.status,
        body.len()
    )
}

/// Forwards a request, and relays the response. Returns its status and the bytes of its body.
async fn forward(
    client: &mut Stream,
    upstream: &mut Option<Stream>,
    request: &Head,
    proxy: &Proxy,
) -> Result<(u16, u64)> {
    let mut store = match upstream.take() {
        Some(store) => store,
        None => {
            let store = TcpStream::connect(proxy.args.upstream).await?;
            store.set_nodelay(true)?;
            BufReader::new(store)
        }
    };
    store.get_mut().write_all(request.text.as_bytes()).await?;
    copy_body(client, store.get_mut(), request.body, None).await?;
    let invalid = || Error::new(ErrorKind::InvalidData, "the store sent an invalid response");
    let response = read_head(&mut store).await?.ok_or_else(invalid)?;
    let status =
        response.text.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(invalid)?;
    client.get_mut().write_all(response.text.as_bytes()).await?;
    let has_body = !request.text.starts_with("HEAD ") && status != 204 && status != 304;
    let length = if has_body { response.body } else { BodyLength::Bytes(0) };
    let bytes = copy_body(&mut store, client.get_mut(), length, Some(proxy)).await?;
    if !response.closes {
        *upstream = Some(store);
    }
    Ok((status, bytes))
}

/// Reads the headers of a message. `None` at the end of the connection.
async fn read_head(stream: &mut Stream) -> Result<Option<Head>> {
    let mut text = String::new();
    let (mut body, mut closes) = (BodyLength::Bytes(0), false);
    loop {
        let start = text.len();
        if stream.read_line(&mut text).await? == 0 {
            return if text.is_empty() { Ok(None) } else { Err(ErrorKind::UnexpectedEof.into()) };
        }
        let line = text[start..].trim_end().to_ascii_lowercase();
        if line.is_empty() {
            return Ok(Some(Head { text, body, closes }));
        }
        match line.split_once(':').map(|(name, value)| (name, value.trim())) {
            Some(("content-length", value)) => {
                body = BodyLength::Bytes(value.parse().map_err(|_| Error::from(ErrorKind::InvalidData))?);
            }
            Some(("transfer-encoding", "chunked")) => body = BodyLength::Chunked,
            Some(("connection", value)) => closes = value == "close",
            _ => {}
        }
        if text.len() > MAX_HEAD_BYTES {
            return Err(ErrorKind::InvalidData.into());
        }
    }
}

/// Copies a body, with the bandwidth limit of `proxy`. Returns the number of bytes.
async fn copy_body(
    from: &mut Stream,
    to: &mut (impl AsyncWriteExt + Unpin),
    length: BodyLength,
    proxy: Option<&Proxy>,
) -> Result<u64> {
    match length {
        BodyLength::Bytes(bytes) => {
            copy_bytes(from, to, bytes, proxy).await?;
            Ok(bytes)
        }
        BodyLength::Chunked => {
            let mut total = 0;
            loop {
                let mut line = String::new();
                from.read_line(&mut line).await?;
                let size = line.split(';').next().unwrap_or_default().trim();
                let size = u64::from_str_radix(size, 16).map_err(|_| Error::from(ErrorKind::InvalidData))?;
                to.write_all(line.as_bytes()).await?;
                // The chunk and the line break after it.
                copy_bytes(from, to, size + 2, proxy).await?;
                total += size;
                if size == 0 {
                    return Ok(total);
                }
            }
        }
    }
}

async fn copy_bytes(
    from: &mut Stream,
    to: &mut (impl AsyncWriteExt + Unpin),
    bytes: u64,
    proxy: Option<&Proxy>,
) -> Result<()> {
    let mut buffer = [0; CHUNK_BYTES];
    let mut left = bytes;
    while left > 0 {
        let size = left.min(CHUNK_BYTES as u64) as usize;
        from.read_exact(&mut buffer[..size]).await?;
        if let Some(proxy) = proxy {
            let sent = proxy.bandwidth.lock().await.reserve(Instant::now(), size);
            sleep_until(sent).await;
        }
        to.write_all(&buffer[..size]).await?;
        left -= size as u64;
    }
    Ok(())
}
