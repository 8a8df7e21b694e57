//! Other inits: sundown under their names, and the programs themselves as Debian has them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::SUNDOWN;

/// An init that sundown stands in for: the name, and the program that it is compared with.
#[derive(Clone, Copy, Debug)]
pub struct Init {
    pub name: &'static str,
    pub original: &'static str,
    /// What has it reap orphans as any PID, where it needs to be told.
    pub reaps: &'static [&'static str],
}

pub const TINI: Init = Init { name: "tini", original: "/usr/bin/tini", reaps: &["-s"] };
pub const TINI_STATIC: Init = Init { name: "tini-static", original: "/usr/bin/tini-static", reaps: &["-s"] };
pub const DOCKER_INIT: Init = Init { name: "docker-init", original: "/usr/bin/tini", reaps: &["-s"] };
pub const DUMB_INIT: Init = Init { name: "dumb-init", original: "/usr/bin/dumb-init", reaps: &[] };
pub const CATATONIT: Init = Init { name: "catatonit", original: "/usr/bin/catatonit", reaps: &[] };

/// All of them; and one of each kind.
pub const ALL: [Init; 5] = [TINI, TINI_STATIC, DOCKER_INIT, DUMB_INIT, CATATONIT];
pub const KINDS: [Init; 3] = [TINI, DUMB_INIT, CATATONIT];

impl Init {
    /// sundown under that name.
    pub fn ours(&self) -> String {
        static FOLDER: OnceLock<PathBuf> = OnceLock::new();
        FOLDER.get_or_init(links).join(self.name).display().to_string()
    }

    /// Whether there is something to compare it with.
    #[track_caller]
    pub fn is_installed(&self) -> bool {
        let is_there = Path::new(self.original).exists();
        if !is_there {
            super::skip(&format!("{} is not installed, and nothing is compared with it", self.original));
        }
        is_there
    }
}

/// A hard link of each name, as people would copy the file: of the binary as it is now, whatever an earlier run has left.
fn links() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("inits");
    fs::create_dir_all(&folder).expect("room for it");
    for init in ALL {
        let new = folder.join(format!("{}.{}", init.name, std::process::id()));
        fs::hard_link(SUNDOWN, &new).expect("a file system that has hard links");
        fs::rename(&new, folder.join(init.name)).expect("it is ours");
        // Two links of one file are left as they are by rename(2).
        let _ = fs::remove_file(&new);
    }
    folder
}
