//! `run` connects to nothing but the configured sink: every call that could, of every thread, as strace saw it.

#[path = "common/mod.rs"]
mod common;

use std::process::{Command, Stdio};

use common::{Home, Running, corpus};

/// A closed port of this machine: whoever asks there is seen and refused.
const NOWHERE: &str = "http://127.0.0.1:9";

/// Calls of the program that concern sockets, one a line; `None` where strace cannot look.
fn calls(home: &Home, arguments: &[&str], code: i32) -> Option<Vec<String>> {
    let (command, trace) = (home.command(arguments), home.at("trace"));
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-s", "200", "-e", "trace=%network", "-o"]).arg(&trace);
    strace.arg(command.get_program()).args(command.get_args());
    strace.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    // A machine on which asking would be easy.
    for name in ["HF_ENDPOINT", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"] {
        strace.env(name, NOWHERE);
    }
    strace.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    strace.current_dir(command.get_current_dir().unwrap());
    strace.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = match strace.spawn() {
        Ok(child) => child,
        Err(error) => {
            println!("skipped: no strace here: {error}");
            return None;
        }
    };
    let ran = Running::of_child(child).wait();
    let seen = std::fs::read_to_string(&trace).unwrap_or_default();
    if ran.stderr.contains("PTRACE") || ran.stderr.contains("Operation not permitted") {
        println!("skipped: strace may not look: {}", ran.stderr.lines().next().unwrap_or_default());
        return None;
    }
    ran.exits(code);
    Some(seen.lines().map(str::to_owned).collect())
}

/// Whether a call goes beyond this process: any family but that of unix, and any unix socket but our own.
fn beyond(call: &str) -> bool {
    let family = call.contains("AF_") && !call.contains("AF_UNIX");
    let asks = ["connect(", "sendto(", "sendmsg(", "sendmmsg("].iter().any(|name| call.contains(name));
    let elsewhere = call.contains("sun_path") && !call.contains("control.sock");
    family || (asks && elsewhere)
}

#[test]
fn c07_a_run_and_the_verbs_beside_it_speak_to_nobody() {
    let home = Home::new();
    home.file("in.jsonl", corpus(200));
    let Some(run) = calls(&home, &["run", "in.jsonl"], 0) else { return };
    let models = std::env::var_os("FOREBAY_TEST_MODELS");
    let folder = models.map(|models| std::path::PathBuf::from(models).join("all-minilm-l6-v2"));
    let mut all = vec![("run", run)];
    let mut verb = |what, arguments: &[&str]| all.push((what, calls(&home, arguments, 0).unwrap()));
    verb("run again", &["run", "in.jsonl"]);
    verb("status", &["status"]);
    verb("verify", &["verify"]);
    verb("search", &["search", "water"]);
    verb("dlq", &["dlq", "list"]);
    verb("check", &["check"]);
    if let Some(folder) = &folder {
        home.forebay(&["model", "pull", "all-MiniLM-L6-v2", "--from", folder.to_str().unwrap()]).exits(0);
        verb("a run with a model", &["run", "in.jsonl", "--model", "all-MiniLM-L6-v2", "--reembed"]);
    }
    for (what, calls) in &all {
        let found: Vec<_> = calls.iter().filter(|call| beyond(call)).collect();
        assert!(found.is_empty(), "{what}: {found:?}");
    }
    // strace was not blind: the run's own socket was seen, and whoever does ask is.
    assert!(
        all[0].1.iter().any(|call| call.contains("bind(") && call.contains("control.sock")),
        "{:?}",
        all[0]
    );
    let pull = calls(&home, &["model", "pull", "bge-small", "--from", "hub"], 2).unwrap();
    assert!(pull.iter().any(|call| beyond(call) && call.contains("connect(")), "{pull:?}");
}
