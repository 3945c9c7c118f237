//! What the machine leaves this process: processors by quota, and memory. Control groups of both versions are read
//! where they are mounted; a group that cannot be seen from here (a container that shows its own alone) is its mount.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The machine, as its `/proc` and `/sys` below a root tell of it.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
}

/// A group of this process and those above it, the innermost first.
struct Groups {
    second: bool,
    dirs: Vec<PathBuf>,
}

impl Machine {
    /// The one that this process runs on.
    pub fn here() -> Self {
        Self::below(Path::new("/"))
    }

    /// One whose `/proc` and `/sys` lie below `root`.
    pub fn below(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Whole processors that the tightest quota allows, at least 1, and the file that says so; `None`: no quota.
    ///
    /// A quota of 1.5 is one thread: the second would be stopped half of the time, and the rest of the line needs
    /// that half.
    pub fn quota(&self) -> Option<(usize, &'static str)> {
        let one = |groups: Groups| {
            let file = if groups.second { "cpu.max" } else { "cpu.cfs_quota_us" };
            let cpus = groups.dirs.iter().filter_map(|dir| quota_of(dir, groups.second)).min()?;
            Some((usize::try_from(cpus.max(1)).unwrap_or(usize::MAX), file))
        };
        self.groups("cpu").into_iter().filter_map(one).min_by_key(|(cpus, _)| *cpus)
    }

    /// Bytes that can still be had: by the kernel's own estimate, and by each control group. `None`: unknown.
    pub fn available(&self) -> Option<u64> {
        let meminfo = self.read("proc/meminfo");
        let kib = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:")).and_then(first_number);
        let groups = self.groups("memory");
        let left = |groups: &Groups| groups.dirs.iter().filter_map(|dir| left_of(dir, groups.second)).min();
        kib.map(|kib| kib.saturating_mul(1024)).into_iter().chain(groups.iter().filter_map(left)).min()
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.root.join(path)).unwrap_or_default()
    }

    /// The groups that may limit `controller`: of version 2 and of version 1, where they are mounted.
    fn groups(&self, controller: &str) -> Vec<Groups> {
        let (mounts, member) = (self.read("proc/self/mountinfo"), self.read("proc/self/cgroup"));
        let one = |line: &str| {
            let (left, right) = line.split_once(" - ")?;
            let (mut place, mut kind) = (left.split(' ').skip(3), right.split(' '));
            let (shown, mount, fs) = (place.next()?, place.next()?, kind.next()?);
            let second = fs == "cgroup2";
            let options = kind.next_back()?;
            if !(second || fs == "cgroup" && options.split(',').any(|option| option == controller)) {
                return None;
            }
            let path = member.lines().find_map(|line| {
                let mut parts = line.splitn(3, ':').skip(1);
                let (names, path) = (parts.next()?, parts.next()?);
                let ours = if second { names.is_empty() } else { names.split(',').any(|n| n == controller) };
                ours.then_some(path)
            })?;
            Some(self.dirs(second, mount, path.strip_prefix(shown.trim_end_matches('/')).unwrap_or("/")))
        };
        mounts.lines().filter_map(one).collect()
    }

    fn dirs(&self, second: bool, mount: &str, path: &str) -> Groups {
        let mount = self.root.join(mount.trim_start_matches('/'));
        let inner = mount.join(path.trim_start_matches('/'));
        let seen = !path.contains("..") && inner.is_dir();
        let inner = if seen { inner } else { mount.clone() };
        let dirs = inner.ancestors().take_while(|dir| dir.starts_with(&mount)).map(Path::to_owned).collect();
        Groups { second, dirs }
    }
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

/// Whole processors that this group alone allows.
fn quota_of(dir: &Path, second: bool) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(dir.join(name)).ok();
    let (quota, period) = if second {
        let text = read("cpu.max")?;
        let (quota, period) = text.trim().split_once(' ')?;
        (quota.to_owned(), period.to_owned())
    } else {
        (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?)
    };
    // `max` and -1 are no number of this kind: no quota.
    Some(first_number(&quota)? / first_number(&period).filter(|period| *period > 0)?)
}

