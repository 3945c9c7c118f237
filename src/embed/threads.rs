//! How many threads the forward pass uses: one number, and where it comes from.

use super::machine::Machine;

/// Threads for `setting` (`model.threads`; 0: as many as the process may use) and where the number is from.
pub fn threads_of(setting: usize) -> (usize, &'static str) {
    if setting > 0 {
        return (setting, "model.threads");
    }
    // Counts the affinity mask, and the quota of a control group where std finds it: at its usual place, under the
    // path that /proc names. In a container that is not always where it is, so we look too.
    let usable = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    tightest(usable, Machine::here().quota(), allowed(&status), list_len(online.trim()))
}

/// The least of what std found usable and of the quota, and which limit that is.
fn tightest(
    usable: usize,
    quota: Option<(usize, &str)>,
    allowed: Option<usize>,
    online: Option<usize>,
) -> (usize, &'static str) {
    let threads = quota.map_or(usable, |(cpus, _)| cpus.min(usable));
    let source = match (allowed, online, quota) {
        (Some(allowed), ..) if threads < allowed => match quota {
            Some((_, "cpu.max")) => "cgroup quota, cpu.max",
            Some(_) => "cgroup quota, cpu.cfs_quota_us",
            None => "cgroup quota",
        },
        (Some(allowed), Some(online), _) if allowed < online => "CPU affinity",
        _ => "processors of the machine",
    };
    (threads, source)
}

/// Processors in the affinity mask, from `/proc/self/status`.
fn allowed(status: &str) -> Option<usize> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    list_len(list.trim())
}

/// Length of a kernel list such as `0-3,8,10-11`.
fn list_len(list: &str) -> Option<usize> {
    let mut sum = 0;
    for part in list.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        sum += to.parse::<usize>().ok()?.checked_sub(from.parse().ok()?)? + 1;
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        assert_eq!(list_len("0-3,8,10-11"), Some(7));
        assert_eq!(list_len("5"), Some(1));
        assert_eq!(list_len(""), None);
        assert_eq!(list_len("3-1"), None);
        assert_eq!(allowed("Name:\tx\nCpus_allowed_list:\t0-1\n"), Some(2));
    }

    #[test]
    fn the_tightest_limit_is_named() {
        assert_eq!(tightest(2, None, Some(8), Some(8)), (2, "cgroup quota"));
        assert_eq!(tightest(8, Some((3, "cpu.max")), Some(8), Some(8)), (3, "cgroup quota, cpu.max"));
        let first = Some((1, "cpu.cfs_quota_us"));
        assert_eq!(tightest(4, first, Some(4), Some(8)), (1, "cgroup quota, cpu.cfs_quota_us"));
        assert_eq!(tightest(2, Some((6, "cpu.max")), Some(2), Some(8)), (2, "CPU affinity"));
        assert_eq!(tightest(8, None, Some(8), Some(8)), (8, "processors of the machine"));
        assert_eq!(tightest(2, None, None, None), (2, "processors of the machine"));
    }

    #[test]
    fn a_setting_wins() {
        assert_eq!(threads_of(3), (3, "model.threads"));
        assert!(threads_of(0).0 >= 1);
    }
}
