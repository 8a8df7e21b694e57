//! Just enough HTTP/1.1 to count what is lost: whole messages off a connection, and nothing that repairs one.
//!
//! A library would repeat a request on a dropped keep-alive connection by itself, and so hide the very thing to measure.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// A message that came whole: a request or an answer.
pub struct Message {
    /// All its bytes, to be passed on as they are.
    pub bytes: Vec<u8>,
    /// The first line: of a request `POST /work?ms=5 HTTP/1.1`, of an answer `HTTP/1.1 200 OK`.
    pub start: String,
    /// Whether the sender keeps the connection open for another.
    pub keep_alive: bool,
}

/// Reads the next message, or `None` where the peer closed between two.
///
/// # Errors
///
/// `UnexpectedEof` for a connection that ended within a message, `InvalidData` for what is no message, and whatever the
/// socket says.
pub async fn read_message(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Message>> {
    let mut bytes = Vec::with_capacity(512);
    let head_ends = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return if bytes.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
    };

    let head = String::from_utf8_lossy(&bytes[..head_ends]).to_ascii_lowercase();
    let header = |name: &str| {
        head.lines().skip(1).filter_map(|line| line.split_once(':')).find(|(n, _)| *n == name).map(|(_, v)| v.trim())
    };
    let keep_alive = header("connection") != Some("close");
    let length = header("content-length").unwrap_or("0").parse::<usize>().map_err(io::Error::other)?;
    if header("transfer-encoding").is_some() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a chunked message, which nobody here sends"));
    }
    let start = String::from_utf8_lossy(&bytes).lines().next().unwrap_or_default().to_owned();

    while bytes.len() < head_ends + length {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(Some(Message { bytes, start, keep_alive }))
}
