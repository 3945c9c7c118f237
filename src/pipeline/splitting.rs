//! A document to the texts of its chunks, as every run with this model and these settings makes them.

use crate::{
    embed::Embed,
    source::{self, Splitter},
};

/// Chunk texts of a document as a run with this model and these settings makes them; `None` when the tokenizer panicked.
pub fn chunk_texts(model: &dyn Embed, settings: &source::Settings, text: &str) -> Option<Vec<String>> {
    split(model, settings, chunk_tokens(model, settings), text)
}

/// The same with the number of tokens at hand.
pub(super) fn split(
    model: &dyn Embed,
    settings: &source::Settings,
    chunk_tokens: usize,
    text: &str,
) -> Option<Vec<String>> {
    let measure = |text: &str| model.count(text);
    let splitter = Splitter::new(chunk_tokens, settings.overlap_tokens);
    let split = || splitter.split(text, &measure).into_iter().map(str::to_owned).collect();
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(split)).ok()
}

/// `source.chunk_tokens`, or `min(512, max length)`, less what the model's template and prefix take.
pub(super) fn chunk_tokens(model: &dyn Embed, settings: &source::Settings) -> usize {
    let golden = "a";
    let whole = model.tokenize(golden).map_or(2, |tokens| tokens.ids.len());
    let specials = whole.saturating_sub(model.count(golden));
    let limit = match settings.chunk_tokens {
        0 => model.max_length().min(512),
        set => set.min(model.max_length()),
    };
    limit.saturating_sub(specials).max(1)
}
