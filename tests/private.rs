//! Only the owner can read the data folder and speak to the socket, whatever the mask of new files and the folder's mode
//! were before.

#[path = "common/mod.rs"]
mod common;

use std::{
    fs::{self, Permissions},
    os::unix::{
        fs::{FileTypeExt, PermissionsExt},
        process::CommandExt,
    },
    path::Path,
    process::{Command, Output, Stdio},
};

use common::{Home, Running, corpus, record};

const NOBODY: u32 = 65_534;

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

/// The command with a mask that forbids nobody anything.
fn unmasked(home: &Home, arguments: &[&str]) -> Command {
    let command = home.command(arguments);
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"umask 0; exec "$0" "$@""#]).arg(command.get_program()).args(command.get_args());
    shell.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.current_dir(command.get_current_dir().unwrap());
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    shell
}

/// Everything below a folder must be its owner's alone; gives how many files, and whether a socket was among them.
fn all_private(folder: &Path) -> (usize, bool) {
    assert_eq!(mode(folder), 0o700, "{}", folder.display());
    let (mut files, mut socket) = (0, false);
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            let (more, sockets) = all_private(&path);
            (files, socket) = (files + more, socket | sockets);
        } else if kind.is_socket() {
            assert_eq!(mode(&path) & 0o077, 0, "{}", path.display());
            socket = true;
        } else {
            assert_eq!(mode(&path), 0o600, "{}", path.display());
            files += 1;
        }
    }
    (files, socket)
}

/// A run that has written and goes on, with a lock that it waits for.
fn running(home: &Home) -> (Running, rusqlite::Connection) {
    let input = home.file("in.jsonl", corpus(3_000) + "{\"id\":\"bad\"}\n");
    let mut run =
        Running::of(unmasked(home, &["run", "--json", &input, "--set", "pipeline.batch_chunks=10"]));
    run.has_written(home, 50);
    let lock = home.lock_sink();
    common::poll("the socket is there", || home.data("control.sock").exists().then_some(()));
    (run, lock)
}

#[test]
fn all_that_is_made_is_the_owners_alone_whatever_the_mask() {
    let home = Home::new();
    let (run, lock) = running(&home);
    let (files, socket) = all_private(&home.data(""));
    assert!(files > 8 && socket, "{files} files, a socket: {socket}");
    drop(lock);
    run.wait().exits(1);
    let mut fed = unmasked(&home, &["enqueue", "-", "--json"]);
    home.file("standard-input", record("piped", "from a pipe"));
    fed.stdin(fs::File::open(home.at("standard-input")).unwrap());
    Running::of(fed).wait().exits(0);
    for arguments in [
        &["dlq", "export", "letters.jsonl"][..],
        &["dlq", "export", "--sqlite", "letters.db"],
        &["dlq", "discard", "--all", "--reason", "seen"],
        &["dlq", "purge", "--discarded"],
        &["verify"],
        &["rebuild"],
    ] {
        Running::of(unmasked(&home, arguments)).wait().exits(0);
        all_private(&home.data(""));
    }
    assert!(home.data("spool").read_dir().unwrap().count() > 0, "what came by a pipe was looked at too");
    for name in ["letters.jsonl", "letters.db"] {
        assert_eq!(mode(&home.at(name)), 0o600, "{name} holds texts");
    }
}

#[test]
fn a_folder_that_was_open_to_others_is_closed_and_one_with_other_files_is_told() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(3));
    let wide = |home: &Home| fs::set_permissions(home.data(""), Permissions::from_mode(0o777)).unwrap();
    fs::create_dir(home.data("")).unwrap();
    wide(&home);
    home.run(&[&input], 0);
    assert_eq!(mode(&home.data("")), 0o700);
    wide(&home);
    home.forebay(&["run", "-v"]).exits(0).says(&["the data folder was open to others"]);
    assert_eq!(mode(&home.data("")), 0o700);

    fs::write(home.data("thesis.txt"), "not ours").unwrap();
    wide(&home);
    home.forebay(&["run"]).exits(0).says(&["others may look into the data folder"]);
    assert_eq!(mode(&home.data("")), 0o777, "it is not ours to close");
    assert_eq!(mode(&home.data("queue")), 0o700, "but what we made is closed");
}

fn as_nobody(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).uid(NOBODY).gid(NOBODY).current_dir("/").output().unwrap()
}

#[test]
fn another_user_can_neither_read_nor_speak() {
    let root =
        fs::read_to_string("/proc/self/status").unwrap().lines().any(|line| line.starts_with("Uid:\t0\t"));
    if !root {
        println!("skipped: being another user needs root");
        return;
    }
    let speak = "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n\
                 s.sendall(b'\"Status\"\\n')\nprint(s.recv(9))";
    if !Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success()) {
        println!("skipped: there is no python3 here");
        return;
    }
    let home = Home::new();
    let (run, lock) = running(&home);
    // Everything on the way is open, so that what is refused is refused by the folder.
    fs::set_permissions(home.at(""), Permissions::from_mode(0o755)).unwrap();
    let (socket, ledger) = (home.data("control.sock"), home.data("ledger.db"));
    let paths =
        [&socket, &ledger, &home.data(""), &home.at("in.jsonl")].map(|path| path.display().to_string());
    let [socket, ledger, folder, input] = &paths;
    assert!(as_nobody("cat", &[input]).status.success(), "the way is open");
    let refused = || {
        assert!(!as_nobody("cat", &[ledger]).status.success());
        let said = as_nobody("python3", &["-c", speak, socket]);
        assert!(String::from_utf8_lossy(&said.stderr).contains("PermissionError"), "{said:?}");
    };
    refused();
    assert!(!as_nobody("ls", &[folder]).status.success());
    // Each file by itself, too: somebody may have opened the folder.
    fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    assert!(as_nobody("ls", &[folder]).status.success());
    refused();
    let owner = Command::new("python3").args(["-c", speak, socket]).output().unwrap();
    assert!(owner.status.success(), "the owner is heard: {owner:?}");
    drop(lock);
    run.wait().exits(1);
}
