//! The termination message: the last words that Kubernetes shows of a container (`/dev/termination-log`, at most 4096
//! bytes of the file's end).
//!
//! Ours stand behind what the app wrote, never in its place, and the file is neither created nor renamed: it is a mount.
//! They are written ahead at the stop request, so that a SIGKILL from outside leaves a trace; the end replaces them.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

/// The kubelet's limit.
const LONGEST: usize = 4096;
/// More than this of an app's own words is not kept in memory.
const READ_AT_MOST: u64 = 64 * 1024;
/// Where Kubernetes mounts it.
const DEFAULT_PATH: &str = "/dev/termination-log";

/// The message's file, if there is one.
#[derive(Default)]
pub struct TerminationLog {
    file: Option<File>,
    ahead: String,
}

impl TerminationLog {
    /// Opens the file. One that was named and cannot be opened is an error; the default one may be missing.
    ///
    /// # Errors
    /// Those of open(2) for a path that was named.
    pub fn open(path: Option<&str>) -> io::Result<Self> {
        let opened = OpenOptions::new().read(true).write(true).open(path.unwrap_or(DEFAULT_PATH));
        let file = match (opened, path) {
            (Ok(file), _) => Some(file).filter(|file| file.metadata().is_ok_and(|data| data.is_file())),
            (Err(error), Some(_)) => return Err(error),
            (Err(_), None) => None,
        };
        Ok(Self { file, ahead: String::new() })
    }

    /// Writes words that stand until [`TerminationLog::write`] replaces them.
    ///
    /// # Errors
    /// Those of write(2): a full or read-only disk.
    pub fn write_ahead(&mut self, words: &str) -> io::Result<()> {
        self.replace(words)
    }

    /// Takes back what was written ahead: it did not come to it.
    ///
    /// # Errors
    /// Those of write(2).
    pub fn take_back(&mut self) -> io::Result<()> {
        if self.ahead.is_empty() { Ok(()) } else { self.replace("") }
    }

    /// Writes the last words.
    ///
    /// # Errors
    /// Those of write(2).
    pub fn write(&mut self, words: &str) -> io::Result<()> {
        self.replace(words)
    }

    fn replace(&mut self, words: &str) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let length = file.metadata()?.len();
        let start = length.saturating_sub(READ_AT_MOST);
        let mut text = vec![0; (length - start) as usize];
        let read = file.read_at(&mut text, start)?;
        text.truncate(read);
        // What the app has written since stands behind our words: those are cut out, and ours go to the end again.
        let kept_from = find(&text, self.ahead.as_bytes()).unwrap_or(text.len());
        let rest_from = (kept_from + self.ahead.len()).min(text.len());
        let mut tail = text[rest_from..].to_vec();
        let mut ours = String::new();
        if !words.is_empty() {
            if text[..kept_from].iter().chain(&tail).next_back().is_some_and(|last| *last != b'\n') {
                ours.push('\n');
            }
            ours.push_str(cut(words));
            ours.push('\n');
        }
        tail.extend_from_slice(ours.as_bytes());
        let at = start + kept_from as u64;
        file.write_all_at(&tail, at)?;
        file.set_len(at + tail.len() as u64)?;
        self.ahead = ours;
        Ok(())
    }
}

fn find(text: &[u8], words: &[u8]) -> Option<usize> {
    if words.is_empty() {
        return None;
    }
    text.windows(words.len()).rposition(|window| window == words)
}

/// At most what the kubelet shows, cut at a character, with room for the newlines.
fn cut(words: &str) -> &str {
    let mut end = words.len().min(LONGEST - 2);
    while !words.is_char_boundary(end) {
        end -= 1;
    }
    &words[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn log(text: &str) -> (tempfile::NamedTempFile, TerminationLog) {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(&file, text).expect("its text");
        let log = TerminationLog::open(file.path().to_str()).expect("opened");
        (file, log)
    }

    #[test]
    fn our_words_stand_behind_the_apps() {
        let (file, mut log) = log("the app's words");
        log.write_ahead("ahead").expect("written");
        assert_eq!(fs::read_to_string(&file).expect("read"), "the app's words\nahead\n");
        log.write("the end").expect("written");
        assert_eq!(fs::read_to_string(&file).expect("read"), "the app's words\nthe end\n");
    }

    #[test]
    fn what_the_app_writes_meanwhile_is_kept() {
        use std::io::Write;
        let (file, mut log) = log("");
        log.write_ahead("a long text written ahead").expect("written");
        let mut app = OpenOptions::new().append(true).open(&file).expect("opened");
        app.write_all(b"last words of the app").expect("written");
        log.write("the end").expect("written");
        assert_eq!(fs::read_to_string(&file).expect("read"), "last words of the app\nthe end\n");
        fs::write(&file, "the app starts anew").expect("written");
        log.write("the very end").expect("written");
        assert_eq!(fs::read_to_string(&file).expect("read"), "the app starts anew\nthe very end\n");
    }

    #[test]
    fn what_was_written_ahead_can_be_taken_back() {
        let (file, mut log) = log("the app's words");
        log.take_back().expect("nothing to do");
        log.write_ahead("ahead").expect("written");
        log.take_back().expect("written");
        assert_eq!(fs::read_to_string(&file).expect("read"), "the app's words");
        log.write_ahead("again").expect("written");
        assert_eq!(fs::read_to_string(&file).expect("read"), "the app's words\nagain\n");
    }

    #[test]
    fn a_long_message_is_cut_at_a_character() {
        let (file, mut log) = log("");
        log.write(&"ü".repeat(4000)).expect("written");
        let text = fs::read_to_string(&file).expect("still UTF-8");
        assert!(text.len() <= LONGEST, "{}", text.len());
    }

    #[test]
    fn a_missing_file_is_not_created() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("none");
        assert!(TerminationLog::open(path.to_str()).is_err());
        assert!(!path.exists());
    }
}
