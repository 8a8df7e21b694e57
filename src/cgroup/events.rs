//! Waiting for the memory events of v2: the file raises POLLPRI when it has changed since it was last read ("file modified
//! event" in cgroup-v2.rst). That takes no right but to read it.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::read_again;

/// memory.events, open.
#[derive(Debug)]
pub struct Events {
    file: File,
}

impl Events {
    /// Opens it and reads it: what changes from now on is news.
    ///
    /// # Errors
    /// Those of open(2) and read(2).
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        read_again(&file)?;
        Ok(Self { file })
    }

    /// Waits until something in it has changed: a process that was killed, but also a limit that was touched. The
    /// descriptor is watched for no longer than this, so that whoever waits now and then is woken now and then only.
    ///
    /// # Errors
    /// The file cannot be waited for, or is gone with its group.
    pub async fn changed(&self) -> io::Result<()> {
        {
            // SAFETY: the descriptor is owned by us, who outlive this registration.
            let watched = unsafe { AsyncFd::register_with_interest(self.file.as_fd(), Interest::PRIORITY) };
            let watched = watched.map_err(io::Error::from)?;
            watched.ready(Interest::PRIORITY).await?.retain_ready();
        }
        read_again(&self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;
    use std::process::{Child, Command};
    use std::time::Duration;

    /// A group of its own in a v2 hierarchy, with a process. Its cgroup.events is a file of the same kind, and changes with
    /// every first and last process.
    struct Group {
        directory: PathBuf,
        process: Child,
    }

    impl Group {
        fn new() -> Option<Self> {
            let mounts = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
            let mount = mounts.into_iter().find(|mount| mount.join("cgroup.controllers").exists())?;
            let directory = mount.join(format!("sundown-test-{}", std::process::id()));
            fs::create_dir(&directory).ok()?;
            let process = Command::new("sleep").arg("100").spawn().expect("a process");
            Some(Self { directory, process })
        }

        fn fill(&self) {
            fs::write(self.directory.join("cgroup.procs"), self.process.id().to_string()).expect("it may be moved");
        }

        fn empty(&mut self) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }

    impl Drop for Group {
        fn drop(&mut self) {
            self.empty();
            while fs::remove_dir(&self.directory).is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) {}
        }
    }

    #[tokio::test]
    async fn a_change_is_heard_and_nothing_else() {
        let Some(mut group) = Group::new() else {
            eprintln!("SKIPPED: no group can be made in a v2 hierarchy here");
            return;
        };
        let events = Events::open(&group.directory.join("cgroup.events")).expect("it is there");
        let within = |millis| tokio::time::timeout(Duration::from_millis(millis), events.changed());
        assert!(within(100).await.is_err(), "nothing has changed");
        group.fill();
        within(10_000).await.expect("in time").expect("heard");
        assert!(within(100).await.is_err(), "it was heard once");
        // What changes while nobody waits is heard by the next who does.
        group.empty();
        tokio::time::sleep(Duration::from_millis(50)).await;
        within(10_000).await.expect("in time").expect("heard");
        assert!(within(100).await.is_err(), "it was heard once");
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_waited_for_is_an_error() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let events = Events::open(file.path()).expect("it is there");
        assert!(events.changed().await.is_err());
    }
}
