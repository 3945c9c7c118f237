//! A model from the hub, through hf-hub's client, with what that client leaves to its caller: digests, a limit on
//! size and on silence, sound resuming, and a token that is sent only where it is asked for.
//!
//! Proxies come from the environment (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`).

use std::{
    cell::Cell,
    fmt, fs,
    path::{Path, PathBuf},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use hf_hub::{Cache, Repo, RepoType, api::sync::ApiBuilder};

use super::{
    download::{self, Event, Fetched, Order},
    entry::{Entry, ModelFile},
    fail::{Trouble, scrub},
    manifest,
    pull::{self, Delivery, Meter, Received},
    stage::{self, Stage},
};

/// A download that gained this much since it last failed has not failed in vain: its tries are counted anew.
const GAIN_BYTES: u64 = 1 << 20;

/// Events of a download that may wait to be heard.
const EVENTS_WAITING: usize = 64;

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
    /// Silence that counts as no answer.
    pub stall: Duration,
    /// Tries of one request in a row.
    pub tries: u32,
    /// Wait before the second try; doubles with each.
    pub retry_base: Duration,
}

impl HubOptions {
    /// `HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_OFFLINE`.
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
    let repo = Repo::with_revision(source.repo.clone(), RepoType::Model, entry.revision.clone());
    let base = match &options.endpoint {
        Some(url) if url.starts_with("http://") || url.starts_with("https://") => format!("{url}/"),
        Some(url) => {
            let why = "HF_ENDPOINT must start with http:// or https://".to_owned();
            return Err(Trouble::Unreachable { url: scrub(url), why });
        }
        None => String::new(),
    };
    let origin = scrub(&format!("{base}{}@{}", source.repo, entry.revision));
    let hub = Hub { entry, options, repo, stage, with_token: Cell::new(false) };
    let received = entry.files.iter().enumerate().map(|(i, file)| hub.file(i, file, meter));
    Ok(Delivery { source: "hub", origin, received: received.collect::<Result<_, _>>()?, trusted })
}

struct Hub<'a> {
    entry: &'a Entry,
    options: &'a HubOptions,
    repo: Repo,
    stage: &'a Stage,
    /// Whether a request without the token was refused. Until then it stays here: the client's probe hands its
    /// headers to whatever host the hub redirects to.
    with_token: Cell<bool>,
}

impl Hub<'_> {
    /// One file, tried until it is here or there is no hope.
    fn file(&self, index: usize, file: &ModelFile, meter: &Meter<'_>) -> Result<Received, Trouble> {
        let cache = self.stage.parts.join(index.to_string());
        let (start, mut failures, mut from_scratch) = (meter.done(), 0, false);
        loop {
            let mut gained = 0;
            let why = match self.attempt(file, &cache, meter, start, &mut gained) {
                Ok((received, blob)) => {
                    let place = self.stage.place(&file.path)?;
                    fs::rename(&blob, &place).map_err(Trouble::io("move", &blob))?;
                    stage::remove(&cache).map_err(Trouble::io("clean", &cache))?;
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
                // What was resumed may be of another file, or the server may not know Range: once more, whole.
                let resumed = download::resumed(&cache);
                stage::remove(&cache).map_err(Trouble::io("clean", &cache))?;
                if !resumed || std::mem::replace(&mut from_scratch, true) {
                    return Err(why);
                }
                continue;
            }
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

    /// One download on a thread of its own, so that silence can be noticed.
    fn attempt(
        &self,
        file: &ModelFile,
        cache: &Path,
        meter: &Meter<'_>,
        start: u64,
        gained: &mut u64,
    ) -> Result<(Received, PathBuf), Trouble> {
        let (events, heard) = mpsc::sync_channel(EVENTS_WAITING);
        let order = self.order(file, cache, events)?;
        let url = order.url.clone();
        let worker = thread::Builder::new().name("model-pull".into());
        // Not joined: a client that waits for a dead server cannot be interrupted. It ends with its next byte,
        // because nobody listens any more, or with the process.
        worker.spawn(move || download::run(order)).map_err(Trouble::io("start a thread for", cache))?;
        let mut begun = None;
        let fetched = loop {
            match heard.recv_timeout(self.options.stall) {
                Ok(Event::At(bytes)) => {
                    *gained = bytes.saturating_sub(*begun.get_or_insert(bytes));
                    meter.set(&file.path, start + bytes);
                }
                Ok(Event::End(result)) => break result?,
                Err(RecvTimeoutError::Timeout) => {
                    let why = format!("nothing came for {} s", self.options.stall.as_secs_f32());
                    return Err(Trouble::Unreachable { url, why });
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Trouble::Unreachable { url, why: "the download's thread ended".into() });
                }
            }
        };
        self.admit(file, fetched, &url)
    }

    fn order(
        &self,
        file: &ModelFile,
        cache: &Path,
        events: mpsc::SyncSender<Event>,
    ) -> Result<Order, Trouble> {
        let token =
            self.options.token.as_ref().filter(|_| self.with_token.get()).map(|token| token.0.clone());
        let token_sent = token.is_some();
        let mut builder = ApiBuilder::from_cache(Cache::new(cache.to_owned()));
        builder = builder.with_progress(false).with_retries(0).with_token(token);
        if let Some(endpoint) = &self.options.endpoint {
            builder = builder.with_endpoint(endpoint.clone());
        }
        let built = builder.build().map_err(|error| Trouble::NotAHub {
            url: scrub(self.options.endpoint.as_deref().unwrap_or_default()),
            why: scrub(&error.to_string()),
        })?;
        let api = built.repo(self.repo.clone());
        let address = api.url(&file.path);
        Ok(Order {
            client: built,
            url: scrub(&address),
            address,
            api,
            repo: self.repo.clone(),
            cache: cache.to_owned(),
            file: file.path.clone(),
            size: file.size,
            token_sent,
            events,
        })
    }

    /// Hashes what came and compares it with what is pinned.
    fn admit(&self, file: &ModelFile, fetched: Fetched, url: &str) -> Result<(Received, PathBuf), Trouble> {
        if file.sha256.is_none() && fetched.commit != self.entry.revision {
            let (got, want) = (fetched.commit, self.entry.revision.clone());
            return Err(Trouble::WrongRevision { url: url.to_owned(), got, want });
        }
        let hashed = manifest::hash_file(&fetched.blob, &mut |_| ());
        let (sha256, size) = hashed.map_err(Trouble::io("read", &fetched.blob))?;
        let received = Received { path: file.path.clone(), sha256, size };
        received.check(file, url)?;
        Ok((received, fetched.blob))
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
