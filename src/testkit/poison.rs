//! Texts that are poison by a word in them: what each does, and what must become of it.

use crate::error::Class;

/// What a word in a text does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Poison {
    /// The pass fails as a whole.
    Pass,
    /// The pass panics.
    Panic,
    /// The pass does not fit into memory.
    Memory,
    /// The vector is not finite.
    NotFinite,
    /// The tokenizer refuses.
    Tokenizer,
    /// The tokenizer panics.
    TokenizerPanic,
    /// The sink refuses the row by its index.
    Row,
    /// The sink refuses the batch and does not say why.
    Batch,
    /// The sink panics.
    SinkPanic,
    /// The pass hangs until [`Faults::release`].
    Hang,
    /// The pass fails as a whole until the text has failed [`Faults::flaky_failures`] times alone.
    Flaky,
    /// The pass ends the process by `abort()`.
    Abort,
    /// The pass ends the process by SIGKILL, as the kernel does when memory runs out.
    Kill,
}

impl Poison {
    /// Those that end in a dead letter, whatever is tried, and leave the process alive.
    pub const LETHAL: [Self; 9] = [
        Self::Pass,
        Self::Panic,
        Self::Memory,
        Self::NotFinite,
        Self::Tokenizer,
        Self::TokenizerPanic,
        Self::Row,
        Self::Batch,
        Self::SinkPanic,
    ];

    /// The word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pass => "poison-pass",
            Self::Panic => "poison-panic",
            Self::Memory => "poison-memory",
            Self::NotFinite => "poison-vector",
            Self::Tokenizer => "poison-tokenizer",
            Self::TokenizerPanic => "poison-split",
            Self::Row => "poison-row",
            Self::Batch => "poison-batch",
            Self::SinkPanic => "poison-sink",
            Self::Hang => "poison-hang",
            Self::Flaky => "flaky",
            Self::Abort => "poison-abort",
            Self::Kill => "poison-kill",
        }
    }

    /// The class its dead letter must have; `None` when it must not have one.
    pub const fn class(self) -> Option<Class> {
        match self {
            Self::Pass => Some(Class::ModelFailed),
            Self::Panic | Self::SinkPanic => Some(Class::InternalPanic),
            Self::Memory => Some(Class::OutOfMemory),
            Self::NotFinite => Some(Class::NonFiniteVector),
            Self::Tokenizer | Self::TokenizerPanic => Some(Class::TokenizerFailed),
            Self::Row | Self::Batch => Some(Class::SinkRejectedRow),
            Self::Abort | Self::Kill => Some(Class::SuspectedCrash),
            Self::Hang | Self::Flaky => None,
        }
    }

    /// The poison in a text.
    pub fn of(text: &str) -> Option<Self> {
        let all = [Self::Hang, Self::Flaky, Self::Abort, Self::Kill].into_iter().chain(Self::LETHAL);
        all.into_iter().find(|poison| text.contains(poison.word()))
    }
}
