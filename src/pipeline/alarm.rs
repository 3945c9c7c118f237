//! Carries alerts out: a line in the log, a metric, and the user's command, one at a time on a thread of its own.

use std::{
    collections::HashSet,
    io::Write as _,
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use serde_json::json;

use super::alert::{Alert, Alerts, Moment, Settings};
use crate::{
    error::Class,
    queue::{Queue, QueueError, dead::State, now_ms},
};

/// A command that takes longer is killed.
const COMMAND_LIMIT: Duration = Duration::from_secs(30);
/// Commands that may wait: one for every class there is would.
const WAITING: usize = 64;
/// How often the age of the oldest letter is looked at.
pub const LOOK_EVERY: Duration = Duration::from_secs(3_600);

/// See the module.
#[derive(Debug)]
pub struct Alarm {
    settings: Settings,
    run: String,
    alerts: Alerts,
    command: Option<mpsc::SyncSender<String>>,
    ended: Option<mpsc::Receiver<()>>,
}

impl Alarm {
    /// One for a run. Without a command there is no thread.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn new(settings: Settings, run: &str) -> std::io::Result<Self> {
        let (mut command, mut ended) = (None, None);
        if !settings.command.is_empty() {
            let (send, jobs) = mpsc::sync_channel(WAITING);
            let (end, told) = mpsc::sync_channel(1);
            let line = settings.command.clone();
            std::thread::Builder::new().name("forebay-alert".into()).spawn(move || {
                jobs.into_iter().for_each(|event: String| call(&line, &event));
                // Nobody waits any more when the limit was over.
                let _ = end.send(());
            })?;
            (command, ended) = (Some(send), Some(told));
        }
        Ok(Self { settings, run: run.to_owned(), alerts: Alerts::default(), command, ended })
    }

    /// Tells what a change of the DLQ gives cause for; `before` is how it was.
    pub fn changed(&mut self, queue: &Queue, before: &Moment) {
        let after = moment(queue);
        self.tell(before, &after, queue);
    }

    /// Tells what the DLQ gives cause for as it lies there.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn look(&mut self, queue: &Queue) -> Result<(), QueueError> {
        let mut now = moment(queue);
        now.oldest = oldest_at(queue)?.map(|at| age(&at));
        let before = now.clone();
        self.tell(&before, &now, queue);
        Ok(())
    }

    fn tell(&mut self, before: &Moment, after: &Moment, queue: &Queue) {
        for (alert, class) in self.alerts.look(&self.settings, before, after) {
            let class_word = class.map(Class::as_str);
            let remedy = class.map(Class::remedy);
            tracing::warn!(
                alert = alert.as_str(),
                class = class_word,
                open = after.open,
                remedy,
                "{}",
                words(alert)
            );
            metrics::counter!("forebay_alerts_total", "alert" => alert.as_str()).increment(1);
            let Some(command) = &self.command else { continue };
            let event = json!({
                "alert": alert, "class": class, "open": after.open, "quarantined": after.quarantined,
                "oldest_at": oldest_at(queue).ok().flatten(), "run": self.run, "remedy": remedy,
            });
            if command.try_send(event.to_string()).is_err() {
                tracing::warn!("dlq.alert_command is not called: too many calls wait already");
            }
        }
    }

    /// Lets commands that are out come to their end, within their limit: the process may be about to end.
    pub fn finish(self) {
        drop(self.command);
        if let Some(ended) = self.ended
            && ended.recv_timeout(COMMAND_LIMIT + Duration::from_secs(1)).is_err()
        {
            tracing::warn!("dlq.alert_command was not called for every alert: the run has ended");
        }
    }
}

/// How the DLQ is, but for its age.
pub fn moment(queue: &Queue) -> Moment {
    let counts = queue.letter_counts();
    let classes: HashSet<Class> = counts.by_class().into_keys().collect();
    Moment {
        classes,
        open: counts.sum(|_, state| matches!(state, State::Open | State::Quarantined)),
        quarantined: counts.sum(|_, state| state == State::Quarantined),
        oldest: None,
    }
}

