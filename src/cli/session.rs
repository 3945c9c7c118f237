//! The verbs that work beside a run: carried out by the process that holds the folder, or here. One that has several
//! steps asks one process, as long as that lives.

use std::{
    cell::OnceCell,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::setup;
use crate::{
    config::Config,
    embed::{self, Embed},
    folder::{Folder, FolderError},
    ops::{
        Context,
        command::{Command, execute_with},
        control,
        forget::{self, Reading},
        verify::same_sink,
    },
};

/// See the module.
pub(super) struct Session<'a> {
    config: &'a Config,
    folder: Option<Folder>,
    /// Loaded when a letter cannot be looked at without it.
    model: OnceCell<Option<Arc<dyn Embed>>>,
}

impl<'a> Session<'a> {
    /// Refuses to make a data folder.
    pub(super) fn new(config: &'a Config) -> Result<Self, String> {
        setup::exists(&config.data.dir)?;
        Ok(Self { config, folder: None, model: OnceCell::new() })
    }

    /// Carries a verb out.
    pub(super) fn ask(&mut self, command: &Command) -> Result<Value, String> {
        let start = Instant::now();
        while self.folder.is_none() {
            if let Some(answer) = control::ask(&self.config.data.dir, command) {
                return answer;
            }
            match setup::open_folder(self.config) {
                Ok(folder) => self.folder = Some(folder),
                // Its holder is starting or ending: the socket comes, or the lock goes.
                Err(FolderError::Held { .. }) if start.elapsed() < Duration::from_secs(5) => {
                    std::thread::park_timeout(Duration::from_millis(100));
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        let folder = self.folder.as_ref().ok_or("the data folder is not open")?;
        let (source, line_bytes) = (&self.config.source, self.config.limits.line_bytes);
        if let Command::Forget { docs, who } = command {
            let sink = setup::sink(self.config)?;
            let reading = Reading { source, line_bytes };
            // One cut short leaves rows in one store only.
            if !forget::finish(folder, sink.as_ref(), reading)? {
                same_sink(folder, sink.as_ref())?;
            }
            let forgotten = forget::forget(folder, sink.as_ref(), reading, docs, who)?;
            return serde_json::to_value(forgotten).map_err(|error| error.to_string());
        }
        let model = || {
            let load =
                || embed::open(&self.config.model).map_err(|why| tracing::info!(%why, "no model")).ok();
            self.model.get_or_init(load).clone()
        };
        execute_with(Context { folder, line: None, source, line_bytes }, command, &model)
    }

    /// Whether verbs are carried out here, because no other process holds the folder.
    pub(super) fn is_own(&self) -> bool {
        self.folder.is_some()
    }

    /// Carries out a verb page by page, as often as there is more; gives each answer to `each`.
    pub(super) fn ask_pages(
        &mut self,
        mut command: Command,
        each: &mut dyn FnMut(Value) -> Result<(), String>,
    ) -> Result<(), String> {
        loop {
            let answer = self.ask(&command)?;
            let next = answer["next"].as_str().and_then(|id| id.parse().ok());
            each(answer)?;
            match (command.filter_mut(), next) {
                (Some(filter), Some(next)) => filter.after = Some(next),
                _ => return Ok(()),
            }
        }
    }

    /// Ends it. What was purged leaves the store's files with the next open, so that is done at once; true when
    /// another process holds the folder and will do it when it ends.
    pub(super) fn end_purged(mut self) -> Result<bool, String> {
        if self.folder.take().is_none() {
            return Ok(true);
        }
        match setup::open_folder(self.config) {
            Ok(_) => Ok(false),
            Err(FolderError::Held { .. }) => Ok(true),
            Err(error) => Err(error.to_string()),
        }
    }
}