/// Bytes that this group alone still gives. What it holds of files goes when memory is wanted.
fn left_of(dir: &Path, second: bool) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(dir.join(name)).ok().and_then(|text| first_number(&text));
    let names = match second {
        true => ["memory.max", "memory.current", "active_file", "inactive_file"],
        false => {
            ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_active_file", "total_inactive_file"]
        }
    };
    let (limit, used) = (number(names[0])?, number(names[1])?);
    let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    let lines = stat.lines().filter_map(|line| line.split_once(' '));
    let files = lines.filter(|(name, _)| names[2..].contains(name)).filter_map(|(_, n)| first_number(n));
    Some(limit.saturating_sub(used.saturating_sub(files.sum())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
        32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";
    const V2: &str = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Machine) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let machine = Machine::below(root.path());
        (root, machine)
    }

    #[test]
    fn a_quota_of_version_2_is_the_tightest_on_the_way_up() {
        let (_root, machine) = machine(&[
            ("proc/self/mountinfo", V2),
            ("proc/self/cgroup", "0::/kube.slice/pod.slice\n"),
            ("sys/fs/cgroup/kube.slice/pod.slice/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/kube.slice/cpu.max", "250000 100000\n"),
        ]);
        assert_eq!(machine.quota(), Some((2, "cpu.max")));
    }

    #[test]
    fn a_quota_of_version_1_is_read_beside_other_hierarchies() {
        let (_root, machine) = machine(&[
            ("proc/self/mountinfo", V1),
            ("proc/self/cgroup", "9:name=systemd:/x\n4:memory:/m\n2:cpu,cpuacct:/docker/abc\n0::/\n"),
            ("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "350000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
        ]);
        assert_eq!(machine.quota(), Some((3, "cpu.cfs_quota_us")));
    }

    #[test]
    fn a_container_that_shows_its_own_group_alone_is_found_at_the_mount() {
        // The path in /proc/self/cgroup is the host's: by the mount's own root, or not to be seen at all.
        for (mount, member) in [
            ("35 24 0:30 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup rw\n", "0::/docker/abc\n"),
            (V2, "0::/docker/abc\n"),
            (V2, "0::/../../other\n"),
        ] {
            let (_root, machine) = machine(&[
                ("proc/self/mountinfo", mount),
                ("proc/self/cgroup", member),
                ("sys/fs/cgroup/cpu.max", "50000 100000\n"),
                ("sys/fs/cgroup/memory.max", "1000000\n"),
                ("sys/fs/cgroup/memory.current", "900000\n"),
            ]);
            assert_eq!((machine.quota(), machine.available()), (Some((1, "cpu.max")), Some(100_000)));
        }
    }

    #[test]
    fn memory_is_the_least_of_what_the_machine_and_its_groups_leave() {
        let free = ("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    4000 kB\nBuffers: 1 kB\n");
        assert_eq!(machine(&[free]).1.available(), Some(4_000 * 1024));
        let second = [
            free,
            ("proc/self/mountinfo", V2),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/memory.current", "500\n"),
            ("sys/fs/cgroup/a/memory.max", "2000000\n"),
            ("sys/fs/cgroup/a/memory.current", "1900000\n"),
            (
                "sys/fs/cgroup/a/memory.stat",
                "anon 7\nfile 600000\nactive_file 300000\ninactive_file 200000\n",
            ),
        ];
        assert_eq!(machine(&second).1.available(), Some(600_000));
        let first = [
            free,
            ("proc/self/mountinfo", V1),
            ("proc/self/cgroup", "4:memory:/a\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000000\n"),
            ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1200000\n"),
            ("sys/fs/cgroup/memory/a/memory.stat", "total_inactive_file 100\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "5\n"),
        ];
        assert_eq!(machine(&first).1.available(), Some(0), "over its limit, it has nothing left");
    }

    #[test]
    fn nothing_and_nonsense_are_no_limit() {
        assert_eq!((machine(&[]).1.quota(), machine(&[]).1.available()), (None, None));
        let (_root, machine) = machine(&[
            ("proc/meminfo", "MemAvailable: lots\n"),
            ("proc/self/mountinfo", &format!("- - -\n\n{V2}")),
            ("proc/self/cgroup", "nonsense\n0::\n"),
            ("sys/fs/cgroup/cpu.max", "50000 0\n"),
            ("sys/fs/cgroup/memory.max", "12\n"),
        ]);
        assert_eq!((machine.quota(), machine.available()), (None, None));
        assert!(Machine::here().available().is_some());
    }
}
