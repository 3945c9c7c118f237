//! The hub as it should be: what is pulled, what is asked, who sees the token.

use std::{
    fs,
    process::{Command, Stdio},
    sync::Arc,
};

use forebay::embed::{
    cache,
    hub::{HubOptions, Token},
    pull::PullFrom,
    verify::{FileState, verify},
};

use crate::{
    fake_hub::{FakeHub, Reply, headers, ranged, serve},
    scene::{Pinned, REVISION, Scene, entry, entry_of, files},
};

const CANARY: &str = "hf_canary_8b1f";

#[test]
fn a_pull_puts_every_file_in_place_and_the_next_asks_nobody() {
    let hub = FakeHub::serving(files(), REVISION);
    let scene = Scene::at(&hub);
    let pulled = scene.pull(&entry(), &PullFrom::Auto).unwrap();
    assert!(!pulled.already && pulled.hub_failure.is_none());
    let manifest = &pulled.installed.manifest;
    assert_eq!((manifest.source.as_str(), manifest.trusted), ("hub", false));
    assert_eq!(manifest.origin, format!("{}/someone/tiny@{REVISION}", hub.url));
    scene.holds(&files());

    let asked = hub.log().len();
    let again = scene.pull(&entry(), &PullFrom::Auto).unwrap();
    assert!(again.already);
    assert_eq!((again.installed, hub.log().len()), (pulled.installed, asked));
}

#[test]
fn progress_grows_to_the_size_of_all_files() {
    let hub = FakeHub::serving(files(), REVISION);
    let scene = Scene::at(&hub);
    scene.pull(&entry(), &PullFrom::Hub).unwrap();
    let heard = scene.heard.borrow();
    let total = files().values().map(|bytes| bytes.len() as u64).sum();
    assert!(heard.windows(2).all(|pair| pair[0].0 <= pair[1].0), "{heard:?}");
    assert_eq!(heard.last(), Some(&(total, total)));
}

#[test]
fn verify_hashes_every_file_and_finds_one_changed_bit() {
    let hub = FakeHub::serving(files(), REVISION);
    let scene = Scene::at(&hub);
    let dir = &scene.options.dir;
    assert_eq!(verify(dir, &entry(), &|_, _| ()).unwrap(), None);
    let installed = scene.pull(&entry(), &PullFrom::Hub).unwrap().installed;
    let report = verify(dir, &entry(), &|_, _| ()).unwrap().unwrap();
    assert!(report.is_sound() && report.files.iter().all(|file| file.state == FileState::Pinned), "{report}");

    let meta = fs::metadata(installed.weights()).unwrap();
    let mut bytes = fs::read(installed.weights()).unwrap();
    bytes[1234] ^= 1;
    fs::write(installed.weights(), bytes).unwrap();
    // A change that hides behind size and time is seen by `verify` alone.
    let file = fs::File::options().write(true).open(installed.weights()).unwrap();
    file.set_modified(meta.modified().unwrap()).unwrap();
    assert!(cache::installed(dir, &entry()).unwrap().is_some());
    let report = verify(dir, &entry(), &|_, _| ()).unwrap().unwrap();
    assert!(!report.is_sound());
    assert!(report.to_string().contains("CHANGED  model.safetensors"), "{report}");
    assert!(report.to_string().contains("forebay model pull Tiny-Model --force"), "{report}");
}

#[test]
fn large_files_come_from_where_the_hub_redirects_to_and_no_token_goes_there() {
    let store = Arc::new(FakeHub::new(|request| ranged(&files()["model.safetensors"], "", request)));
    let place = Arc::clone(&store);
    let hub = FakeHub::with_fault(files(), REVISION, move |request| {
        (request.file == "model.safetensors").then(|| {
            let mut headers = vec![("Location", format!("{}/blob/7?X-Signature=s", place.url))];
            headers.push(("X-Linked-Etag", "\"7f7f\"".to_owned()));
            headers.push(("X-Repo-Commit", REVISION.to_owned()));
            Reply::Whole(302, headers, vec![])
        })
    });
    let mut scene = Scene::at(&hub);
    scene.options.hub.token = Token::new(CANARY);
    scene.pull(&entry(), &PullFrom::Hub).unwrap();
    scene.holds(&files());
    assert_eq!(store.log().len(), 1, "the store was asked for the file");
    let all = store.log().into_iter().chain(hub.log());
    assert_eq!(all.filter(|request| request.authorization.is_some()).count(), 0);
}

#[test]
fn a_private_repository_gets_the_token_as_a_header_and_nothing_else_does() {
    let hub = FakeHub::with_fault(files(), REVISION, |request| {
        let bearer = request.authorization.as_deref() == Some("Bearer hf_canary_8b1f");
        (!bearer).then(|| Reply::Whole(401, vec![], b"who are you".to_vec()))
    });
    let mut scene = Scene::at(&hub);
    let message = scene.fails(&entry(), &PullFrom::Hub);
    assert!(message.contains("answered 401") && message.contains("set HF_TOKEN"), "{message}");

    scene.options.hub.token = Token::new(CANARY);
    let pulled = scene.pull(&entry(), &PullFrom::Hub).unwrap();
    scene.holds(&files());
    let written = fs::read_to_string(pulled.installed.folder.join("manifest.toml")).unwrap();
    let printed = format!("{written} {:?} {:?}", pulled, scene.options);
    assert!(!printed.contains(CANARY), "{printed}");
    assert!(hub.log().iter().all(|request| !request.path.contains(CANARY)));
}

