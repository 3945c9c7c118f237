//! Tiny models of the real architectures, made from a seed in milliseconds: the real candle path runs in every
//! test, without a download. The same seed gives the same bytes on every machine: golden vectors rest on it.

use std::{collections::BTreeMap, io, path::Path};

use serde_json::{Value, json};

use crate::{
    chunk::Digest,
    embed::{
        expect::{Expect, Family, Pooling},
        heads::{MULTI_FILE, SPARSE_FILE},
    },
};

/// Sizes of a model.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Numbers of a hidden state, and so of the vector.
    pub width: usize,
    /// Numbers between the two layers of the feed-forward part.
    pub inner: usize,
    /// Layers.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
}

/// What the tests use.
pub const TINY: Shape = Shape { width: 32, inner: 64, layers: 2, heads: 4 };

/// Six of the 24 layers of bge-m3, at their full width; for benches.
pub const BGE_M3_OF_6: Shape = Shape { width: 1_024, inner: 4_096, layers: 6, heads: 16 };

/// What a tiny model is like: the shape of a real one, small.
#[derive(Clone, Copy, Debug)]
pub struct Like {
    /// Its name, in the entry.
    pub name: &'static str,
    /// Its sizes.
    pub shape: Shape,
    /// Its layers.
    pub family: Family,
    /// Its pooling.
    pub pooling: Pooling,
    /// Whether its tokenizer is XLM-R's (Unigram), else BERT's (`WordPiece`).
    pub unigram: bool,
    /// Rows of the word table that no token has.
    pub spare_rows: usize,
    /// Tokens at most.
    pub max_length: usize,
    /// Put before each document.
    pub document_prefix: &'static str,
    /// Put before each query.
    pub query_prefix: &'static str,
    /// Whether it has the heads of bge-m3.
    pub heads: bool,
}

impl Like {
    /// bge-m3: 4,200 tokens.
    pub const XLM_ROBERTA: Self = Self {
        name: "tiny-xlm-roberta",
        shape: TINY,
        family: Family::XlmRoberta,
        pooling: Pooling::Cls,
        unigram: true,
        spare_rows: 0,
        max_length: 4_200,
        document_prefix: "",
        query_prefix: "",
        heads: true,
    };
    /// all-MiniLM-L6-v2.
    pub const BERT: Self = Self {
        name: "tiny-bert",
        family: Family::Bert,
        pooling: Pooling::Mean,
        unigram: false,
        max_length: 300,
        heads: false,
        ..Self::XLM_ROBERTA
    };
    /// bge-small, -base and -large-en-v1.5.
    pub const BGE: Self = Self {
        name: "tiny-bge",
        pooling: Pooling::Cls,
        query_prefix: "Represent this sentence for searching relevant passages: ",
        ..Self::BERT
    };
    /// multilingual-e5-small: BERT's layers and positions, XLM-R's tokenizer, more rows than tokens.
    pub const E5_SMALL: Self = Self {
        name: "tiny-e5-small",
        unigram: true,
        spare_rows: 35,
        document_prefix: "passage: ",
        query_prefix: "query: ",
        ..Self::BERT
    };
    /// multilingual-e5-large.
    pub const E5_LARGE: Self =
        Self { name: "tiny-e5-large", family: Family::XlmRoberta, spare_rows: 0, ..Self::E5_SMALL };
}

/// Writes a tiny model of this family into `folder` (created if absent) and says what it is. XLM-R: as bge-m3, 4,200
/// tokens at most; BERT: as all-MiniLM-L6-v2, 300 tokens.
///
/// # Errors
/// What writing the files said.
pub fn write(folder: &Path, family: Family, seed: u64) -> io::Result<Expect> {
    write_like(folder, if family == Family::Bert { &Like::BERT } else { &Like::XLM_ROBERTA }, seed)
}

