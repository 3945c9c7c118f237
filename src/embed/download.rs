//! One file over HTTP. Redirects are followed here and not by the client, so that the token goes to the hub alone and
//! every host that is asked is known; what an earlier try left is resumed.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::Path,
    time::Duration,
};

use ureq::{
    Agent, Body,
    http::{Response, Uri, header},
};

use super::{
    fail::{Trouble, scrub},
    stage,
};

/// Redirects at most: the hub uses one or two.
const HOPS_MAX: usize = 8;

/// Bytes of a file whose size nobody has announced at most.
const UNKNOWN_BYTES_MAX: u64 = 16 << 30;

const BLOCK_BYTES: usize = 1 << 16;

/// What is heard while a file comes.
pub(super) enum Heard<'a> {
    /// This host is about to be asked.
    Host(&'a str),
    /// So many bytes of the file are here.
    At(u64),
}

/// What to fetch, and how.
pub(super) struct Order<'a> {
    pub(super) agent: &'a Agent,
    /// Where it is; may hold credentials.
    pub(super) address: &'a str,
    /// The same, for messages.
    pub(super) url: &'a str,
    /// Sent to the host of `address` and to no other.
    pub(super) token: Option<&'a str>,
    /// Grows to the whole file; what is in it already is resumed.
    pub(super) part: &'a Path,
    /// The pinned size.
    pub(super) size: Option<u64>,
    /// Silence that counts as no answer.
    pub(super) stall: Duration,
}

/// Fetches the file into `order.part`. Gives the commit that the server says it is of, if it does.
pub(super) fn fetch(order: &Order<'_>, heard: &mut dyn FnMut(Heard<'_>)) -> Result<Option<String>, Trouble> {
    let mut have = length(order.part);
    if order.size.is_some_and(|size| have > size) {
        stage::remove(order.part).map_err(Trouble::io("remove", order.part))?;
        have = 0;
    }
    if have > 0 && order.size == Some(have) {
        return Ok(None);
    }
    let mut answer = ask(order, have, heard)?;
    if answer.response.status() == 416 && have > 0 {
        have = 0;
        answer = ask(order, have, heard)?;
    }
    let from = match answer.response.status().as_u16() {
        200 => 0,
        206 => have,
        status => {
            let (url, token_sent) = (order.url.to_owned(), order.token.is_some());
            return Err(Trouble::Status { url, status, token_sent });
        }
    };
    let total = announced(order, &answer, from)?;
    if let (Some(got), Some(want)) = (total, order.size)
        && got != want
    {
        return Err(wrong_size(order, got, want));
    }
    fill(order, answer.response.into_body(), from, total.or(order.size), heard)?;
    Ok(answer.commit)
}

/// What came at the end of the redirects.
struct Answer {
    response: Response<Body>,
    commit: Option<String>,
    /// Whether something on the way spoke as a hub or a file store does.
    named: bool,
}

/// Asks for the file from byte `have` on.
fn ask(order: &Order<'_>, have: u64, heard: &mut dyn FnMut(Heard<'_>)) -> Result<Answer, Trouble> {
    let home = parse(order, order.address)?;
    let (mut at, mut commit, mut named) = (home.clone(), None, false);
    for _ in 0..HOPS_MAX {
        heard(Heard::Host(at.authority().map_or("", host_of)));
        let mut request = order.agent.get(&at);
        if have > 0 {
            request = request.header(header::RANGE, format!("bytes={have}-"));
        }
        if let Some(token) = order.token.filter(|_| origin(&at) == origin(&home)) {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let response = request.call().map_err(|error| unreachable(order, &error))?;
        let text = |name: &str| Some(response.headers().get(name)?.to_str().ok()?.trim().to_owned());
        commit = commit.or_else(|| text("x-repo-commit"));
        let etag = text("x-linked-etag").or_else(|| text("etag"));
        named |= commit.is_some() || etag.is_some_and(|etag| !etag.trim_matches('"').is_empty());
        if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
            return Ok(Answer { response, commit, named });
        }
        let next = text("location").and_then(|location| redirected(&at, &location));
        let next = next.ok_or_else(|| not_a_hub(order, "it redirects to nowhere"))?;
        at = parse(order, &next)?;
    }
    Err(not_a_hub(order, "it redirects in a circle"))
}

/// The size of the whole file, if the answer says it; an answer that is no file's is refused.
fn announced(order: &Order<'_>, answer: &Answer, from: u64) -> Result<Option<u64>, Trouble> {
    if !answer.named {
        return Err(not_a_hub(order, "its answer names neither a commit nor a file"));
    }
    let text = |name| answer.response.headers().get(name).and_then(|value| value.to_str().ok());
    if answer.response.status() == 200 {
        return Ok(text(header::CONTENT_LENGTH).and_then(|length| length.trim().parse().ok()));
    }
    let range = text(header::CONTENT_RANGE).and_then(|range| range.trim().strip_prefix("bytes "));
    let Some((start, total)) = range.and_then(|range| {
        let (part, total) = range.split_once('/')?;
        Some((part.split_once('-')?.0.parse::<u64>().ok()?, total.parse().ok()))
    }) else {
        return Err(not_a_hub(order, "it sends a part and does not say which"));
    };
    if start != from {
        return Err(not_a_hub(order, "it sends another part than was asked for"));
    }
    Ok(total)
}

