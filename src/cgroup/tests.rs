//! Trees of files, as they are found inside of containers, read as the root would be. The contents are real ones.

use super::*;
use std::fs;
use std::time::Duration;

use tempfile::TempDir;

/// A tree of these files.
fn tree(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().expect("a folder");
    for (path, content) in files {
        let file = root.path().join(path);
        fs::create_dir_all(file.parent().expect("a folder")).expect("room for it");
        fs::write(file, content).expect("room for it");
    }
    root
}

/// What is found where /proc says this, and these files are there.
fn seen(groups: &str, mounts: &str, files: &[(&str, &str)]) -> Snapshot {
    let proc = [("proc/self/cgroup", groups), ("proc/self/mountinfo", mounts)];
    Cgroup::find_below(tree(&[&proc, files].concat()).path()).snapshot()
}

/// The files of a v2 group that is one container, in this directory.
fn v2_files(directory: &str) -> Vec<(String, &'static str)> {
    let files = [
        ("memory.current", "65077248\n"),
        ("memory.max", "67108864\n"),
        (
            "memory.stat",
            "anon 60571648\nfile 4194304\nkernel 311296\ninactive_anon 0\ninactive_file 4100096\nactive_file 94208\n",
        ),
        ("memory.events", "low 0\nhigh 0\nmax 812\noom 3\noom_kill 2\noom_group_kill 0\n"),
        ("memory.oom.group", "1\n"),
        (
            "cpu.stat",
            "usage_usec 1934004\nuser_usec 1891000\nsystem_usec 43004\ncore_sched.force_idle_usec 0\nnr_periods 97\nnr_throttled 95\nthrottled_usec 7612345\nnr_bursts 0\nburst_usec 0\n",
        ),
        ("cpu.max", "20000 100000\n"),
        ("pids.current", "7\n"),
        ("pids.max", "max\n"),
        ("pids.events", "max 0\n"),
    ];
    files.map(|(name, content)| (format!("{directory}/{name}"), content)).to_vec()
}

fn v2_figures() -> Snapshot {
    Snapshot {
        oom_kills: Some(2),
        memory_used: Some(60_977_152),
        memory_limit: Some(67_108_864),
        oom_group: Some(true),
        cpu_periods: Some(97),
        cpu_throttled_periods: Some(95),
        throttled_time: Some(Duration::from_micros(7_612_345)),
        cpu_quota: Some((Duration::from_millis(20), Duration::from_millis(100))),
        pids_current: Some(7),
        pids_limit: None,
        pids_max_events: Some(0),
    }
}

