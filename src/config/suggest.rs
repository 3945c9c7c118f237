//! The known key a user most likely meant.

/// Longer ones are nothing a hand typed, and the distance costs the product of the lengths.
const KEY_BYTES_MAX: usize = 256;

/// The nearest of `known` to `key`: by edit distance while that is small, else by an equal last part
/// (a setting written in the wrong section). `None` when nothing is near.
pub(super) fn nearest<'a>(key: &str, known: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    if key.len() > KEY_BYTES_MAX {
        return None;
    }
    let near = known.clone().map(|name| (distance(key, name), name)).min()?;
    if near.0 <= 2.max(key.chars().count() / 4) {
        return Some(near.1);
    }
    let last = |name: &str| name.rsplit('.').next().map(str::to_owned);
    known.clone().find(|name| last(name) == last(key))
}

/// Edits (insert, delete, replace, swap of neighbours) that turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    rows[0] = (0..=b.len()).collect();
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let replace = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            rows[i][j] = replace.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                rows[i][j] = rows[i][j].min(rows[i - 2][j - 2] + 1);
            }
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_key_is_found_and_nonsense_is_not() {
        let known = ["data.dir", "model.name", "model.dir", "retry.cap_ms"];
        let nearest = |key| nearest(key, known.iter().copied());
        assert_eq!(nearest("model.nmae"), Some("model.name"));
        assert_eq!(nearest("modle.name"), Some("model.name"));
        assert_eq!(nearest("retry.capms"), Some("retry.cap_ms"));
        assert_eq!(nearest("name"), Some("model.name"));
        assert_eq!(nearest("pipeline.cap_ms"), Some("retry.cap_ms"));
        assert_eq!(nearest("wholly.unlike"), None);
    }

    #[test]
    fn a_swap_of_neighbours_is_one_edit() {
        assert_eq!(distance("nmae", "name"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "abc"), 0);
    }
}