/// Writes a tiny model of this likeness into `folder` (created if absent) and says what it is.
///
/// # Errors
/// What writing the files said.
pub fn write_like(folder: &Path, like: &Like, seed: u64) -> io::Result<Expect> {
    let Like { family, pooling, max_length, shape, .. } = *like;
    let first = if family == Family::XlmRoberta { 2 } else { 0 };
    let (tokenizer, tokens) = if like.unigram { unigram() } else { word_piece() };
    let config = json!({
        "model_type": family.as_str(),
        "hidden_size": shape.width, "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads,
        "intermediate_size": shape.inner, "hidden_act": "gelu", "layer_norm_eps": 1e-5,
        "max_position_embeddings": max_length + first, "vocab_size": tokens + like.spare_rows,
        "type_vocab_size": if family == Family::Bert { 2 } else { 1 },
        "pad_token_id": first / 2, "position_embedding_type": "absolute",
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.02,
    });
    let weights = safetensors(&shapes(&config, shape), seed);
    let tokenizer = serde_json::to_vec(&tokenizer)?;
    std::fs::create_dir_all(folder.join("1_Pooling"))?;
    let write_json =
        |name: &str, value: &Value| std::fs::write(folder.join(name), serde_json::to_vec_pretty(value)?);
    write_json("config.json", &config)?;
    write_json("sentence_bert_config.json", &json!({"max_seq_length": max_length, "do_lower_case": false}))?;
    write_json("modules.json", &modules())?;
    write_json(
        "1_Pooling/config.json",
        &json!({
            "word_embedding_dimension": shape.width,
            "pooling_mode_cls_token": pooling == Pooling::Cls,
            "pooling_mode_mean_tokens": pooling == Pooling::Mean,
        }),
    )?;
    std::fs::write(folder.join("tokenizer.json"), &tokenizer)?;
    std::fs::write(folder.join("model.safetensors"), &weights)?;
    // Files and seeds of their own: the other files stay as they are.
    let head = |file: &str, out: usize, seed: u64| {
        let shapes = [("bias", vec![out]), ("weight", vec![out, shape.width])];
        let shapes = shapes.into_iter().map(|(name, shape)| (name.to_owned(), shape)).collect();
        let bytes = safetensors(&shapes, seed);
        std::fs::write(folder.join(file), &bytes).map(|()| Digest::of(&bytes))
    };
    let sparse_head = like.heads.then(|| head(SPARSE_FILE, 1, seed.wrapping_add(1))).transpose()?;
    let multi_head = like.heads.then(|| head(MULTI_FILE, shape.width, seed.wrapping_add(2))).transpose()?;
    Ok(Expect {
        name: like.name.to_owned(),
        revision: format!("seed-{seed}"),
        family,
        pooling,
        normalize: true,
        max_length,
        dim: shape.width,
        document_prefix: like.document_prefix.to_owned(),
        query_prefix: like.query_prefix.to_owned(),
        weights_sha256: Digest::of(&weights),
        tokenizer_sha256: Digest::of(&tokenizer),
        sparse_head,
        multi_head,
    })
}

fn modules() -> Value {
    let module = |idx: usize, path: &str, kind: &str| {
        let kind = format!("sentence_transformers.models.{kind}");
        json!({"idx": idx, "name": idx.to_string(), "path": path, "type": kind})
    };
    json!([
        module(0, "", "Transformer"),
        module(1, "1_Pooling", "Pooling"),
        module(2, "2_Normalize", "Normalize")
    ])
}

/// Names and shapes of all tensors of a model with this `config.json`.
fn shapes(config: &Value, shape: Shape) -> BTreeMap<String, Vec<usize>> {
    let size = |key: &str| usize::try_from(config[key].as_u64().unwrap_or(0)).expect("a small number");
    let Shape { width, inner, layers, .. } = shape;
    let mut shapes = BTreeMap::new();
    let mut add = |name: &str, shape: &[usize]| {
        shapes.insert(name.to_owned(), shape.to_vec());
    };
    add("embeddings.word_embeddings.weight", &[size("vocab_size"), width]);
    add("embeddings.position_embeddings.weight", &[size("max_position_embeddings"), width]);
    add("embeddings.token_type_embeddings.weight", &[size("type_vocab_size"), width]);
    let mut norms = vec!["embeddings.LayerNorm".to_owned()];
    for layer in 0..layers {
        let at = |name: &str| format!("encoder.layer.{layer}.{name}");
        for (name, out, width) in [
            ("attention.self.query", width, width),
            ("attention.self.key", width, width),
            ("attention.self.value", width, width),
            ("attention.output.dense", width, width),
            ("intermediate.dense", inner, width),
            ("output.dense", width, inner),
        ] {
            add(&format!("{}.weight", at(name)), &[out, width]);
            add(&format!("{}.bias", at(name)), &[out]);
        }
        norms.extend([at("attention.output.LayerNorm"), at("output.LayerNorm")]);
    }
    for norm in norms {
        add(&format!("{norm}.weight"), &[width]);
        add(&format!("{norm}.bias"), &[width]);
    }
    shapes
}