fn borrow<'a>(files: &'a [(String, &'static str)]) -> Vec<(&'a str, &'static str)> {
    files.iter().map(|(path, content)| (path.as_str(), *content)).collect()
}

/// The v1 files of one controller.
fn v1_memory(directory: &str) -> Vec<(String, &'static str)> {
    let files = [
        ("memory.usage_in_bytes", "64991232\n"),
        ("memory.limit_in_bytes", "67108864\n"),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"),
        (
            "memory.stat",
            "cache 4096000\nrss 60571648\ninactive_file 1\nhierarchical_memory_limit 67108864\nhierarchical_memsw_limit 9223372036854771712\ntotal_cache 4096000\ntotal_inactive_file 4001792\n",
        ),
    ];
    files.map(|(name, content)| (format!("{directory}/{name}"), content)).to_vec()
}

const V2_MOUNT: &str = "522 513 0:26 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw,nsdelegate\n";

#[test]
fn v2_in_a_namespace_is_mounted_as_our_own_root() {
    let files = v2_files("sys/fs/cgroup");
    assert_eq!(seen("0::/\n", V2_MOUNT, &borrow(&files)), v2_figures());
}

#[test]
fn v2_without_a_namespace_is_found_by_the_hosts_path() {
    let files = v2_files("sys/fs/cgroup/kubepods.slice/pod1/c1");
    assert_eq!(seen("0::/kubepods.slice/pod1/c1\n", V2_MOUNT, &borrow(&files)), v2_figures());
    // The runtime mounts the container's part alone.
    let mount = "522 513 0:26 /kubepods.slice/pod1/c1 /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
    let files = v2_files("sys/fs/cgroup");
    assert_eq!(seen("0::/kubepods.slice/pod1/c1\n", mount, &borrow(&files)), v2_figures());
}

#[test]
fn the_root_of_v2_tells_nothing_of_memory() {
    let files = [("sys/fs/cgroup/cpu.stat", "usage_usec 5\n"), ("sys/fs/cgroup/memory.stat", "anon 5\n")];
    assert_eq!(seen("0::/\n", V2_MOUNT, &files), Snapshot::default());
}

#[test]
fn v1_is_found_controller_by_controller() {
    let groups = "11:memory:/docker/1f\n4:cpu,cpuacct:/docker/1f\n3:pids:/docker/1f\n1:name=systemd:/docker/1f\n0::/\n";
    let mounts = "\
        40 35 0:30 /docker/1f /sys/fs/cgroup/cpu,cpuacct ro,nosuid - cgroup cgroup rw,cpu,cpuacct\n\
        44 35 0:34 /docker/1f /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory\n";
    let mut files = v1_memory("sys/fs/cgroup/memory");
    files.extend([
        ("sys/fs/cgroup/cpu,cpuacct/cpu.stat".into(), "nr_periods 50\nnr_throttled 40\nthrottled_time 2100000000\n"),
        ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us".into(), "20000\n"),
        ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us".into(), "100000\n"),
    ]);
    let expected = Snapshot {
        oom_kills: Some(1),
        memory_used: Some(60_989_440),
        memory_limit: Some(67_108_864),
        cpu_periods: Some(50),
        cpu_throttled_periods: Some(40),
        throttled_time: Some(Duration::from_millis(2100)),
        cpu_quota: Some((Duration::from_millis(20), Duration::from_millis(100))),
        // Not mounted.
        pids_current: None,
        ..Snapshot::default()
    };
    assert_eq!(seen(groups, mounts, &borrow(&files)), expected);
}

#[test]
fn in_the_hybrid_layout_a_controller_is_where_v1_has_it() {
    let groups = "4:memory:/\n0::/\n";
    let mounts = "\
        35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    let mut files = v1_memory("sys/fs/cgroup/memory");
    files.extend(v2_files("sys/fs/cgroup/unified"));
    let figures = seen(groups, mounts, &borrow(&files));
    assert_eq!((figures.oom_kills, figures.memory_used), (Some(1), Some(60_989_440)));
    assert_eq!((figures.oom_group, figures.cpu_periods), (None, Some(97)), "what v1 does not name is on v2");
}

#[test]
fn without_a_limit_of_its_own_the_lowest_above_is_the_limit() {
    let mounts = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    let limit = |own: &'static str, above: &'static str| {
        let files = [
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "5"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", own),
            ("sys/fs/cgroup/memory/memory.stat", above),
        ];
        seen("4:memory:/\n", mounts, &files).memory_limit
    };
    let none = "9223372036854771712";
    assert_eq!(limit(none, "hierarchical_memory_limit 1000\n"), Some(1000));
    assert_eq!(limit("2000", "hierarchical_memory_limit 1000\n"), Some(1000));
    assert_eq!(limit(none, "hierarchical_memory_limit 9223372036854771712\n"), None);
    assert_eq!(limit(none, ""), None);
}

#[test]
fn what_is_not_there_is_none() {
    let mount = "44 35 0:34 / /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
    for (groups, mounts) in [
        ("", ""),
        ("4:memory:/\n", ""),
        ("", mount),
        ("4:memory:/gone\n0::/\n", mount),
        ("4:memory:/../other\n", mount),
        ("garbage\n:::\n\0\u{fffd}\n4:memory\n", "garbage - \n - - -\n\n"),
        ("4:memory:/\n", "44 35 0:34 / /sys/fs/cgroup/memory ro - tmpfs tmpfs rw\n"),
    ] {
        assert_eq!(seen(groups, mounts, &[]), Snapshot::default(), "{groups} {mounts}");
    }
    assert_eq!(Cgroup::find_below(Path::new("/nowhere")).snapshot(), Snapshot::default());
}

#[test]
fn garbage_in_the_files_is_none() {
    let files = v2_files("sys/fs/cgroup");
    for garbage in ["", "\n", "x", "-1\n", "max", "oom_kill", "99999999999999999999999", "\0\0"] {
        let files: Vec<_> = borrow(&files).into_iter().map(|(path, _)| (path, garbage)).collect();
        assert_eq!(seen("0::/\n", V2_MOUNT, &files), Snapshot::default(), "{garbage:?}");
    }
}

#[test]
fn a_count_that_starts_anew_is_no_growth() {
    let events = |count: u32| format!("oom 9\noom_kill {count}\n");
    let root = tree(&[
        ("proc/self/cgroup", "0::/\n"),
        ("proc/self/mountinfo", V2_MOUNT),
        ("sys/fs/cgroup/memory.current", "1\n"),
        ("sys/fs/cgroup/memory.events", &events(3)),
    ]);
    let cgroup = Cgroup::find_below(root.path());
    let mut kills = Kills::begin(&cgroup);
    let mut look = |count: Option<u32>| {
        let file = root.path().join("sys/fs/cgroup/memory.events");
        fs::write(file, count.map_or(String::new(), events)).expect("room for it");
        (kills.look(&cgroup), kills.since_start())
    };
    assert_eq!(look(Some(3)), (0, Some(0)), "those before us are not ours");
    assert_eq!(look(Some(5)), (2, Some(2)));
    assert_eq!(look(None), (0, Some(2)));
    assert_eq!(look(Some(0)), (0, Some(0)));
    assert_eq!(look(Some(4)), (4, Some(1)));
    assert_eq!(Kills::begin(&Cgroup::default()).look(&Cgroup::default()), 0);
}

#[test]
fn this_machine_is_read_without_a_panic() {
    let cgroup = Cgroup::find();
    let figures = cgroup.snapshot();
    for place in [&cgroup.memory, &cgroup.cpu, &cgroup.pids].into_iter().flatten() {
        assert!(place.directory.is_dir(), "{place:?}");
    }
    assert_eq!(figures.memory_used.is_some(), cgroup.memory.is_some(), "{figures:?}");
    assert_eq!(figures.oom_kills.is_some(), cgroup.memory.is_some(), "{figures:?}");
    assert!(figures.memory_used.is_none_or(|used| used > 0), "{figures:?}");
    assert!(cgroup.memory_events().is_none() || cgroup.memory.is_some_and(|place| place.version == Version::V2));
}
