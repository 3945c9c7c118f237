//! Newest wins: is this chunk already written, waiting, dead, older than what is held, or new? Pure.

use crate::{
    chunk::Digest,
    ledger::Written,
    queue::{
        HeldPending,
        dead::{DeadLetter, State},
    },
};

/// A chunk as it was just read.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// SHA-256 of the text as read.
    pub source_hash: &'a Digest,
    /// Where it was read.
    pub source_id: i64,
    /// Place in that source.
    pub ordinal: u64,
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is new, or newer than what is held.
    Enqueue,
    /// The very same is pending.
    Pending,
    /// The very same is written, by this run or before it.
    Written {
        /// By this run.
        now: bool,
    },
    /// A later record, of the same source or of one registered later, holds the key.
    Older,
    /// The very same lies in the DLQ.
    Dead,
    /// The very same was given up by a person.
    Discarded,
}

/// What the stores know of its key.
#[derive(Clone, Copy, Debug, Default)]
pub struct Held<'a> {
    /// In the window.
    pub pending: Option<HeldPending>,
    /// In the ledger.
    pub written: Option<&'a Written>,
    /// In the DLQ, not resolved.
    pub letter: Option<&'a DeadLetter>,
}

/// Decides. What is pending counts first: it will be written after what the ledger holds now.
pub fn admit(incoming: &Incoming<'_>, held: &Held<'_>, identity: &str, run: &str) -> Admission {
    // Sources are numbered as their contents were first registered, so this is the order in which all was first
    // read: reading two files with one id in common again, in any order, ends where it ended before, at no cost.
    let older = |source_id: i64, ordinal: u64| (source_id, ordinal) > (incoming.source_id, incoming.ordinal);
    if let Some(pending) = held.pending {
        return match pending {
            HeldPending { same: true, .. } => Admission::Pending,
            _ if older(pending.source_id, pending.ordinal) => Admission::Older,
            _ => Admission::Enqueue,
        };
    }
    if let Some(letter) = held.letter {
        let same = letter.identity.as_deref() == Some(identity)
            && letter.payload.source_hash() == Some(incoming.source_hash);
        match letter.state {
            State::Discarded if same => return Admission::Discarded,
            State::Open | State::Quarantined if same => return Admission::Dead,
            // A redriven one that is not pending is written by now, or was lost with its queue.
            _ => {}
        }
        if older(letter.origin.source_id, letter.origin.offset) {
            return Admission::Older;
        }
    }
    match held.written {
        Some(written) if written.identity == identity && written.source_hash == *incoming.source_hash => {
            Admission::Written { now: written.run == run }
        }
        Some(written) if older(written.source_id, written.ordinal) => Admission::Older,
        _ => Admission::Enqueue,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::{ChunkKey, chunk_id};

    fn written(text: &str, source_id: i64, ordinal: u64, identity: &str) -> Written {
        let (key, hash) = (ChunkKey::new("d", 0), Digest::of(text.as_bytes()));
        Written {
            chunk_id: chunk_id(&key, &hash),
            key,
            source_hash: hash,
            content_hash: hash,
            identity: identity.into(),
            source_id,
            ordinal,
            run: "before".into(),
            embedded_at: String::new(),
        }
    }

    fn case(text: &str, ordinal: u64, held: &Held<'_>) -> Admission {
        let incoming = Incoming { source_hash: &Digest::of(text.as_bytes()), source_id: 1, ordinal };
        admit(&incoming, held, "i", "now")
    }

    #[test]
    fn the_table() {
        assert_eq!(case("t", 5, &Held::default()), Admission::Enqueue);
        let row = written("t", 1, 5, "i");
        let held = Held { written: Some(&row), ..Held::default() };
        assert_eq!(case("t", 9, &held), Admission::Written { now: false });
        assert_eq!(case("other", 9, &held), Admission::Enqueue);
        assert_eq!(case("other", 4, &held), Admission::Older, "a duplicate id in one file: the last wins");
        let later = written("t", 2, 5, "i");
        let held = Held { written: Some(&later), ..Held::default() };
        assert_eq!(
            case("other", 9, &held),
            Admission::Older,
            "another source, registered later, has the key"
        );
        let earlier = written("t", 0, 5, "i");
        let held = Held { written: Some(&earlier), ..Held::default() };
        assert_eq!(case("other", 4, &held), Admission::Enqueue, "this source was registered later");
        let other_space = written("t", 1, 5, "another");
        let held = Held { written: Some(&other_space), ..Held::default() };
        assert_eq!(
            case("t", 5, &held),
            Admission::Enqueue,
            "another identity makes everything pending again"
        );
    }

    #[test]
    fn what_is_pending_counts_before_what_is_written() {
        let row = written("newest", 2, 5, "i");
        let pending = Some(HeldPending { same: false, source_id: 1, ordinal: 3 });
        let held = Held { pending, written: Some(&row), letter: None };
        assert_eq!(case("newest", 7, &held), Admission::Enqueue, "else the pending one would overwrite it");
        assert_eq!(case("x", 2, &held), Admission::Older);
        let pending = Some(HeldPending { same: true, source_id: 1, ordinal: 3 });
        assert_eq!(case("x", 2, &Held { pending, ..Held::default() }), Admission::Pending);
    }
}