/// Appends the body to the part from byte `from` on; never more than `total`.
fn fill(
    order: &Order<'_>,
    body: Body,
    from: u64,
    total: Option<u64>,
    heard: &mut dyn FnMut(Heard<'_>),
) -> Result<(), Trouble> {
    let local = || Trouble::io("fill", order.part);
    let mut part = File::options().create(true).append(true).open(order.part).map_err(local())?;
    part.set_len(from).map_err(local())?;
    let (mut reader, mut block, mut have) = (body.into_reader(), vec![0; BLOCK_BYTES], from);
    let limit = total.unwrap_or(UNKNOWN_BYTES_MAX);
    heard(Heard::At(have));
    loop {
        let n = match reader.read(&mut block) {
            Ok(0) => break,
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(unreachable(order, &ureq::Error::from(error))),
        };
        have += n as u64;
        if have > limit {
            return Err(wrong_size(order, have, limit));
        }
        part.write_all(&block[..n]).map_err(local())?;
        heard(Heard::At(have));
    }
    match total {
        Some(size) if have < size => Err(Trouble::Cut { url: order.url.to_owned(), got: have, size }),
        _ => Ok(()),
    }
}

/// Bytes of a file; 0 when it is not there.
pub(super) fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |meta| meta.len())
}

fn parse(order: &Order<'_>, address: &str) -> Result<Uri, Trouble> {
    let uri = address.parse::<Uri>().ok();
    let usable = |uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some();
    uri.filter(usable).ok_or_else(|| not_a_hub(order, "it names an address that is none"))
}

/// Scheme, host and port: what a token belongs to.
fn origin(uri: &Uri) -> (Option<&str>, Option<String>, Option<u16>) {
    let default = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    let host = uri.host().map(str::to_ascii_lowercase);
    (uri.scheme_str(), host, uri.port_u16().or(Some(default)))
}

/// Host and port, without credentials.
fn host_of(authority: &ureq::http::uri::Authority) -> &str {
    authority.as_str().rsplit('@').next().unwrap_or_default()
}

/// Where a `Location` leads from `at`.
fn redirected(at: &Uri, location: &str) -> Option<String> {
    let (scheme, authority) = (at.scheme_str()?, at.authority()?);
    if location.starts_with("http://") || location.starts_with("https://") {
        return Some(location.to_owned());
    }
    if location.starts_with("//") {
        return Some(format!("{scheme}:{location}"));
    }
    if location.starts_with('/') {
        return Some(format!("{scheme}://{authority}{location}"));
    }
    let folder = at.path().rsplit_once('/').map_or("", |(folder, _)| folder);
    (!location.is_empty()).then(|| format!("{scheme}://{authority}{folder}/{location}"))
}

fn not_a_hub(order: &Order<'_>, why: &str) -> Trouble {
    Trouble::NotAHub { url: order.url.to_owned(), why: why.to_owned() }
}

fn wrong_size(order: &Order<'_>, got: u64, want: u64) -> Trouble {
    let file = order.url.rsplit('/').next().unwrap_or_default().to_owned();
    Trouble::WrongSize { file, origin: order.url.to_owned(), got, want }
}

fn unreachable(order: &Order<'_>, error: &ureq::Error) -> Trouble {
    let silent = match error {
        ureq::Error::Timeout(_) => true,
        ureq::Error::Io(error) => error.kind() == io::ErrorKind::TimedOut,
        _ => false,
    };
    let why = if silent {
        format!("nothing came for {} s", order.stall.as_secs_f32())
    } else {
        scrub(&error.to_string())
    };
    Trouble::Unreachable { url: order.url.to_owned(), why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_belongs_to_scheme_host_and_port() {
        let same = |a: &str, b: &str| origin(&a.parse().unwrap()) == origin(&b.parse().unwrap());
        assert!(same("https://Hub.example/a", "https://hub.example:443/b?c"));
        for other in ["http://hub.example/", "https://hub.example:8443/", "https://hub.example.evil/"] {
            assert!(!same("https://hub.example/a", other), "{other}");
        }
    }

    #[test]
    fn a_location_is_read_from_where_it_was_met() {
        let from = |location: &str| redirected(&"https://me:pw@h:8/a/b/c?q=1".parse().unwrap(), location);
        assert_eq!(from("http://s/x?y").as_deref(), Some("http://s/x?y"));
        assert_eq!(from("//s/x").as_deref(), Some("https://s/x"));
        assert_eq!(from("/x").as_deref(), Some("https://me:pw@h:8/x"));
        assert_eq!(from("x").as_deref(), Some("https://me:pw@h:8/a/b/x"));
        assert_eq!(from(""), None);
    }
}
