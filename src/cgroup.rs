//! Our own control group: what the kernel says of its memory, its CPU time and the number of its processes (cgroups(7), and
//! the kernel's cgroup-v1/memory.rst and cgroup-v2.rst).
//!
//! Inside a container nothing of it is sure: the files may be those of v1, of v2 or of both, in a namespace or not, read-only,
//! mounted in part or not at all. What cannot be had is None, and never an error: it is said to a person, and decides nothing.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

mod events;
mod kills;
mod place;
mod snapshot;
#[cfg(test)]
mod tests;
mod words;

pub use events::Events;
pub use kills::Kills;
use place::{Lists, Place, Sought, Version};
pub use snapshot::Snapshot;
pub use words::bytes;

/// A controller is there where its directory holds this file. The root of v2 has none of them.
const MEMORY: Sought = Sought { controller: "memory", v1: "memory.usage_in_bytes", v2: "memory.current" };
const CPU: Sought = Sought { controller: "cpu", v1: "cpu.stat", v2: "cpu.stat" };
const PIDS: Sought = Sought { controller: "pids", v1: "pids.current", v2: "pids.current" };

/// Where the files of our group are. Nothing is held open.
#[derive(Default, Debug)]
pub struct Cgroup {
    memory: Option<Place>,
    cpu: Option<Place>,
    pids: Option<Place>,
}

impl Cgroup {
    /// Finds it: two files of /proc and one look per controller.
    pub fn find() -> Self {
        Self::find_below(Path::new("/"))
    }

    /// The same in a tree of files that stands for the root.
    fn find_below(root: &Path) -> Self {
        let Some(lists) = Lists::read(root) else { return Self::default() };
        let find = |sought| lists.place(root, sought);
        Self { memory: find(&MEMORY), cpu: find(&CPU), pids: find(&PIDS) }
    }

    /// All that is known now. Reading memory.stat makes the kernel add up its counters: for when it is asked for.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::take(self)
    }

    /// How many processes of the group the kernel has killed for want of memory: on v2 those of groups below it too.
    pub fn oom_kills(&self) -> Option<u64> {
        let place = self.memory.as_ref()?;
        snapshot::field(&place.read(place.oom_file())?, "oom_kill")
    }

    /// The memory events of v2, to be waited for. None on v1, where that takes a file that a container may not write.
    pub fn memory_events(&self) -> Option<Events> {
        let place = self.memory.as_ref().filter(|place| place.version == Version::V2)?;
        Events::open(&place.file(place.oom_file())).ok()
    }
}

impl Place {
    fn oom_file(&self) -> &'static str {
        match self.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn read(&self, name: &str) -> Option<String> {
        read(&self.file(name)).ok()
    }
}

/// Reads a file, whatever bytes are in it. The kernel says no length of these; nearly all are shorter than this.
fn read(file: &Path) -> io::Result<String> {
    let mut bytes = Vec::with_capacity(4096);
    File::open(file)?.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads an open file from its start. These are all shorter, or end in what is not looked for.
fn read_again(file: &File) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    file.read_at(&mut [0; 512], 0).map(drop)
}