#[test]
fn a_refused_token_is_said_to_be_refused_and_never_printed() {
    let hub = FakeHub::new(|_| Reply::Whole(403, vec![], b"hf_canary_8b1f may not".to_vec()));
    let mut scene = Scene::at(&hub);
    scene.options.hub.token = Token::new(CANARY);
    scene.options.hub.endpoint = Some(hub.url.replace("http://", &format!("http://me:{CANARY}@")));
    let error = scene.pull(&entry(), &PullFrom::Hub).unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("HF_TOKEN was sent") && message.contains("may read the repository"),
        "{message}"
    );
    assert!(!format!("{error} {error:?}").contains(CANARY), "{error:?}");
}

#[test]
fn what_is_not_pinned_is_taken_only_with_trust_and_then_recorded() {
    let hub = FakeHub::serving(files(), REVISION);
    let mut scene = Scene::at(&hub);
    let entry = entry_of(&files(), Pinned::AllButTokenizer, "");
    let message = scene.fails(&entry, &PullFrom::Hub);
    assert!(message.contains("no digest is known here for tokenizer.json"), "{message}");
    assert!(message.contains("forebay model pull Tiny-Model --trust"), "{message}");
    assert_eq!(hub.log().len(), 0, "nothing is downloaded before trust is settled");

    scene.options.trust = true;
    let manifest = scene.pull(&entry, &PullFrom::Hub).unwrap().installed.manifest;
    assert!(manifest.trusted);
    let report = verify(&scene.options.dir, &entry, &|_, _| ()).unwrap().unwrap();
    let tokenizer = report.files.iter().find(|file| file.path == "tokenizer.json").unwrap();
    assert!(report.is_sound() && tokenizer.state == FileState::Trusted, "{report}");
}

#[test]
fn trust_does_not_cover_another_revision_or_a_digest_that_is_known() {
    let entry = entry_of(&files(), Pinned::AllButTokenizer, "");
    let hub = FakeHub::serving(files(), "ffffffffffffffffffffffffffffffffffffffff");
    let mut scene = Scene::at(&hub);
    scene.options.trust = true;
    assert!(scene.fails(&entry, &PullFrom::Hub).contains("is of revision ffffffff"));

    let mut wrong = files();
    wrong.get_mut("model.safetensors").unwrap()[0] ^= 1;
    let hub = FakeHub::serving(wrong, REVISION);
    scene.options.hub.endpoint = Some(hub.url.clone());
    let message = scene.fails(&entry, &PullFrom::Hub);
    assert!(message.contains("is not the pinned file"), "{message}");
}

#[test]
fn offline_asks_nobody() {
    let hub = FakeHub::serving(files(), REVISION);
    let mut scene = Scene::at(&hub);
    scene.options.hub.offline = true;
    let message = scene.fails(&entry(), &PullFrom::Auto);
    assert!(message.contains("HF_HUB_OFFLINE is set") && message.contains("--from PATH"), "{message}");
    assert_eq!(hub.log().len(), 0);
}

#[test]
fn a_mirror_may_say_another_commit_when_the_digests_vouch_for_the_bytes() {
    let hub = FakeHub::with_fault(files(), REVISION, |request| {
        let mut reply = serve(&files(), "main", request);
        if let Reply::Whole(_, all, _) = &mut reply {
            all.extend(headers(b"", "mirror").into_iter().filter(|(name, _)| *name == "Server"));
        }
        Some(reply)
    });
    let scene = Scene::at(&hub);
    scene.pull(&entry(), &PullFrom::Hub).unwrap();
    scene.holds(&files());
}

/// Runs in a process of its own, started by the next test with the variables set.
#[test]
#[ignore = "run by the_environment_reaches_the_hub_and_the_proxy"]
fn child_pull_with_the_environment() {
    let scene = Scene::new();
    let mut options = scene.options.clone();
    if let Some(dir) = std::env::var_os("FOREBAY_TEST_DIR") {
        options.dir = dir.into();
    }
    options.hub = HubOptions { tries: 1, ..HubOptions::from_env() };
    match forebay::embed::pull::pull(&entry(), &PullFrom::Hub, &options, &|_| ()) {
        Ok(pulled) => eprintln!("pulled from {}", pulled.installed.manifest.origin),
        Err(error) => eprintln!("failed: {error}"),
    }
}

/// Settings that would lead around the fake hub.
const PROXIES: [&str; 8] = [
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
    "NO_PROXY",
    "no_proxy",
];

/// The command that runs the test above.
pub(crate) fn child_pull(vars: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "--nocapture", "from_hub::child_pull_with_the_environment"]);
    for name in PROXIES {
        command.env_remove(name);
    }
    command.envs(vars.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn child(vars: &[(&str, &str)]) -> String {
    let output = child_pull(vars).output().unwrap();
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_environment_reaches_the_hub_and_the_proxy() {
    let hub = FakeHub::serving(files(), REVISION);
    let said = child(&[("HF_ENDPOINT", &hub.url)]);
    assert!(said.contains(&format!("pulled from {}/someone/tiny", hub.url)), "{said}");

    let asked = hub.log().len();
    let said = child(&[("HF_ENDPOINT", &hub.url), ("HF_HUB_OFFLINE", "1"), ("HF_TOKEN", CANARY)]);
    assert!(said.contains("HF_HUB_OFFLINE is set") && !said.contains(CANARY), "{said}");
    assert_eq!(hub.log().len(), asked);

    let proxy = FakeHub::new(|_| Reply::Whole(502, vec![], vec![]));
    let said =
        child(&[("HF_ENDPOINT", "http://hub.invalid"), ("ALL_PROXY", &proxy.url), ("HF_TOKEN", CANARY)]);
    assert!(said.contains("failed: ") && !said.contains(CANARY), "{said}");
    let heard = proxy.log();
    assert!(heard.iter().any(|request| request.path.contains("hub.invalid")), "{heard:?}: {said}");
}
