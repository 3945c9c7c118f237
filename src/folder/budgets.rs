//! `budgets.json`: tokens that fit into a pass, learned, by device and model. A hint and no more: it is read by whoever
//! starts a run, whatever is wrong with it counts as nothing learned, and it is written anew when something is.

use std::{collections::BTreeMap, io::Write, os::unix::fs::OpenOptionsExt, path::Path};

const FILE: &str = "budgets.json";
/// Devices and models that are remembered at most; a file of more is nonsense, or nobody needs it.
const KEPT: usize = 64;

type Budgets = BTreeMap<String, usize>;

/// What was learned for `key`.
pub fn read(dir: &Path, key: &str) -> Option<usize> {
    all(dir).get(key).copied()
}

/// Remembers it, durable on return; `None`: there is nothing to remember any more.
///
/// # Errors
/// I/O: the next run then learns it again.
pub fn write(dir: &Path, key: &str, tokens: Option<usize>) -> std::io::Result<()> {
    let mut budgets = all(dir);
    match tokens {
        Some(tokens) => budgets.insert(key.to_owned(), tokens),
        None => budgets.remove(key),
    };
    let (path, temp) = (dir.join(FILE), dir.join("budgets.json.new"));
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temp)?;
    file.write_all(&serde_json::to_vec(&budgets)?)?;
    file.sync_all()?;
    std::fs::rename(&temp, &path)?;
    std::fs::File::open(dir)?.sync_all()
}

/// Whether the file is one of ours, or not there.
pub fn is_sound(dir: &Path) -> bool {
    !dir.join(FILE).exists() || parse(dir).is_some()
}

fn all(dir: &Path) -> Budgets {
    parse(dir).unwrap_or_default()
}

fn parse(dir: &Path) -> Option<Budgets> {
    let text = std::fs::read(dir.join(FILE)).ok()?;
    serde_json::from_slice(&text).ok().filter(|budgets: &Budgets| budgets.len() <= KEPT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_learned_is_there_again_until_it_is_withdrawn() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert_eq!(read(dir, "cuda:0 a"), None);
        write(dir, "cuda:0 a", Some(2_048)).unwrap();
        write(dir, "cpu a", Some(512)).unwrap();
        assert_eq!((read(dir, "cuda:0 a"), read(dir, "cpu a")), (Some(2_048), Some(512)));
        write(dir, "cuda:0 a", None).unwrap();
        assert_eq!((read(dir, "cuda:0 a"), read(dir, "cpu a")), (None, Some(512)));
    }

    #[test]
    fn whatever_is_wrong_with_it_counts_as_nothing_learned() {
        let dir = tempfile::tempdir().unwrap();
        let (dir, path) = (dir.path(), dir.path().join(FILE));
        let many: Budgets = (0..100).map(|n| (n.to_string(), n)).collect();
        let many = serde_json::to_string(&many).unwrap();
        for damage in
            ["", "{", "\0\u{1}", "[1]", "{\"cpu\": -1}", "{\"cpu\": \"x\"}", "{\"cpu\": 1e99}", &many]
        {
            std::fs::write(&path, damage).unwrap();
            assert_eq!((read(dir, "cpu"), is_sound(dir)), (None, false), "{damage}");
            write(dir, "cpu", Some(7)).unwrap();
            assert_eq!(read(dir, "cpu"), Some(7), "{damage}");
        }
        assert!(is_sound(dir));
        std::fs::remove_file(&path).unwrap();
        assert!(is_sound(dir));
        std::fs::create_dir(&path).unwrap();
        assert_eq!(read(dir, "cpu"), None);
        assert!(write(dir, "cpu", Some(7)).is_err());
    }
}
