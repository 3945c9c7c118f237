//! Which files of a folder are read, and as what: by their names alone.

use std::path::{Path, PathBuf};

use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::Settings;

/// What a file is read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// JSON lines: an input of its own.
    Records,
    /// One document.
    Text,
    /// It is passed over.
    Other,
}

/// `source.include` and `source.exclude`: globs as in a `.gitignore`, where upper and lower case are the same.
#[derive(Clone, Debug)]
pub struct Globs {
    include: Gitignore,
    exclude: Gitignore,
}

impl Globs {
    /// From the settings.
    ///
    /// # Errors
    /// A glob that is none, with why. (The configuration refuses such a one before.)
    pub fn of(settings: &Settings) -> Result<Self, String> {
        Ok(Self { include: matcher(&settings.include)?, exclude: matcher(&settings.exclude)? })
    }

    /// What the file at this path, relative to its root, is read as. The endings `.gz` and `.zst` say nothing.
    pub fn kind(&self, relative: &Path) -> Kind {
        let name = unpacked(relative);
        let ending = name.extension().map(|ending| ending.to_string_lossy().to_lowercase());
        if matches!(ending.as_deref(), Some("jsonl" | "ndjson")) {
            Kind::Records
        } else if self.include.matched_path_or_any_parents(name, false).is_ignore() {
            Kind::Text
        } else {
            Kind::Other
        }
    }

    /// Whether a file or folder, relative to its root, is left out.
    pub fn leaves_out(&self, relative: &Path, is_folder: bool) -> bool {
        let out = |path: &Path| self.exclude.matched(path, is_folder).is_ignore();
        out(relative) || (!is_folder && out(&unpacked(relative)))
    }
}

/// The path without `.gz` or `.zst` at its end.
pub fn unpacked(path: &Path) -> PathBuf {
    match path.extension() {
        Some(ending) if ending.eq_ignore_ascii_case("gz") || ending.eq_ignore_ascii_case("zst") => {
            path.with_extension("")
        }
        _ => path.to_owned(),
    }
}

/// Whether `glob` can be one of `source.include` or `source.exclude`.
pub fn is_glob(glob: &str) -> bool {
    matcher(&[glob.to_owned()]).is_ok_and(|matcher| !matcher.is_empty())
}

fn matcher(globs: &[String]) -> Result<Gitignore, String> {
    let mut builder = GitignoreBuilder::new("");
    builder.case_insensitive(true).map_err(|error| error.to_string())?;
    for glob in globs {
        builder.add_line(None, glob).map_err(|error| error.to_string())?;
    }
    builder.build().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::tests::settings;

    #[test]
    fn the_name_says_what_a_file_is_read_as() {
        let globs = Globs::of(&settings()).unwrap();
        for (name, kind) in [
            ("a.md", Kind::Text),
            ("deep/er/READ.ME.TXT", Kind::Text),
            ("a.markdown.gz", Kind::Text),
            ("part-000.jsonl.ZST", Kind::Records),
            ("x/part.ndjson", Kind::Records),
            ("a.json", Kind::Other),
            ("md", Kind::Other),
            ("a.md.bak", Kind::Other),
            ("a.gz", Kind::Other),
        ] {
            assert_eq!(globs.kind(Path::new(name)), kind, "{name}");
        }
    }

    #[test]
    fn globs_are_those_of_a_gitignore() {
        let lists = |include: &[&str], exclude: &[&str]| {
            let list = |globs: &[&str]| globs.iter().map(|glob| (*glob).to_owned()).collect();
            Globs::of(&Settings { include: list(include), exclude: list(exclude), ..settings() }).unwrap()
        };
        let globs = lists(&["docs/", "*.rst", "!docs/old/"], &["drafts/", "/top.md", "*.log.*"]);
        assert_eq!(globs.kind(Path::new("docs/a/b.html")), Kind::Text);
        assert_eq!(globs.kind(Path::new("docs/old/b.html")), Kind::Other);
        assert_eq!(globs.kind(Path::new("x/y.rst")), Kind::Text);
        assert_eq!(globs.kind(Path::new("x/y.md")), Kind::Other);
        assert!(globs.leaves_out(Path::new("x/drafts"), true));
        assert!(
            globs.leaves_out(Path::new("top.md"), false) && !globs.leaves_out(Path::new("x/top.md"), false)
        );
        assert!(globs.leaves_out(Path::new("top.md.gz"), false));
        assert!(globs.leaves_out(Path::new("a.log.txt"), false));
        for (glob, is) in [("*.md", true), ("a/**/b", true), ("", false), ("# note", false), ("[z-a]", false)]
        {
            assert_eq!(is_glob(glob), is, "{glob:?}");
        }
    }
}
