//! Texts to token ids, as the model's own `tokenizer.json` says, but for what must not be taken from it: stored
//! truncation and padding are cleared, and special tokens spelled out in a text are text.

use std::{borrow::Cow, path::Path};

use serde::Deserialize;
use tokenizers::{
    Encoding, ModelWrapper, PostProcessor as _, Tokenizer, TruncationDirection, models::unigram::Unigram,
};

use super::{Tokens, expect::OpenError};

/// Bytes of text per kept token that are tokenised at first. A text within is tokenised whole; pieces of XLM-R
/// have at most 16 characters, words of common languages far fewer bytes.
const BYTES_PER_TOKEN: usize = 32;
/// A token this far from a cut, in bytes, is what it would be without the cut: more than the longest piece of
/// any Unigram, and than the 100 characters after which `WordPiece` gives a word up.
const MARGIN_BYTES: usize = 1_024;
/// Bytes of a text that are tokenised at most, unless the limit alone asks for more: only white space and words
/// without an end have so few tokens, and what lies behind them is cut off with the rest.
const HEAD_BYTES_MAX: usize = 1024 * 1024;

/// A tokenizer with a limit.
pub struct TextTokenizer {
    tokenizer: Tokenizer,
    /// Tokens at most, less the specials of the template.
    keep: usize,
    specials: usize,
}

impl TextTokenizer {
    /// Loads `path` for texts of at most `max_length` tokens, specials included.
    ///
    /// # Errors
    /// The file is missing or damaged; it knows ids past `vocab_size` (the rows of the model's word table);
    /// `max_length` leaves no room beside the specials.
    pub fn open(model: &str, path: &Path, vocab_size: usize, max_length: usize) -> Result<Self, OpenError> {
        // Its own threads would come on top of those that were set.
        tokenizers::utils::parallelism::set_parallelism(false);
        let bytes = std::fs::read(path).map_err(|error| OpenError::io(model, path, &error))?;
        let mut tokenizer = Tokenizer::from_bytes(&bytes)
            .map_err(|error| OpenError::damaged(model, path, error.to_string()))?;
        tokenizer
            .with_truncation(None)
            .map_err(|error| OpenError::damaged(model, path, error.to_string()))?
            .with_padding(None)
            .set_encode_special_tokens(true);
        hide_controls(&mut tokenizer, &bytes).map_err(|what| OpenError::damaged(model, path, what))?;
        let top = tokenizer.get_vocab(true).into_values().max().unwrap_or(0);
        if top as usize >= vocab_size {
            let what = format!("knows the id {top}, but the model's word table has {vocab_size} rows");
            return Err(OpenError::damaged(model, path, what));
        }
        let specials = tokenizer.get_post_processor().map_or(0, |template| template.added_tokens(false));
        if max_length <= specials {
            return Err(OpenError::Setting {
                key: "model.max_length",
                value: max_length.to_string(),
                what: format!(
                    "must be more than the {specials} special tokens of a text; 0 takes the model's limit"
                ),
            });
        }
        Ok(Self { tokenizer, keep: max_length - specials, specials })
    }

    /// The id of a token of the vocabulary, special ones too.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// Tokens of `text` without the specials.
    ///
    /// # Errors
    /// What the tokenizer said.
    pub fn count(&self, text: &str) -> Result<usize, String> {
        Ok(self.tokenizer.encode_fast(text, false).map_err(|error| error.to_string())?.len())
    }

    /// Ids of `prefix` and `text` together, with the specials, cut to the limit.
    ///
    /// # Errors
    /// What the tokenizer said.
    pub fn tokenize(&self, prefix: &str, text: &str) -> Result<Tokens, String> {
        let text = if prefix.is_empty() { Cow::Borrowed(text) } else { Cow::Owned([prefix, text].concat()) };
        let (mut encoding, more) = self.head(&text).map_err(|error| error.to_string())?;
        let truncated = more || encoding.len() > self.keep;
        encoding.truncate(self.keep, 0, TruncationDirection::Right);
        let encoding =
            self.tokenizer.post_process(encoding, None, true).map_err(|error| error.to_string())?;
        Ok(Tokens { ids: encoding.get_ids().to_vec(), truncated })
    }

    /// Tokens of `prefix` and `text` together, with the specials, and whether that is all: what lies behind the first MiB
    /// is not counted.
    ///
    /// # Errors
    /// What the tokenizer said.
    pub fn length(&self, prefix: &str, text: &str) -> Result<(usize, bool), String> {
        let head = &text[..text.floor_char_boundary(HEAD_BYTES_MAX)];
        let tokens = self.count(&[prefix, head].concat())?;
        Ok((tokens + self.specials, head.len() == text.len()))
    }

    /// The tokens of `text`, or so many of its head that the first `keep` are those of the whole text (and
    /// then `true`). Tokenising is linear but slow (a 16 MB line takes a minute), and most of it would be cut
    /// off. How much text `keep` tokens need cannot be known ahead (white space costs none, a very long word
    /// may be one), so the head grows until enough tokens end a margin before its cut, or to its limit.
    fn head(&self, text: &str) -> tokenizers::Result<(Encoding, bool)> {
        let mut bytes = self.keep * BYTES_PER_TOKEN + MARGIN_BYTES;
        let most = bytes.max(HEAD_BYTES_MAX);
        while bytes < text.len() {
            let cut = text.floor_char_boundary(bytes);
            let encoding = self.tokenizer.encode(&text[..cut], false)?;
            let settled = encoding.get_offsets().partition_point(|&(_, end)| end + MARGIN_BYTES <= cut);
            if settled > self.keep || bytes >= most {
                return Ok((encoding, true));
            }
            bytes = (4 * bytes).min(most);
        }
        Ok((self.tokenizer.encode_fast(text, false)?, false))
    }
}

/// Takes the special tokens out of a Unigram's reach. XLM-R's file lists `<pad>` and its like as pieces, with
/// the best score of all, so a text that spells one out would get its id even when special tokens count as
/// text; sentencepiece, which made the vocabulary, never matches such a piece. The pieces keep their ids under
/// a name that no word can contain: a word has no white space.
fn hide_controls(tokenizer: &mut Tokenizer, file: &[u8]) -> Result<(), String> {
    #[derive(Deserialize)]
    struct File {
        model: Model,
    }
    #[derive(Deserialize)]
    struct Model {
        unk_id: Option<usize>,
    }
    let ModelWrapper::Unigram(unigram) = tokenizer.get_model() else { return Ok(()) };
    let file: File = serde_json::from_slice(file).map_err(|error| error.to_string())?;
    let added = tokenizer.get_added_tokens_decoder();
    let control =
        |id: usize| u32::try_from(id).is_ok_and(|id| added.get(&id).is_some_and(|token| token.special));
    let hidden = |(id, (piece, score)): (usize, &(String, f64))| {
        let piece = if control(id) { format!(" {piece}") } else { piece.clone() };
        (piece, *score)
    };
    let vocab = unigram.iter().enumerate().map(hidden).collect();
    let unigram = Unigram::from(vocab, file.model.unk_id, unigram.byte_fallback());
    tokenizer.with_model(unigram.map_err(|error| error.to_string())?);
    Ok(())
}
