//! The reference page of all settings, made from `config.toml` and the rules, so that neither can say otherwise.

use std::fmt::Write as _;

use super::{ENV_PREFIX, defaults, rule::rule};

const HEAD: &str = "# Settings

Made from `config.toml` (defaults and comments) and `src/config/rule.rs` (what each takes); `tests/config.rs` fails
when it is behind and says how to make it anew. Later layers win: the defaults, `forebay.toml` (or `--config FILE`), the
environment, flags and `--set KEY=VALUE`. Units stand in the names. In the environment a list is written with commas
(`FOREBAY__SOURCE__ID_FIELDS=id,doc_id`) or as TOML. `forebay check` prints every value and where it came from.
";

/// The page, in Markdown.
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    let defaults = defaults();
    let (mut section, mut comment, mut run) = ("", Vec::new(), false);
    for line in super::DEFAULTS.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix('#') {
            // A comment after a key begins another run of keys.
            if std::mem::take(&mut run) {
                comment.clear();
            }
            comment.push(text.trim());
        } else if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name;
            comment.clear();
            let _ = write!(page, "\n## {section}\n");
        } else if let Some((name, _)) = line.split_once('=') {
            let key = format!("{section}.{}", name.trim());
            let Some(setting) = defaults.iter().find(|setting| setting.key == key) else { continue };
            let env = format!("{ENV_PREFIX}{}", key.replace('.', "__").to_uppercase());
            let takes = rule(&key).expectation(&setting.value);
            let _ = write!(page, "\n### `{key}`\n\n{}\n\n", comment.join("\n"));
            let _ =
                writeln!(page, "- default: `{}`\n- takes: {takes}\n- environment: `{env}`", setting.value);
            run = true;
        } else if line.is_empty() {
            comment.clear();
        }
    }
    page
}
