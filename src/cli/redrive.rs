//! `dlq redrive`: page by page, at a pace, and with what a user's command makes of letters; waits for the outcome.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    Exit,
    dlq::{Which, chosen, who},
    letters,
    repair_with::{self, Made},
    session::Session,
    totals::Totals,
};
use crate::{
    config::Config,
    embed,
    ops::command::{Command, Given, How},
    queue::{
        dead::{DeadLetter, Payload, State},
        dlq::Filter,
    },
    repair::Repair,
};

pub(super) const EXAMPLES: &str = "Examples:\n  forebay dlq redrive --all --dry-run\n  forebay dlq redrive --class \
too_long --repair truncate --wait\n  forebay dlq redrive --class json_lone_surrogate --repair\n  forebay dlq redrive \
--all --repair-with \"jq '{text: .payload.chunk.text}'\"\n\n--repair without names: fix_surrogates, strip_control and \
nfc, which take away nothing that anybody wrote on purpose. --repair-with runs CMD by `sh -c`, once for each letter: the \
letter as JSON on its stdin, on its stdout {\"text\": …, \"meta\": …}, or {\"drop\": true, \"reason\": …} to give the \
letter up; a record that could not be read also takes \"doc_id\" and \"chunk_index\". FOREBAY_DRY_RUN=1 is set for a dry \
run.";

/// Letters on a page at most; when a command is run for each, what was done is sent more often.
const PAGE: usize = 500;
const PAGE_COMMAND: usize = 50;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    which: Which,
    /// All of them
    #[arg(long)]
    all: bool,
    /// Only say, for each letter, what would happen
    #[arg(long)]
    dry_run: bool,
    /// Quarantined ones too
    #[arg(long)]
    approve: bool,
    /// Repair them: strip_control, fix_surrogates, nfc, utf8_lossy, truncate; without names the first three
    #[arg(long, value_name = "NAMES", num_args = 0..=1, value_delimiter = ',', conflicts_with = "repair_with")]
    repair: Option<Vec<Repair>>,
    /// Repair each with this command: its JSON on stdin, {"text": …} on stdout
    #[arg(long, value_name = "CMD")]
    repair_with: Option<String>,
    /// Seconds the command may take for one letter
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    repair_timeout_s: u64,
    /// Those of another model or settings too: they are embedded as what is set now
    #[arg(long)]
    any_identity: bool,
    /// Letters a second at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// As many letters at most, the oldest
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Wait until the run has embedded them; exit 1 if some still fail
    #[arg(long, conflicts_with = "dry_run")]
    wait: bool,
}

pub(super) fn redrive(config: &Config, arguments: Arguments, json: bool) -> Result<Exit, String> {
    let Arguments {
        which, all, dry_run, approve, repair, repair_with, any_identity, rate, limit, wait, ..
    } = arguments;
    chosen(&which, all, "")?;
    let identity = embed::identity(&config.model)
        .map_err(|why| tracing::info!(%why, "the identity of the settings is not known"))
        .ok()
        .map(|identity| identity.stored());
    let repairs = match repair {
        Some(names) if names.is_empty() => Repair::SAFE.to_vec(),
        names => names.unwrap_or_default(),
    };
    let how = How { approve, repairs, any_identity, identity, named: wait, ..How::default() };
    let filter = which.filter();
    if filter.closed_too || filter.states.iter().any(|state| !state.unresolved()) {
        let next = "to have a discarded record again, `forebay dlq purge` its letter and run its source";
        return Err(format!("letters that were resolved or discarded are not sent back; {next}"));
    }
    let by_id = !filter.ids.is_empty();
    let with = repair_with.map(|command| (command, Duration::from_secs(arguments.repair_timeout_s)));
    let mut work =
        Work { session: Session::new(config)?, all: Totals::default(), filter, how, dry_run, with, limit };
    let pace = Pace { rate, start: Instant::now() };
    while work.page(pace.page())? {
        pace.wait(work.all.n("redriven"));
    }
    let Work { mut session, mut all, .. } = work;
    let staying = all.answer["staying"].as_array().is_some_and(|letters| !letters.is_empty());
    if by_id && all.touched() == 0 && !staying {
        // Ids that mean no letter are a mistake, not a success.
        return Err("no open dead letter has such an id; see `forebay dlq list`".into());
    }
    let sent: Vec<Uuid> = all.take("sent").iter().filter_map(|id| id.as_str()?.parse().ok()).collect();
    if !dry_run && all.n("redriven") > 0 && session.is_own() {
        eprintln!("no run holds the data folder: the next `forebay run` embeds what was redriven");
    }
    let mut exit = Exit::Ok;
    if wait {
        let ended = outcome(&mut session, sent)?;
        if ended["failing"] != 0 {
            exit = Exit::Partial;
        }
        all.add(ended);
    }
    letters::object(&all.answer, json);
    Ok(exit)
}

/// What is being done.
struct Work<'a> {
    session: Session<'a>,
    all: Totals,
    filter: Filter,
    how: How,
    dry_run: bool,
    with: Option<(String, Duration)>,
    limit: Option<u64>,
}

