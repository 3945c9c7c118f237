//! A model as one file, for a site without a network: `NAME-REV8.tar.zst`, its manifest first. The same model gives
//! the same bytes everywhere, so that two sites can compare the file's sha256.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, BufReader, BufWriter, Read, Write},
    path::{Path, PathBuf},
};

use tar::{Archive, Builder, EntryType, Header};

use super::{
    cache::{self, Installed},
    entry::Entry,
    fail::Trouble,
    manifest::{self, InstalledFile, Manifest},
    pull::{Delivery, Meter, Received},
    stage::{self, Stage},
};
use crate::chunk::Digest;

/// Weights hardly shrink: the quickest level gives all there is to gain.
const LEVEL: i32 = 1;

/// Bytes of a manifest at most.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;

/// The first bytes of a zstd file.
pub(super) const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// A bundle that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// The file.
    pub path: PathBuf,
    /// Its SHA-256.
    pub sha256: Digest,
    /// Its bytes.
    pub size: u64,
}

/// The name a bundle has when none is given.
pub fn file_name(entry: &Entry) -> String {
    format!("{}-{}.tar.zst", entry.name.to_lowercase(), entry.rev8())
}

/// Packs an installed model into `to`, every file hashed on the way; `seen` hears bytes done and bytes in all. The
/// file appears under its name only when it is whole.
///
/// # Errors
/// A sentence with what to type next: a file is not what was installed, or the file system refused.
pub fn pack(
    installed: &Installed,
    entry: &Entry,
    to: &Path,
    seen: &mut dyn FnMut(u64, u64),
) -> Result<Packed, String> {
    let name = to.file_name().ok_or_else(|| format!("-o {}: it names no file", to.display()))?;
    let temp = to.with_file_name(format!(".{}.{}.tmp", name.to_string_lossy(), std::process::id()));
    let packed = write(installed, &temp, seen).and_then(|()| {
        fs::rename(&temp, to)?;
        let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        manifest::hash_file(to, &mut |_| ())
    });
    let (sha256, size) = packed.map_err(|error| {
        // What is left of it is of no use; that it cannot be removed is no news.
        let _ = stage::remove(&temp);
        let name = &entry.name;
        format!(
            "cannot write {}: {error}. Free space or choose another place with -o, or check the model with \
             `forebay model verify {name}`",
            to.display()
        )
    })?;
    Ok(Packed { path: to.to_owned(), sha256, size })
}

fn write(installed: &Installed, to: &Path, seen: &mut dyn FnMut(u64, u64)) -> io::Result<()> {
    let manifest = canonical(&installed.manifest);
    let file = BufWriter::new(File::create(to)?);
    let mut tar = Builder::new(zstd::Encoder::new(file, LEVEL)?);
    let text = toml::to_string(&manifest).map_err(io::Error::other)?;
    tar.append(&header(manifest::FILE, text.len() as u64)?, text.as_bytes())?;
    let (mut done, total) = (0, manifest.size());
    for InstalledFile { path, size, sha256, .. } in &manifest.files {
        let source = File::open(manifest::below(&installed.folder, path))?;
        let mut counted = Counted { source, hash: manifest::Hasher::default(), done: &mut done, total, seen };
        tar.append(&header(path, *size)?, (&mut counted).take(*size))?;
        let (found, length) = counted.hash.finish();
        if found != *sha256 || length != *size {
            return Err(io::Error::other(format!("{path} is not what was installed")));
        }
    }
    let mut file = tar.into_inner()?.finish()?;
    file.flush()?;
    file.get_ref().sync_all()
}

/// Nothing of this machine or this day, files by name.
fn canonical(manifest: &Manifest) -> Manifest {
    let mut files = manifest.files.clone();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files.iter_mut().for_each(|file| file.mtime_ns = 0);
    let (source, origin, installed_at) = ("bundle".into(), String::new(), "1970-01-01T00:00:00Z".into());
    Manifest { source, origin, installed_at, files, ..manifest.clone() }
}

fn header(path: &str, size: u64) -> io::Result<Header> {
    let mut header = Header::new_gnu();
    header.set_path(path)?;
    header.set_entry_type(EntryType::Regular);
    header.set_size(size);
    header.set_mode(0o644);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_cksum();
    Ok(header)
}

/// A file that is hashed and counted while it is read.
struct Counted<'a> {
    source: File,
    hash: manifest::Hasher,
    done: &'a mut u64,
    total: u64,
    seen: &'a mut dyn FnMut(u64, u64),
}

impl Read for &mut Counted<'_> {
    fn read(&mut self, block: &mut [u8]) -> io::Result<usize> {
        let n = self.source.read(block)?;
        self.hash.update(&block[..n]);
        *self.done += n as u64;
        (self.seen)(*self.done, self.total);
        Ok(n)
    }
}

