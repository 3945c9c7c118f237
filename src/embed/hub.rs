//! A model from the hub: every file by its pinned revision, checked as soon as it is here.
//!
//! Proxies come from the environment (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`), and so may the
//! certificates to trust (`SSL_CERT_FILE`).

use std::{
    cell::Cell,
    fmt, fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use ureq::{
    Agent,
    tls::{PemItem, RootCerts, TlsConfig, parse_pem},
};

use super::{
    download::{self, Heard, Order},
    entry::{Entry, HubSource, ModelFile},
    fail::{Trouble, scrub},
    manifest,
    pull::{self, Delivery, Meter, Received},
    stage::{self, Stage},
};

/// The public hub.
const PUBLIC: &str = "https://huggingface.co";

/// A download that gained this much since it last failed has not failed in vain: its tries are counted anew.
const GAIN_BYTES: u64 = 1 << 20;

/// A secret: it can be sent, not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token, without white space around it; none if that is all there is.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        (!text.is_empty()).then(|| Self(text.to_owned()))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// How to reach the hub.
#[derive(Clone, Debug)]
pub struct HubOptions {
    /// Base URL; none: the public hub.
    pub endpoint: Option<String>,
    /// Sent once a request without it was refused.
    pub token: Option<Token>,
    /// Ask nobody.
    pub offline: bool,
    /// File of certificates (PEM) to trust instead of the compiled-in ones.
    pub ca_file: Option<PathBuf>,
    /// Silence that counts as no answer.
    pub stall: Duration,
    /// Tries of one request in a row.
    pub tries: u32,
    /// Wait before the second try; doubles with each.
    pub retry_base: Duration,
}

impl HubOptions {
    /// `HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_OFFLINE`, `SSL_CERT_FILE`.
    pub fn from_env() -> Self {
        Self::from_vars(|name| std::env::var(name).ok())
    }

    fn from_vars(var: impl Fn(&str) -> Option<String>) -> Self {
        let endpoint = var("HF_ENDPOINT").map(|url| url.trim().trim_end_matches('/').to_owned());
        let offline = var("HF_HUB_OFFLINE").is_some_and(|text| {
            ["1", "true", "yes", "on"].contains(&text.trim().to_ascii_lowercase().as_str())
        });
        Self {
            endpoint: endpoint.filter(|url| !url.is_empty()),
            token: var("HF_TOKEN").and_then(|text| Token::new(&text)),
            offline,
            ca_file: var("SSL_CERT_FILE").filter(|path| !path.is_empty()).map(PathBuf::from),
            stall: Duration::from_secs(30),
            tries: 4,
            retry_base: Duration::from_millis(500),
        }
    }
}

/// Fetches the files, each checked as soon as it is here.
pub(super) fn fetch(
    entry: &Entry,
    options: &HubOptions,
    trust: bool,
    stage: &Stage,
    meter: &Meter<'_>,
) -> Result<Delivery, Trouble> {
    let source = entry.hub.as_ref().ok_or(Trouble::NoSource("hub"))?;
    let trusted = pull::trusts(entry, source.verified, trust, "the hub")?;
    if options.offline {
        return Err(Trouble::Offline);
    }
    let base = options.endpoint.as_deref().unwrap_or(PUBLIC);
    if !base.starts_with("http://") && !base.starts_with("https://") {
        let why = "HF_ENDPOINT must start with http:// or https://".to_owned();
        return Err(Trouble::Unreachable { url: scrub(base), why });
    }
    let origin = scrub(&format!("{base}/{}@{}", source.repo, entry.revision));
    let agent = agent(options)?;
    let hub = Hub { entry, source, base, options, agent, stage, with_token: Cell::new(false) };
    let received = entry.files.iter().enumerate().map(|(i, file)| hub.file(i, file, meter));
    Ok(Delivery { source: "hub", origin, received: received.collect::<Result<_, _>>()?, trusted })
}

/// The client: no redirects of its own, no silence longer than `stall`.
fn agent(options: &HubOptions) -> Result<Agent, Trouble> {
    let stall = Some(options.stall);
    let mut config = Agent::config_builder()
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .accept_encoding("identity")
        .user_agent(concat!("forebay/", env!("CARGO_PKG_VERSION")))
        .timeout_connect(stall)
        .timeout_recv_response(stall)
        .timeout_per_read(stall);
    if let Some(path) = &options.ca_file {
        let pem = fs::read(path).map_err(Trouble::io("read the certificates in", path))?;
        let certificates: Vec<_> = parse_pem(&pem)
            .filter_map(|item| match item {
                Ok(PemItem::Certificate(certificate)) => Some(certificate),
                _ => None,
            })
            .collect();
        if certificates.is_empty() {
            let why = std::io::Error::new(std::io::ErrorKind::InvalidData, "it holds none (SSL_CERT_FILE)");
            return Err(Trouble::io("read the certificates in", path)(why));
        }
        let roots = RootCerts::new_with_certs(&certificates);
        config = config.tls_config(TlsConfig::builder().root_certs(roots).build());
    }
    Ok(config.build().into())
}

struct Hub<'a> {
    entry: &'a Entry,
    source: &'a HubSource,
    base: &'a str,
    options: &'a HubOptions,
    agent: Agent,
    stage: &'a Stage,
    /// Whether a request without the token was refused. Until then it stays here.
    with_token: Cell<bool>,
}

