//! How many threads the forward pass uses: one number, and where it comes from.

/// Threads for `setting` (`model.threads`; 0: as many as the process may use) and where the number is from.
pub fn threads_of(setting: usize) -> (usize, &'static str) {
    if setting > 0 {
        return (setting, "model.threads");
    }
    // Counts the affinity mask and the cgroup quota (v1 and v2) of this process.
    let usable = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    (usable, source_of(usable, allowed(&status), list_len(online.trim())))
}

fn source_of(usable: usize, allowed: Option<usize>, online: Option<usize>) -> &'static str {
    match (allowed, online) {
        (Some(allowed), _) if usable < allowed => "cgroup quota",
        (Some(allowed), Some(online)) if allowed < online => "CPU affinity",
        _ => "processors of the machine",
    }
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
        assert_eq!(source_of(2, Some(8), Some(8)), "cgroup quota");
        assert_eq!(source_of(2, Some(2), Some(8)), "CPU affinity");
        assert_eq!(source_of(8, Some(8), Some(8)), "processors of the machine");
        assert_eq!(source_of(2, None, None), "processors of the machine");
    }

    #[test]
    fn a_setting_wins() {
        assert_eq!(threads_of(3), (3, "model.threads"));
        assert!(threads_of(0).0 >= 1);
    }
}
