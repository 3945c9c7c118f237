//! A user's command that repairs one letter: its JSON on stdin, what to do with it on stdout, within a time.

use std::{
    io::{Read, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use serde::Deserialize;
use serde_json::Value;

use crate::{ops::command::Given, queue::dead::DeadLetter};

/// Longest answer.
const ANSWER_BYTES: u64 = 256 * 1024 * 1024;

/// What the command made of a letter.
#[derive(Debug, PartialEq)]
pub(super) enum Made {
    /// This goes back.
    Given(Given),
    /// It is given up, for this reason.
    Dropped(String),
    /// Nothing; the reason, without what the command printed.
    Failed(String),
}

/// What it prints.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    text: Option<String>,
    meta: Option<Value>,
    #[serde(default)]
    drop: bool,
    reason: Option<String>,
    doc_id: Option<String>,
    chunk_index: Option<u64>,
}

/// Runs the command for a letter; `form` is its JSON.
pub(super) fn made(command: &str, letter: &DeadLetter, form: &Value, time: Duration, dry_run: bool) -> Made {
    match run(command, form, time, dry_run) {
        Ok(output) => understood(letter, &output),
        Err(why) => Made::Failed(why),
    }
}

fn understood(letter: &DeadLetter, output: &[u8]) -> Made {
    let Ok(answer) = serde_json::from_slice::<Answer>(output) else {
        let why = "the command's answer is not {\"text\": …, \"meta\": …} or {\"drop\": true, \"reason\": …}";
        return Made::Failed(why.into());
    };
    match answer {
        Answer { drop: true, text: None, reason: Some(reason), .. } if !reason.trim().is_empty() => {
            Made::Dropped(reason)
        }
        Answer { drop: true, .. } => {
            Made::Failed("to drop a letter the command must give a reason, and no text".into())
        }
        Answer { text: Some(text), meta, doc_id, chunk_index, .. } => Made::Given(Given {
            id: letter.id,
            chunk_id: letter.chunk_id,
            text,
            meta: meta.filter(|meta| !meta.is_null()).map(|meta| meta.to_string()),
            doc_id,
            chunk_index,
        }),
        Answer { text: None, .. } => {
            Made::Failed("the command's answer has neither a text nor a drop".into())
        }
    }
}

/// Gives what it wrote to stdout.
fn run(command: &str, form: &Value, time: Duration, dry_run: bool) -> Result<Vec<u8>, String> {
    let deadline = Instant::now() + time;
    let mut shell = Command::new("sh");
    // A group of its own, so that what the command starts is ended with it.
    shell.args(["-c", command]).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
    if dry_run {
        shell.env("FOREBAY_DRY_RUN", "1");
    }
    let mut child = shell.spawn().map_err(|error| format!("sh cannot be started: {error}"))?;
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err("the command's pipes cannot be made".into());
    };
    let form = form.to_string();
    // Threads of their own, not waited for: what the command started may hold its pipes longer than it lives.
    std::thread::spawn(move || {
        // One that does not read its input to the end is not wrong for that, and does not end us.
        super::pipes_may_close();
        let _ = stdin.write_all(form.as_bytes());
    });
    let (tell, told) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let mut output = Vec::new();
        let read = stdout.take(ANSWER_BYTES + 1).read_to_end(&mut output);
        let _ = tell.send(read.map(|_| output));
    });
    let output = told.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    let ended = output.is_ok().then(|| end(&mut child, deadline)).flatten();
    if ended.is_none() {
        kill(&mut child);
    }
    match (output, ended) {
        (Ok(Ok(output)), _) if output.len() as u64 > ANSWER_BYTES => {
            Err(format!("the command's answer has more than {ANSWER_BYTES} bytes"))
        }
        (Ok(Ok(output)), Some(status)) if status.success() => Ok(output),
        (_, Some(status)) => Err(format!("the command failed: {status}")),
        (_, None) => Err(format!("the command took longer than --repair-timeout-s = {}", time.as_secs())),
    }
}

/// Waits for its end.
fn end(child: &mut Child, deadline: Instant) -> Option<std::process::ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::park_timeout(Duration::from_millis(2)),
            Ok(None) | Err(_) => return None,
        }
    }
}

fn kill(child: &mut Child) {
    if let Ok(group) = libc::pid_t::try_from(child.id()) {
        #[expect(unsafe_code, reason = "std kills one process, not its group")]
        // SAFETY: a plain system call; the group is the child's own, which is not yet waited for.
        unsafe {
            libc::kill(-group, libc::SIGKILL);
        }
    }
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ran(command: &str, seconds: u64) -> Result<String, String> {
        let output = run(command, &json!({ "a": "b".repeat(1 << 20) }), Duration::from_secs(seconds), false);
        output.map(|output| String::from_utf8(output).unwrap())
    }

    #[test]
    fn it_may_read_all_or_nothing_and_its_failure_is_told_without_its_words() {
        assert_eq!(ran("cat | wc -c", 60).unwrap().trim(), (8 + (1 << 20)).to_string());
        assert_eq!(ran("echo seen", 60).unwrap(), "seen\n");
        let why = ran("echo hush; exit 3", 60).unwrap_err();
        assert!(why.contains("exit status: 3") && !why.contains("hush"), "{why}");
        assert!(ran("kill -9 $$", 60).unwrap_err().contains("signal: 9"));
    }

    #[test]
    fn one_that_hangs_is_ended_with_all_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let start = Instant::now();
        let command = format!("sleep 1000 & echo $! > {}; wait", file.display());
        assert!(ran(&command, 1).unwrap_err().contains("--repair-timeout-s = 1"));
        // One that closed its output and goes on, too.
        assert!(ran("exec >&-; sleep 1000", 1).unwrap_err().contains("longer than"));
        assert!(start.elapsed() < Duration::from_secs(60));
        let pid = std::fs::read_to_string(&file).unwrap();
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        while !(state().is_empty() || state().contains(") Z")) {
            assert!(start.elapsed() < Duration::from_secs(60), "{}", state());
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }
}
