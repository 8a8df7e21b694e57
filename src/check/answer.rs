//! An HTTP/1 answer, read to its last byte and no further (RFC 9112, sections 4 to 7), so that its connection can be kept.

use std::io::{self, BufRead, Read};

use super::probe::parse_status;

/// A head is refused beyond these.
const LONGEST_LINE: u64 = 16 * 1024;
const MOST_LINES: usize = 256;

/// What an answer said.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// The field `Keep-Alive`.
    pub keep_alive: Option<String>,
    /// Whether it says that the connection is closed after it: by a field, by its version, or by having no length.
    pub says_close: bool,
}

/// How long the body is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Length {
    Known(u64),
    Chunked,
    ToTheEnd,
}

/// Reads the answer to a GET.
///
/// # Errors
/// Those of reading, and the reason why it is no answer.
pub fn read(from: &mut impl BufRead) -> io::Result<Answer> {
    loop {
        let (answer, length) = head(from)?;
        if let 100..=199 = answer.status {
            // An interim one: another follows.
            continue;
        }
        match length {
            Length::Known(length) => skip(from, length)?,
            Length::Chunked => skip_chunks(from)?,
            Length::ToTheEnd => drop(io::copy(from, &mut io::sink())?),
        }
        return Ok(answer);
    }
}

fn head(from: &mut impl BufRead) -> io::Result<(Answer, Length)> {
    let first = line(from)?;
    let status = parse_status(&first).ok_or_else(|| io::Error::other("the answer is not HTTP"))?;
    let is_old = first.starts_with(b"HTTP/1.0");
    let (mut answer, mut length, mut keeps) = (Answer { status, ..Answer::default() }, Length::ToTheEnd, false);
    for _ in 0..MOST_LINES {
        let line = line(from)?;
        if line.is_empty() {
            if matches!(status, 100..=199 | 204 | 304) {
                length = Length::Known(0);
            }
            answer.says_close |= is_old && !keeps || length == Length::ToTheEnd;
            return Ok((answer, length));
        }
        let line = String::from_utf8_lossy(&line);
        let Some((name, value)) = line.split_once(':') else { continue };
        let (name, value) = (name.to_ascii_lowercase(), value.trim());
        let has = |token: &str| value.split(',').any(|word| word.trim().eq_ignore_ascii_case(token));
        match name.as_str() {
            "connection" => {
                answer.says_close |= has("close");
                keeps |= has("keep-alive");
            }
            "keep-alive" => answer.keep_alive = Some(value.chars().filter(|c| !c.is_control()).take(80).collect()),
            "transfer-encoding" if has("chunked") => length = Length::Chunked,
            "content-length" if length != Length::Chunked => {
                length = Length::Known(value.parse().map_err(|_| io::Error::other("its Content-Length is no number"))?);
            }
            _ => {}
        }
    }
    Err(io::Error::other("the answer's head has no end"))
}

/// A line without its end.
fn line(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    from.take(LONGEST_LINE).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Err(io::Error::other("closed before the end of its answer"));
    }
    line.pop_if(|last| *last == b'\r');
    Ok(line)
}

fn skip(from: &mut impl BufRead, length: u64) -> io::Result<()> {
    match io::copy(&mut from.take(length), &mut io::sink())? {
        read if read == length => Ok(()),
        _ => Err(io::Error::other("closed before the end of its answer")),
    }
}

/// RFC 9112, section 7.1: each with its size in hexadecimal, the last of size 0, then fields up to an empty line.
fn skip_chunks(from: &mut impl BufRead) -> io::Result<()> {
    loop {
        let line = line(from)?;
        let digits = line.split(|byte| matches!(byte, b';' | b' ' | b'\t')).next().unwrap_or_default();
        let size = str::from_utf8(digits).ok().and_then(|digits| u64::from_str_radix(digits, 16).ok());
        match size.ok_or_else(|| io::Error::other("a chunk of its answer has no size"))? {
            0 => break,
            size => skip(from, size)?,
        }
        self::line(from)?;
    }
    for _ in 0..MOST_LINES {
        if line(from)?.is_empty() {
            return Ok(());
        }
    }
    Err(io::Error::other("the answer's end has no end"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said, and what is left behind the answer.
    fn hear(text: &str) -> Result<(Answer, String), String> {
        let mut from = text.as_bytes();
        let answer = read(&mut from).map_err(|error| error.to_string())?;
        Ok((answer, String::from_utf8_lossy(from).into_owned()))
    }

    #[test]
    fn an_answer_is_read_to_its_last_byte() {
        for text in [
            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nKeep-Alive: timeout=5\r\n\r\nbodyREST",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, Chunked\r\nkeep-alive:timeout=5\r\n\r\n4;x=y\r\nbody\r\n0\r\nA: b\r\n\r\nREST",
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200\r\nContent-Length: 0\r\nKeep-Alive: timeout=5\r\n\r\nREST",
            "HTTP/1.1 200 OK\nContent-Length: 0\nKeep-Alive: timeout=5\n\nREST",
            "HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 0\r\nKeep-Alive: timeout=5\r\n\r\nREST",
        ] {
            let (answer, rest) = hear(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            let wanted = Answer { status: 200, keep_alive: Some("timeout=5".into()), says_close: false };
            assert_eq!((answer, rest.as_str()), (wanted, "REST"), "{text}");
        }
        let (answer, rest) = hear("HTTP/1.1 204 No Content\r\n\r\nREST").expect("an answer");
        assert_eq!((answer.status, answer.says_close, rest.as_str()), (204, false, "REST"));
    }

    #[test]
    fn who_closes_after_it_says_so() {
        for text in [
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: x, Close\r\n\r\n",
            "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\nall that comes",
        ] {
            let (answer, rest) = hear(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert!(answer.says_close && rest.is_empty(), "{text}");
        }
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        let long = format!("HTTP/1.1 200 OK\r\nA: {}\r\n\r\n", "x".repeat(20_000));
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(300));
        for text in [
            "",
            "SSH-2.0-x\r\n",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nx",
            &long,
            &many,
        ] {
            assert!(hear(text).is_err(), "{:.40}", text);
        }
    }
}
