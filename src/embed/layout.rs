//! The small files of a model folder (`config.json`, `modules.json`, `1_Pooling/config.json`, …), read and
//! checked against the registry's entry before any weight is loaded.

use std::path::{Path, PathBuf};

use serde::{Deserialize, de::DeserializeOwned};

use super::expect::{Expect, Family, OpenError, Pooling};

/// The parts of `config.json` that decide the computation.
#[derive(Clone, Debug, Deserialize)]
pub struct ModelConfig {
    /// `bert` or `xlm-roberta`.
    pub model_type: String,
    /// Width of a token's vector.
    pub hidden_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Attention heads; they divide `hidden_size`.
    pub num_attention_heads: usize,
    /// Width inside the feed-forward part.
    pub intermediate_size: usize,
    /// Must be `gelu` (the erf form).
    pub hidden_act: String,
    /// Added to the variance in each normalisation.
    pub layer_norm_eps: f64,
    /// Rows of the position table.
    pub max_position_embeddings: usize,
    /// Rows of the word table.
    pub vocab_size: usize,
    /// Rows of the token type table; the first is used.
    pub type_vocab_size: usize,
    /// XLM-R counts positions from this plus one.
    #[serde(default)]
    pub pad_token_id: usize,
    /// Must be `absolute`.
    #[serde(default = "absolute")]
    pub position_embedding_type: String,
}

fn absolute() -> String {
    "absolute".into()
}

impl ModelConfig {
    /// Position of a text's first token.
    pub const fn first_position(&self, family: Family) -> usize {
        match family {
            Family::Bert => 0,
            Family::XlmRoberta => self.pad_token_id + 1,
        }
    }
}

/// A model folder whose description fits its entry.
#[derive(Clone, Debug)]
pub struct ModelFiles {
    /// `config.json`.
    pub config: ModelConfig,
    /// Where the weights are.
    pub weights: PathBuf,
    /// Where the tokenizer is.
    pub tokenizer: PathBuf,
}

impl ModelFiles {
    /// Reads the folder's description and compares it with `expect`.
    ///
    /// # Errors
    /// A file is missing or damaged, the two disagree, or something in it is not supported.
    pub fn read(folder: &Path, expect: &Expect) -> Result<Self, OpenError> {
        let path = folder.join("config.json");
        let config: ModelConfig = read_json(&expect.name, &path)?;
        check_config(&config, &path, expect)?;
        check_modules(folder, expect)?;
        check_max_length(folder, expect)?;
        let files = Self {
            config,
            weights: folder.join("model.safetensors"),
            tokenizer: folder.join("tokenizer.json"),
        };
        for path in [&files.weights, &files.tokenizer] {
            std::fs::metadata(path).map_err(|error| OpenError::io(&expect.name, path, &error))?;
        }
        Ok(files)
    }
}

fn read_json<T: DeserializeOwned>(model: &str, path: &Path) -> Result<T, OpenError> {
    let bytes = std::fs::read(path).map_err(|error| OpenError::io(model, path, &error))?;
    serde_json::from_slice(&bytes).map_err(|error| OpenError::damaged(model, path, error.to_string()))
}

fn agree(
    expect: &Expect,
    path: &Path,
    what: &'static str,
    found: impl ToString,
    expected: impl ToString,
) -> Result<(), OpenError> {
    let (found, expected) = (found.to_string(), expected.to_string());
    if found == expected {
        return Ok(());
    }
    Err(OpenError::Disagree { model: expect.name.clone(), path: path.into(), what, found, expected })
}

fn check_config(config: &ModelConfig, path: &Path, expect: &Expect) -> Result<(), OpenError> {
    agree(expect, path, "model_type", &config.model_type, expect.family.as_str())?;
    agree(expect, path, "hidden_size", config.hidden_size, expect.dim)?;
    let unsupported = |what: String| OpenError::Unsupported { model: expect.name.clone(), what };
    if config.hidden_act != "gelu" {
        return Err(unsupported(format!("hidden_act {:?}", config.hidden_act)));
    }
    if config.position_embedding_type != "absolute" {
        return Err(unsupported(format!("position_embedding_type {:?}", config.position_embedding_type)));
    }
    if config.num_attention_heads == 0 || !config.hidden_size.is_multiple_of(config.num_attention_heads) {
        let what =
            format!("{} heads do not divide a width of {}", config.num_attention_heads, config.hidden_size);
        return Err(OpenError::damaged(&expect.name, path, what));
    }
    let positions = config.max_position_embeddings.saturating_sub(config.first_position(expect.family));
    if expect.max_length > positions {
        let what =
            format!("{positions} usable positions, fewer than the entry's max_length {}", expect.max_length);
        return Err(OpenError::damaged(&expect.name, path, what));
    }
    Ok(())
}

/// One line of `modules.json`: sentence-transformers runs these in order.
#[derive(Deserialize)]
struct Module {
    path: String,
    #[serde(rename = "type")]
    kind: String,
}

/// `1_Pooling/config.json`: one flag a mode.
#[derive(Deserialize)]
struct PoolingFile(serde_json::Map<String, serde_json::Value>);

fn check_modules(folder: &Path, expect: &Expect) -> Result<(), OpenError> {
    let path = folder.join("modules.json");
    let modules: Vec<Module> = read_json(&expect.name, &path)?;
    let mut normalize = false;
    let mut pooled = false;
    for module in &modules {
        match module.kind.rsplit('.').next().unwrap_or_default() {
            "Transformer" => {}
            "Pooling" => {
                let path = folder.join(&module.path).join("config.json");
                let file: PoolingFile = read_json(&expect.name, &path)?;
                agree(expect, &path, "pooling", pooling_of(&file), expect.pooling.as_str())?;
                pooled = true;
            }
            "Normalize" => normalize = true,
            other => {
                let what = format!("the module {other:?} of {}", path.display());
                return Err(OpenError::Unsupported { model: expect.name.clone(), what });
            }
        }
    }
    if !pooled {
        return Err(OpenError::damaged(&expect.name, &path, "no module of type Pooling"));
    }
    agree(expect, &path, "normalize", normalize, expect.normalize)?;
    if !normalize {
        let what = "a model without normalisation".to_owned();
        return Err(OpenError::Unsupported { model: expect.name.clone(), what });
    }
    Ok(())
}

/// The modes that are on, as a name: `cls`, `mean`, or whatever else the file asks for.
fn pooling_of(file: &PoolingFile) -> String {
    let on = file.0.iter().filter(|(key, value)| key.starts_with("pooling_mode_") && **value == true);
    let names: Vec<&str> = on
        .map(|(key, _)| match key.trim_start_matches("pooling_mode_") {
            "cls_token" => Pooling::Cls.as_str(),
            "mean_tokens" => Pooling::Mean.as_str(),
            other => other,
        })
        .collect();
    if names.is_empty() { "none".into() } else { names.join("+") }
}

fn check_max_length(folder: &Path, expect: &Expect) -> Result<(), OpenError> {
    #[derive(Deserialize)]
    struct File {
        max_seq_length: Option<usize>,
    }
    let path = folder.join("sentence_bert_config.json");
    if !path.exists() {
        return Ok(());
    }
    let file: File = read_json(&expect.name, &path)?;
    match file.max_seq_length {
        Some(found) => agree(expect, &path, "max_seq_length", found, expect.max_length),
        None => Ok(()),
    }
}
