//! Where the files of a controller are: /proc/self/cgroup names our group in each hierarchy, and /proc/self/mountinfo says
//! where that hierarchy is mounted, and from which of its directories on (cgroup_namespaces(7), proc_pid_mountinfo(5)).

use std::path::{Path, PathBuf};

/// A controller, and a file by which its directory is known in either version.
pub struct Sought {
    /// As /proc/self/cgroup names it.
    pub controller: &'static str,
    /// A file of v1.
    pub v1: &'static str,
    /// A file of v2.
    pub v2: &'static str,
}

/// The two versions of the interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// A hierarchy for each controller.
    V1,
    /// One for all.
    V2,
}

/// A directory with a controller's files.
#[derive(PartialEq, Eq, Debug)]
pub struct Place {
    /// Which files to expect.
    pub version: Version,
    /// Where.
    pub directory: PathBuf,
}

/// What /proc says of our groups and of the mounts.
pub struct Lists {
    groups: String,
    mounts: String,
}

/// A hierarchy's mount.
struct Mount<'a> {
    /// The directory of the hierarchy that is seen at the mount point.
    root: PathBuf,
    point: PathBuf,
    kind: &'a str,
    /// On v1, the controllers stand among these.
    options: &'a str,
}

impl Lists {
    /// None where /proc is not there.
    pub fn read(root: &Path) -> Option<Self> {
        let read = |name| super::read(&root.join(name)).ok();
        Some(Self { groups: read("proc/self/cgroup")?, mounts: read("proc/self/mountinfo")? })
    }

    /// The directory in which this controller's files of our group stand. A controller is in one hierarchy only: that of v1
    /// which names it, or else that of v2.
    pub fn place(&self, root: &Path, sought: &Sought) -> Option<Place> {
        let (version, group) = self.group(sought.controller)?;
        let (kind, file) = match version {
            Version::V1 => ("cgroup", sought.v1),
            Version::V2 => ("cgroup2", sought.v2),
        };
        let is_it = |mount: &Mount| {
            mount.kind == kind && (version == Version::V2 || names(mount.options).any(|name| name == sought.controller))
        };
        // The last mount hides those before it at the same point.
        let mounts = || self.mounts.lines().rev().filter_map(Mount::parse).filter(is_it);
        let directories =
            mounts().filter_map(|mount| mount.below(group)).chain(mounts().filter_map(|mount| mount.ours()));
        directories
            .map(|directory| root.join(directory.strip_prefix("/").unwrap_or(&directory)))
            .find(|directory| directory.join(file).exists())
            .map(|directory| Place { version, directory })
    }

    /// Our group in the hierarchy of this controller.
    fn group(&self, controller: &str) -> Option<(Version, &Path)> {
        let lines = || {
            self.groups.lines().filter_map(|line| {
                let (_, rest) = line.split_once(':')?;
                rest.split_once(':')
            })
        };
        let v1 = lines().find(|(controllers, _)| names(controllers).any(|name| name == controller));
        let v2 = || lines().find(|(controllers, _)| controllers.is_empty());
        v1.map(|(_, path)| (Version::V1, Path::new(path)))
            .or_else(|| v2().map(|(_, path)| (Version::V2, Path::new(path))))
    }
}

impl<'a> Mount<'a> {
    /// Reads a line such as `35 31 0:32 /docker/1f /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory`.
    fn parse(line: &'a str) -> Option<Self> {
        let (fields, file_system) = line.split_once(" - ")?;
        let mut fields = fields.split(' ').skip(3);
        let (root, point) = (unescape(fields.next()?), unescape(fields.next()?));
        let mut file_system = file_system.split(' ');
        Some(Self { root, point, kind: file_system.next()?, options: file_system.nth(1).unwrap_or_default() })
    }

    /// Where a group of the hierarchy is to be seen. Without a namespace the path of a container's group is the host's, and
    /// what is mounted then is that group.
    fn below(&self, group: &Path) -> Option<PathBuf> {
        Some(self.point.join(group.strip_prefix(&self.root).ok()?))
    }

    /// What is mounted, where it can only be our own group: a runtime mounts no other part of a hierarchy. A whole one may
    /// be anybody's, and a path with `..` leads out of our namespace, to the groups above.
    fn ours(&self) -> Option<PathBuf> {
        let is_part = self.root != Path::new("/") && !self.root.components().any(|part| part.as_os_str() == "..");
        is_part.then(|| self.point.clone())
    }
}

fn names(list: &str) -> impl Iterator<Item = &str> {
    list.split(',')
}

/// Spaces and the like stand as three octal digits behind a backslash.
fn unescape(field: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.filter(|_| *first == b'\\').and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &after[3..] } else { after };
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mounts_line_is_read_whatever_stands_in_it() {
        let line = r"36 35 0:33 /a\040b /sys/fs/cg\134x ro,nosuid shared:9 master:3 - cgroup cgroup rw,cpu,cpuacct";
        let mount = Mount::parse(line).expect("a mount");
        assert_eq!((mount.root, mount.point), ("/a b".into(), r"/sys/fs/cg\x".into()));
        assert_eq!((mount.kind, mount.options), ("cgroup", "rw,cpu,cpuacct"));
        for garbage in ["", " - ", "1 2 3 - cgroup", "1 2 3 / - cgroup2 x y", r"\9 \ \0 \000 \"] {
            assert!(Mount::parse(garbage).is_none(), "{garbage}");
        }
        assert_eq!(unescape(r"\"), Path::new(r"\"));
        assert_eq!(unescape(r"a\9990"), Path::new(r"a\9990"));
    }

    #[test]
    fn what_is_mounted_of_a_hierarchy_tells_what_to_strip() {
        let seen = |root: &str, group: &str| {
            let mount = Mount { root: root.into(), point: "/m".into(), kind: "cgroup", options: "" };
            (mount.below(Path::new(group)), mount.ours())
        };
        assert_eq!(seen("/", "/"), (Some("/m".into()), None));
        assert_eq!(seen("/", "/a/b"), (Some("/m/a/b".into()), None));
        assert_eq!(seen("/a/b", "/a/b"), (Some("/m".into()), Some("/m".into())));
        assert_eq!(seen("/a", "/a/b"), (Some("/m/b".into()), Some("/m".into())));
        assert_eq!(seen("/a", "/c"), (None, Some("/m".into())), "the mount is a container's all the same");
        assert_eq!(seen("/..", "/"), (None, None), "the group above ours");
        assert_eq!(seen("/..", "/../b"), (Some("/m/b".into()), None));
    }
}