impl Work<'_> {
    /// Does a page of at most so many letters. False when that was the last.
    fn page(&mut self, most: usize) -> Result<bool, String> {
        let left = self.limit.map_or(u64::MAX, |limit| limit.saturating_sub(self.all.touched()));
        let most = most.min(usize::try_from(left).unwrap_or(usize::MAX));
        if most == 0 {
            return Ok(false);
        }
        let next = match self.with.clone() {
            Some((command, time)) => self.with_command(&command, time, most.min(PAGE_COMMAND))?,
            None => {
                let how = How { limit: Some(most), ..self.how.clone() };
                let (filter, dry_run) = (self.filter.clone(), self.dry_run);
                self.ask(&Command::DlqRedrive { filter, dry_run, who: who(), how })?
            }
        };
        self.filter.after = next;
        Ok(next.is_some())
    }

    fn ask(&mut self, command: &Command) -> Result<Option<Uuid>, String> {
        let answer = self.session.ask(command)?;
        Ok(self.all.add(answer))
    }

    /// A page of letters through the user's command.
    fn with_command(&mut self, command: &str, time: Duration, most: usize) -> Result<Option<Uuid>, String> {
        let answer = self.session.ask(&Command::DlqExport { filter: self.filter.clone(), filled: true })?;
        let (mut given, mut drops, mut staying, mut next) = (Vec::new(), Vec::new(), Vec::new(), None);
        for value in answer["letters"].as_array().into_iter().flatten().take(most) {
            let letter: DeadLetter =
                serde_json::from_value(value.clone()).map_err(|_| "a letter is of a form not known here")?;
            next = Some(letter.id);
            let goes =
                letter.state == State::Open || (letter.state == State::Quarantined && self.how.approve);
            // Of a reference whose source is gone there is nothing to mend.
            if !goes || matches!(letter.payload, Payload::Reference { .. }) {
                // It is asked about all the same, so that it is said why it stays.
                given.push(Given { id: letter.id, chunk_id: letter.chunk_id, ..Given::default() });
                continue;
            }
            match repair_with::made(command, &letter, value, time, self.dry_run) {
                Made::Given(made) => given.push(made),
                Made::Dropped(reason) => drops.push((letter.id, reason)),
                Made::Failed(why) => staying.push(json!({
                    "id": letter.id, "class": letter.class, "reason": "command_failed", "why": why,
                })),
            }
        }
        self.all.add(json!({ "dry_run": self.dry_run, "redriven": 0, "discarded": 0, "staying": staying }));
        if !given.is_empty() {
            // Without ids all would be meant.
            let ids = given.iter().map(|given| given.id).collect();
            let how = How { given, ..self.how.clone() };
            let filter = Filter { ids, ..Filter::default() };
            self.ask(&Command::DlqRedrive { filter, dry_run: self.dry_run, who: who(), how })?;
        }
        for (id, reason) in drops {
            let said = json!({ "id": id, "would": "discarded", "why": reason });
            if self.dry_run {
                self.all.add(json!({ "discarded": 1, "letters": [said] }));
                continue;
            }
            let filter = Filter { ids: vec![id], ..Filter::default() };
            self.ask(&Command::DlqDiscard { filter, reason, who: who(), limit: None })?;
        }
        Ok(next)
    }
}

/// Letters a second at most.
struct Pace {
    rate: Option<u32>,
    start: Instant,
}

impl Pace {
    /// Letters on a page: a few pages a second, so that none is a burst.
    fn page(&self) -> usize {
        self.rate.map_or(PAGE, |rate| usize::try_from(rate / 5).unwrap_or(PAGE).clamp(1, PAGE))
    }

    /// Waits until as many may have been sent.
    fn wait(&self, sent: u64) {
        let Some(rate) = self.rate else { return };
        let due = self.start + Duration::from_secs_f64(sent as f64 / f64::from(rate));
        while let Some(left) = due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            std::thread::park_timeout(left);
        }
    }
}

/// Waits until none of them is on its way any more, or no run is there to embed them.
fn outcome(session: &mut Session<'_>, mut waiting: Vec<Uuid>) -> Result<Value, String> {
    let (mut resolved, mut failing) = (0_u64, Vec::new());
    loop {
        let mut still = Vec::new();
        for ids in waiting.chunks(PAGE) {
            let filter = Filter { ids: ids.to_vec(), closed_too: true, ..Filter::default() };
            let answer = session.ask(&Command::DlqList { filter, limit: ids.len() })?;
            for letter in answer.as_array().into_iter().flatten() {
                match letter["state"].as_str() {
                    Some("redriven") => {
                        still.extend(letter["id"].as_str().and_then(|id| id.parse::<Uuid>().ok()));
                    }
                    Some("resolved") => resolved += 1,
                    Some("open" | "quarantined") => {
                        failing.push(json!({
                            "id": letter["id"], "class": letter["class"], "state": letter["state"],
                            "why": letter["message"],
                        }));
                    }
                    // Given up meanwhile.
                    _ => {}
                }
            }
        }
        waiting = still;
        if waiting.is_empty() || session.is_own() {
            let count = failing.len();
            return Ok(json!({
                "resolved": resolved, "failing": count, "waiting": waiting.len(), "failed": failing,
            }));
        }
        std::thread::park_timeout(Duration::from_millis(200));
    }
}