/// Unpacks a bundle into the stage: exactly the files of its manifest, each of its announced size and digest, and
/// those of the entry. What it was made from by conversion elsewhere cannot be checked here and needs trust.
pub(super) fn unpack(
    entry: &Entry,
    from: &Path,
    trust: bool,
    stage: &Stage,
    meter: &Meter<'_>,
) -> Result<Delivery, Trouble> {
    let bad = |why: String| Trouble::BadBundle { path: from.to_owned(), why };
    let unread = |error: io::Error| bad(broken(&error));
    let file = File::open(from).map_err(Trouble::io("read", from))?;
    let mut archive = Archive::new(zstd::Decoder::with_buffer(BufReader::new(file)).map_err(unread)?);
    let mut items = archive.entries().map_err(unread)?;
    let mut first = items.next().ok_or_else(|| bad("it is empty".into()))?.map_err(unread)?;
    let manifest = read_manifest(&mut first, from)?;
    if let Some(why) = cache::mismatch(&manifest, entry) {
        return Err(bad(why));
    }
    let unpinned = |file: &&InstalledFile| {
        let wanted = entry.files.iter().find(|wanted| wanted.installed_path() == file.path);
        file.converted_from.is_some()
            || wanted.is_none_or(|wanted| wanted.convert.is_some() || wanted.sha256.is_none())
    };
    let unpinned: Vec<_> = manifest.files.iter().filter(unpinned).map(|file| file.path.as_str()).collect();
    if !unpinned.is_empty() && !trust {
        return Err(Trouble::Untrusted { from: "the bundle".into(), what: unpinned.join(", ") });
    }
    let trusted = !unpinned.is_empty();
    let mut left: BTreeSet<&str> = manifest.files.iter().map(|file| file.path.as_str()).collect();
    for item in items {
        let mut item = item.map_err(unread)?;
        let path = plain_path(&item).map_err(bad)?;
        let listed = manifest.files.iter().find(|file| file.path == path);
        let listed = listed.filter(|file| left.remove(file.path.as_str()));
        let Some(listed) = listed else {
            return Err(bad(format!("it holds {path:?}, which its manifest does not list once")));
        };
        if item.size() != listed.size {
            return Err(bad(format!("{path} has {} bytes instead of {}", item.size(), listed.size)));
        }
        let (to, name) = (stage.place(&path)?, path.clone());
        let took = meter.copy(&name, &mut item, &to).map_err(|trouble| match trouble {
            Trouble::Io { source, .. } if source.raw_os_error().is_none() => bad(broken(&source)),
            other => other,
        })?;
        if took.sha256 != listed.sha256 || took.size != listed.size {
            return Err(bad(format!(
                "{path} is not what its manifest says (sha256 {})",
                took.sha256.short(16)
            )));
        }
    }
    if let Some(missing) = left.first() {
        return Err(bad(format!("{missing} is missing: it was not copied whole")));
    }
    let received = entry.files.iter().map(|wanted| {
        let path = wanted.installed_path();
        let file = manifest.files.iter().find(|file| file.path == path);
        let file = file.ok_or_else(|| bad(format!("{path} is not in its manifest")))?;
        let InstalledFile { sha256, size, converted_from, .. } = file.clone();
        let made = converted_from.is_some();
        let received = Received { path: path.to_owned(), sha256, size, converted_from };
        if !made && wanted.convert.is_none() {
            received.check(wanted, &from.display().to_string())?;
        }
        Ok(received)
    });
    let received = received.collect::<Result<_, Trouble>>()?;
    Ok(Delivery { source: "bundle", origin: from.display().to_string(), received, trusted })
}

fn read_manifest(item: &mut tar::Entry<'_, impl Read>, from: &Path) -> Result<Manifest, Trouble> {
    let bad = |why: String| Trouble::BadBundle { path: from.to_owned(), why };
    if plain_path(item).map_err(bad)? != manifest::FILE || item.size() > MANIFEST_BYTES_MAX {
        return Err(bad("it does not begin with a manifest: it is no bundle of a model".into()));
    }
    let mut text = String::new();
    item.read_to_string(&mut text).map_err(|error| bad(broken(&error)))?;
    Manifest::parse(&text).map_err(|error| bad(format!("its manifest: {error}")))
}

/// The path of a plain file that stays inside; anything else is refused.
fn plain_path(item: &tar::Entry<'_, impl Read>) -> Result<String, String> {
    let path = String::from_utf8(item.path_bytes().into_owned()).map_err(|_| "a path is not UTF-8")?;
    if item.header().entry_type() != EntryType::Regular {
        return Err(format!("{path:?} is a link or a special file"));
    }
    let inside = path == manifest::FILE || super::entry::stays_inside(&path);
    if inside { Ok(path) } else { Err(format!("{path:?} leads out of it")) }
}

fn broken(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "it ends in the middle: it was not copied whole".into(),
        _ => error.to_string(),
    }
}