fn oldest_at(queue: &Queue) -> Result<Option<String>, QueueError> {
    Ok(queue.letter_stats()?.into_iter().map(|class| class.oldest_at).min())
}

/// Nothing when the clock was set back, or the text is no time.
fn age(at: &str) -> Duration {
    let ms = at.parse::<jiff::Timestamp>().ok().and_then(|at| u64::try_from(at.as_millisecond()).ok());
    Duration::from_millis(ms.map_or(0, |ms| now_ms().saturating_sub(ms)))
}

const fn words(alert: Alert) -> &'static str {
    match alert {
        Alert::FirstOfClass => "the first open dead letter of this class; see `forebay dlq stats`",
        Alert::FirstQuarantine => "a dead letter was quarantined; see `forebay dlq list --state quarantined`",
        Alert::Depth => "the DLQ is deeper than dlq.alert_depth; see `forebay dlq stats`",
        Alert::Age => "the oldest open dead letter is older than dlq.alert_age_h; see `forebay dlq stats`",
    }
}

/// Calls the command once; what goes wrong is in the log, without what the command wrote.
fn call(line: &str, event: &str) {
    match spawn(line, event).and_then(|mut child| wait(&mut child, COMMAND_LIMIT)) {
        Ok(Some(status)) if status.success() => {}
        Ok(Some(status)) => tracing::warn!(%status, "dlq.alert_command failed"),
        Ok(None) => tracing::warn!(
            seconds = COMMAND_LIMIT.as_secs(),
            "dlq.alert_command was killed: it took too long"
        ),
        Err(error) => tracing::warn!(%error, "dlq.alert_command could not be called"),
    }
}

fn spawn(line: &str, event: &str) -> std::io::Result<Child> {
    let mut child = Command::new("sh")
        .args(["-c", line])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // A signal for the run is not for the command, and what it starts dies with it.
        .process_group(0)
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // It fits into the pipe, so this never waits; a command need not read it.
        let _ = stdin.write_all(event.as_bytes()).and_then(|()| stdin.write_all(b"\n"));
    }
    Ok(child)
}

/// `None`: it took too long, and it and all that it started were killed.
fn wait(child: &mut Child, limit: Duration) -> std::io::Result<Option<std::process::ExitStatus>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() >= limit {
            kill_group(child.id());
            child.wait()?;
            return Ok(None);
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

#[expect(unsafe_code, reason = "std has no call for a process group")]
fn kill_group(leader: u32) {
    let Ok(leader) = libc::pid_t::try_from(leader) else { return };
    // SAFETY: a plain system call. The leader is our child and not yet waited for, so its number is still its own.
    unsafe { libc::kill(-leader, libc::SIGKILL) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_given_the_event_and_is_killed_with_all_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let (out, late) = (dir.path().join("out"), dir.path().join("late"));
        let mut child = spawn(&format!("cat > {}", out.display()), "{\"alert\":\"depth\"}").unwrap();
        assert!(wait(&mut child, COMMAND_LIMIT).unwrap().unwrap().success());
        assert_eq!(std::fs::read_to_string(&out).unwrap(), "{\"alert\":\"depth\"}\n");
        let line = format!("(sleep 1; touch {}) & wait", late.display());
        let start = Instant::now();
        let mut child = spawn(&line, "{}").unwrap();
        assert_eq!(wait(&mut child, Duration::from_millis(50)).unwrap(), None);
        assert!(start.elapsed() < Duration::from_millis(900));
        std::thread::park_timeout(Duration::from_millis(1_200));
        assert!(!late.exists(), "what it started went on");
    }

    #[test]
    fn an_age_is_never_negative_and_never_a_panic() {
        assert_eq!(age("2999-01-01T00:00:00Z"), Duration::ZERO);
        assert_eq!(age("nonsense"), Duration::ZERO);
        assert!(age("2020-01-01T00:00:00Z") > Duration::from_secs(365 * 86_400));
    }
}