/// The file: header and numbers. Weights are large enough that every part of the computation shows in the
/// vectors; each tensor has a stream of its own, so that a change of one shape leaves the others alone.
fn safetensors(shapes: &BTreeMap<String, Vec<usize>>, seed: u64) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (stream, (name, shape)) in shapes.iter().enumerate() {
        let start = data.len();
        let mut random = Random(seed ^ (stream as u64) << 32);
        let norm = name.contains("LayerNorm");
        let (middle, spread) = match name.rsplit('.').next() {
            Some("weight") if norm => (1.0, 0.25),
            Some("weight") if name.starts_with("embeddings") => (0.0, 1.0),
            Some("weight") => (0.0, 0.375),
            _ => (0.0, 0.125),
        };
        for _ in 0..shape.iter().product::<usize>() {
            data.extend((middle + spread * random.signed()).to_le_bytes());
        }
        header.insert(
            name.clone(),
            json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]}),
        );
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// −1 to 1, on a grid that f32 holds exactly.
    fn signed(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

const WORDS: [&str; 24] = [
    "the", "and", "of", "water", "gate", "turbine", "river", "flow", "basin", "dam", "light", "stone", "er",
    "ing", "ed", "est", "tion", "über", "naïve", "東", "京", "水", "мир", "שלום",
];

fn letters() -> impl Iterator<Item = String> {
    ('a'..='z').chain('0'..='9').chain(".,;:!?-'\"()[]<>/äöüßéèñ".chars()).map(String::from)
}

fn added(id: usize, content: &str) -> Value {
    json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
           "rstrip": false, "normalized": false})
}

/// As XLM-R's: the same special ids, which are pieces of the Unigram too, pieces with a leading `▁`, `<s> A </s>`. Truncation and padding are
/// stored in it, as real files do, and must be cleared by who loads it.
fn unigram() -> (Value, usize) {
    let mut vocab: Vec<(String, f64)> =
        ["<s>", "<pad>", "</s>", "<unk>"].map(|name| (name.into(), 0.0)).into();
    vocab.push(("▁".into(), -3.0));
    for (i, word) in WORDS.iter().enumerate() {
        vocab.push((format!("▁{word}"), -4.0 - i as f64 / 16.0));
        vocab.push(((*word).into(), -5.0 - i as f64 / 16.0));
    }
    for (i, letter) in letters().enumerate() {
        vocab.push((letter, -8.0 - i as f64 / 64.0));
    }
    let mask = vocab.len();
    vocab.push(("<mask>".into(), 0.0));
    let tokenizer = json!({
        "version": "1.0",
        "truncation": {"max_length": 16, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": {"strategy": {"Fixed": 16}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 1,
                    "pad_type_id": 0, "pad_token": "<pad>"},
        "added_tokens": [added(0, "<s>"), added(1, "<pad>"), added(2, "</s>"), added(3, "<unk>"), added(mask, "<mask>")],
        "normalizer": {"type": "NFKC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "WhitespaceSplit"},
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        ]},
        "post_processor": template("<s>", 0, "</s>", 2),
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "model": {"type": "Unigram", "unk_id": 3, "vocab": vocab, "byte_fallback": false},
    });
    (tokenizer, mask + 1)
}

/// As BERT's: `WordPiece`, lower-cased, `[CLS] A [SEP]`; special ids from 0.
fn word_piece() -> (Value, usize) {
    let specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
    let mut pieces: Vec<String> = specials.map(String::from).into();
    pieces.extend(WORDS.iter().map(|word| (*word).to_owned()));
    pieces.extend(letters());
    pieces.extend(letters().map(|letter| format!("##{letter}")));
    pieces.extend(["er", "ing", "ed", "est", "tion"].map(|end| format!("##{end}")));
    let size = pieces.len();
    let vocab: serde_json::Map<String, Value> =
        pieces.into_iter().enumerate().map(|(id, piece)| (piece, json!(id))).collect();
    let tokenizer = json!({
        "version": "1.0",
        "truncation": {"max_length": 16, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": {"strategy": {"Fixed": 16}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
                    "pad_type_id": 0, "pad_token": "[PAD]"},
        "added_tokens": specials.iter().enumerate().map(|(id, name)| added(id, name)).collect::<Vec<_>>(),
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                       "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": template("[CLS]", 2, "[SEP]", 3),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": vocab},
    });
    (tokenizer, size)
}

fn template(first: &str, first_id: usize, last: &str, last_id: usize) -> Value {
    let special = |name: &str| json!({"SpecialToken": {"id": name, "type_id": 0}});
    let (a, b) =
        (json!({"Sequence": {"id": "A", "type_id": 0}}), json!({"Sequence": {"id": "B", "type_id": 0}}));
    json!({
        "type": "TemplateProcessing",
        "single": [special(first), a, special(last)],
        "pair": [special(first), a, special(last), special(last), b, special(last)],
        "special_tokens": {
            first: {"id": first, "ids": [first_id], "tokens": [first]},
            last: {"id": last, "ids": [last_id], "tokens": [last]},
        },
    })
}