impl Hub<'_> {
    /// One file, tried until it is here or there is no hope.
    fn file(&self, index: usize, file: &ModelFile, meter: &Meter<'_>) -> Result<Received, Trouble> {
        let part = self.stage.parts.join(index.to_string());
        if file.sha256.is_none() {
            // Nothing would tell a part of another file.
            stage::remove(&part).map_err(Trouble::io("clean", &part))?;
        }
        let (start, mut failures, mut from_scratch) = (meter.done(), 0, false);
        loop {
            let before = download::length(&part);
            let why = match self.attempt(file, &part, meter, start) {
                Ok(received) => {
                    let place = self.stage.place(&file.path)?;
                    fs::rename(&part, &place).map_err(Trouble::io("move", &part))?;
                    meter.set(&file.path, start + received.size);
                    return Ok(received);
                }
                Err(why) => why,
            };
            meter.set(&file.path, start);
            if self.asks_for_token(&why) {
                self.with_token.set(true);
                continue;
            }
            if is_wrong(&why) {
                // What was resumed may be of another file: once more, whole.
                stage::remove(&part).map_err(Trouble::io("clean", &part))?;
                if before == 0 || std::mem::replace(&mut from_scratch, true) {
                    return Err(why);
                }
                continue;
            }
            let gained = download::length(&part).saturating_sub(before);
            failures = if gained >= GAIN_BYTES { 1 } else { failures + 1 };
            if !why.may_pass() || failures >= self.options.tries {
                return Err(why);
            }
            tracing::debug!(file = file.path, %why, "trying again");
            wait(self.options.retry_base, failures);
        }
    }

    fn asks_for_token(&self, why: &Trouble) -> bool {
        let refused = matches!(why, Trouble::Status { status: 401 | 403 | 404 | 429, .. });
        refused && self.options.token.is_some() && !self.with_token.get()
    }

    /// One download, hashed and compared with what is pinned.
    fn attempt(
        &self,
        file: &ModelFile,
        part: &Path,
        meter: &Meter<'_>,
        start: u64,
    ) -> Result<Received, Trouble> {
        let HubSource { repo, .. } = self.source;
        let address = format!("{}/{repo}/resolve/{}/{}", self.base, self.entry.revision, file.path);
        let url = scrub(&address);
        let token = self.options.token.as_ref().filter(|_| self.with_token.get());
        let order = Order {
            agent: &self.agent,
            address: &address,
            url: &url,
            token: token.map(|token| token.0.as_str()),
            part,
            size: file.size,
            stall: self.options.stall,
        };
        let commit = download::fetch(&order, &mut |heard| match heard {
            Heard::Host(host) => meter.ask(host),
            Heard::At(bytes) => meter.set(&file.path, start + bytes),
        })?;
        if file.sha256.is_none() && commit.as_deref() != Some(&*self.entry.revision) {
            let (got, want) = (commit.unwrap_or_else(|| "unknown".into()), self.entry.revision.clone());
            return Err(Trouble::WrongRevision { url, got, want });
        }
        let hashed = manifest::hash_file(part, &mut |_| ());
        let (sha256, size) = hashed.map_err(Trouble::io("read", part))?;
        let received = Received { path: file.path.clone(), sha256, size, converted_from: None };
        received.check(file, &url)?;
        Ok(received)
    }
}

/// Whether what came is not what was asked for: no part of it may be kept.
const fn is_wrong(why: &Trouble) -> bool {
    matches!(why, Trouble::WrongBytes { .. } | Trouble::WrongSize { .. } | Trouble::WrongRevision { .. })
}

/// Waits before try `failures + 1`: doubled each time, half of it by chance.
fn wait(base: Duration, failures: u32) {
    let cap = base.saturating_mul(1 << failures.min(6).saturating_sub(1));
    let wait = cap.mul_f64(0.5 + fastrand::f64() / 2.0);
    if !wait.is_zero() {
        // Waking early does no harm.
        thread::park_timeout(wait);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_read_as_its_owner_means_it() {
        let vars = |name: &str| {
            Some(match name {
                "HF_ENDPOINT" => " https://mirror.example/hf/ ".to_owned(),
                "HF_TOKEN" => " canary\n".to_owned(),
                _ => "TRUE".to_owned(),
            })
        };
        let options = HubOptions::from_vars(vars);
        assert_eq!(options.endpoint.as_deref(), Some("https://mirror.example/hf"));
        assert_eq!(options.token, Token::new("canary"));
        assert!(options.offline);
        assert!(!format!("{options:?}").contains("canary"));
        let bare = HubOptions::from_vars(|name| (name == "HF_HUB_OFFLINE").then(|| "0".to_owned()));
        assert!(bare.endpoint.is_none() && bare.token.is_none() && !bare.offline);
    }
}
