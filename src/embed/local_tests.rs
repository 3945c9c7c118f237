use super::*;

/// The defaults of `config.toml`, but for the model's name.
pub fn settings() -> Settings {
    Settings {
        name: "tiny".into(),
        dir: String::new(),
        device: "cpu".into(),
        kernel: "auto".into(),
        compute: "f32".into(),
        max_length: 0,
        outputs: vec!["dense".into()],
        truncation: "truncate".into(),
        pass_tokens: 4_096,
        memory_mb: 0,
        threads: 2,
    }
}

#[cfg(feature = "testkit")]
mod with_tiny {
    use std::path::PathBuf;

    use super::*;
    use crate::{
        embed::{
            expect::{Family, Pooling},
            memory::tests::with_free,
        },
        testkit::tiny,
    };

    fn tiny(family: Family) -> (tempfile::TempDir, Expect) {
        let folder = tempfile::tempdir().unwrap();
        let expect = tiny::write(folder.path(), family, 7).unwrap();
        (folder, expect)
    }

    #[test]
    fn both_families_open_and_embed() {
        for family in [Family::Bert, Family::XlmRoberta] {
            let (folder, expect) = tiny(family);
            let model = LocalModel::open(folder.path(), &expect, &settings()).unwrap();
            let golden = model.golden();
            let embedding = model.embed(&[&golden]).unwrap().remove(0).unwrap();
            assert_eq!(embedding.dense.len(), 32);
            assert_eq!(embedding.n_tokens as usize, golden.ids.len());
            assert!(!embedding.truncated && golden.ids.len() > 10, "{golden:?}");
        }
    }

    /// Opens after `spoil` has changed the folder or the entry; gives the message.
    fn refused(spoil: impl FnOnce(PathBuf, &mut Expect)) -> String {
        let (folder, mut expect) = tiny(Family::XlmRoberta);
        spoil(folder.path().into(), &mut expect);
        LocalModel::open(folder.path(), &expect, &settings()).unwrap_err().to_string()
    }

    #[test]
    fn a08_a_folder_and_an_entry_that_disagree_are_both_named() {
        let message = refused(|_, expect| expect.pooling = Pooling::Mean);
        assert!(message.contains("pooling is cls in"), "{message}");
        assert!(
            message.contains("1_Pooling/config.json but mean in models/tiny-xlm-roberta.toml"),
            "{message}"
        );
        assert!(refused(|_, expect| expect.family = Family::Bert).contains("model_type is xlm-roberta"));
        assert!(refused(|_, expect| expect.normalize = false).contains("normalize is true"));
        assert!(refused(|_, expect| expect.dim = 64).contains("hidden_size is 32"));
        assert!(refused(|_, expect| expect.max_length = 100).contains("max_seq_length is 4200"));
    }

    #[test]
    fn what_cannot_be_computed_is_refused_by_name() {
        let edit = |file: &'static str, from: &'static str, to: &'static str| {
            refused(move |folder, _| {
                let text = std::fs::read_to_string(folder.join(file)).unwrap();
                assert!(text.contains(from));
                std::fs::write(folder.join(file), text.replace(from, to)).unwrap();
            })
        };
        assert!(edit("config.json", "\"gelu\"", "\"relu\"").contains("hidden_act \"relu\""));
        assert!(edit("config.json", "\"absolute\"", "\"relative\"").contains("\"relative\""));
        assert!(edit("modules.json", "models.Normalize", "models.Dense").contains("module \"Dense\""));
        assert!(
            edit("modules.json", "models.Pooling", "models.Transformer")
                .contains("no module of type Pooling")
        );
        let message = edit("1_Pooling/config.json", "cls_token\": true", "max_tokens\": true");
        assert!(message.contains("pooling is max_tokens"), "{message}");
        assert!(edit("config.json", "4202", "4201").contains("4199 usable positions"));
        assert!(
            edit("config.json", "\"vocab_size\": 113", "\"vocab_size\": 112").contains("knows the id 112")
        );
        assert!(edit("config.json", "{", "").contains("config.json"));
    }

    #[test]
    fn a09_prefixes_are_put_before_documents_and_queries() {
        let (folder, mut expect) = tiny(Family::XlmRoberta);
        let plain = LocalModel::open(folder.path(), &expect, &settings()).unwrap();
        expect.document_prefix = "the gate: ".into();
        expect.query_prefix = "a river: ".into();
        let prefixed = LocalModel::open(folder.path(), &expect, &settings()).unwrap();
        assert_eq!(prefixed.tokenize("water"), plain.tokenize("the gate: water"));
        assert_eq!(prefixed.tokenize_query("water"), plain.tokenize("a river: water"));
        assert_eq!(prefixed.count("water"), plain.count("water"));
        assert_ne!(prefixed.identity(), plain.identity());
    }

    #[test]
    fn a_max_length_past_the_models_is_refused() {
        let (folder, expect) = tiny(Family::Bert);
        let message = |max_length| {
            let settings = Settings { max_length, ..settings() };
            LocalModel::open(folder.path(), &expect, &settings).unwrap_err().to_string()
        };
        assert!(message(301).contains("model.max_length = 301: tiny-bert takes at most 300"));
        assert!(message(2).contains("more than the 2 special tokens"));
    }

    #[test]
    fn a_missing_file_says_what_to_pull() {
        for file in
            ["config.json", "modules.json", "1_Pooling/config.json", "tokenizer.json", "model.safetensors"]
        {
            let message = refused(|folder, _| std::fs::remove_file(folder.join(file)).unwrap());
            assert!(
                message.contains(file) && message.contains("forebay model pull tiny-xlm-roberta"),
                "{message}"
            );
        }
    }

    #[test]
    fn damaged_weights_name_the_tensor_or_the_file_and_never_load() {
        let edit = |from: &'static str, to: &'static str| {
            assert_eq!(from.len(), to.len());
            refused(move |folder, _| {
                let path = folder.join("model.safetensors");
                let mut bytes = std::fs::read(&path).unwrap();
                let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
                bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
                std::fs::write(path, bytes).unwrap();
            })
        };
        let message = edit("encoder.layer.1.output.dense.bias", "encoder.layer.1.output.dense.bios");
        assert!(message.contains("tensor encoder.layer.1.output.dense.bias is missing"), "{message}");
        assert!(message.contains("forebay model verify tiny-xlm-roberta"), "{message}");
        let cut = refused(|folder, _| {
            let path = folder.join("model.safetensors");
            let bytes = std::fs::read(&path).unwrap();
            std::fs::write(path, &bytes[..bytes.len() - 100]).unwrap();
        });
        assert!(cut.contains("cut"), "{cut}");
        let other = refused(|folder, _| {
            std::fs::write(folder.join("model.safetensors"), "<html>nope</html>").unwrap();
        });
        assert!(other.contains("model.safetensors"), "{other}");
    }

    #[test]
    fn a_text_over_the_limit_is_cut_or_buried() {
        let (folder, expect) = tiny(Family::Bert);
        let open = |truncation: &str| {
            let settings = Settings { truncation: truncation.into(), max_length: 8, ..settings() };
            LocalModel::open(folder.path(), &expect, &settings).unwrap()
        };
        let (cut, bury) = (open("truncate"), open("bury"));
        let tokens = cut.tokenize("the water the water the water the").unwrap();
        assert!(tokens.truncated);
        assert_eq!(tokens.ids.len(), 8);
        assert_eq!(tokens.ids, cut.tokenize("the water the water the water").unwrap().ids);
        assert!(!cut.tokenize("the water the water the water").unwrap().truncated);
        let fault = bury.tokenize("the water the water the water the").unwrap_err();
        assert_eq!(fault.class, Class::TooLong);
        assert!(fault.message.starts_with("it has 9 tokens, and 8 are taken"), "{fault}");
        let endless = bury.tokenize(&"the ".repeat(300_000)).unwrap_err().message;
        assert!(endless.starts_with("it has at least 262146 tokens"), "a MiB of it is counted: {endless}");
        assert!(bury.identity().label.ends_with("/f32/8"));
    }

    #[test]
    fn a_pass_that_would_not_fit_into_memory_is_told_before_it_is_tried() {
        let (folder, expect) = tiny(Family::Bert);
        let mut model = LocalModel::open(folder.path(), &expect, &settings()).unwrap();
        model.memory = with_free(folder.path(), 300, 1_024);
        let text = |n: usize| Tokens { ids: vec![5; n], truncated: false };
        let (half, whole) = (text(160), text(290));
        let error = model.embed(&[&half, &half]).unwrap_err();
        assert_eq!(error.class(), Class::OutOfMemory);
        assert!(error.to_string().contains("of 2 texts ran out of memory: it needs about 1 MiB"), "{error}");
        assert!(model.embed(&[&half]).unwrap()[0].is_ok() && model.embed(&[&whole]).unwrap()[0].is_ok());
        model.memory = with_free(folder.path(), 0, 1_024);
        assert_eq!(model.embed(&[&whole]).unwrap_err().class(), Class::OutOfMemory);
        assert!(
            model.embed(&[&model.golden()]).unwrap()[0].is_ok(),
            "the golden text tells a device from a text"
        );
    }

    #[test]
    fn a_pass_holds_what_memory_allows() {
        let (folder, expect) = tiny(Family::Bert);
        let tokens = |settings: Settings| {
            LocalModel::open(folder.path(), &expect, &settings).unwrap().capacity().tokens
        };
        assert_eq!(tokens(settings()), 4_096);
        // The tiny model is 32 wide: 6 rows of it, and its inner part of 64, are 1 KiB a token.
        assert_eq!(tokens(Settings { memory_mb: 1, ..settings() }), 1_024);
        assert!(tokens(Settings { memory_mb: 1, kernel: "candle".into(), ..settings() }) < 1_024);
    }

    #[test]
    fn ids_the_model_cannot_take_are_the_fault_of_their_text_alone() {
        let (folder, expect) = tiny(Family::Bert);
        let model = LocalModel::open(folder.path(), &expect, &settings()).unwrap();
        let tokens = |ids: Vec<u32>| Tokens { ids, truncated: false };
        let (good, past) = (model.golden(), tokens(vec![2, 9_999, 3]));
        let (none, long) = (tokens(vec![]), tokens(vec![2; 301]));
        let results = model.embed(&[&past, &good, &none, &long]).unwrap();
        let classes: Vec<Option<Class>> =
            results.iter().map(|result| result.as_ref().err().map(|fault| fault.class)).collect();
        assert_eq!(classes, [Some(Class::TokenizerFailed), None, Some(Class::TooLong), Some(Class::TooLong)]);
        assert_eq!(results[1], model.embed(&[&good]).unwrap()[0]);
    }

    /// Fails as told: the first ids of a text choose how.
    struct Faulty;

    impl Encoder for Faulty {
        fn dim(&self) -> usize {
            2
        }

        fn encode(&self, batch: &[&[u32]], _: Option<&Heads>) -> Result<Vec<Encoded>, EmbedError> {
            let one = |ids: &&[u32]| match ids[0] {
                10 => panic!("as told"),
                11 => Encoded::dense(vec![f32::NAN, 1.0]),
                12 if batch.len() > 1 => Encoded::dense(vec![f32::NAN, 1.0]),
                13 => Encoded::dense(vec![0.6, 0.7]),
                14 => Encoded::dense(vec![1.0]),
                15 => Encoded { sparse: Some(vec![(7, f32::NAN)]), ..Encoded::dense(vec![0.6, 0.8]) },
                16 => Encoded { multi: Some(vec![0.6, 0.8]), ..Encoded::dense(vec![0.6, 0.8]) },
                _ => Encoded::dense(vec![0.6, 0.8]),
            };
            Ok(batch.iter().map(one).collect())
        }
    }

    #[test]
    fn a01_a_bad_vector_is_tried_alone_once_and_never_leaves() {
        let (folder, expect) = tiny(Family::Bert);
        let mut model = LocalModel::open(folder.path(), &expect, &settings()).unwrap();
        model.encoder = Box::new(Faulty);
        let texts = [1, 11, 12, 13, 14].map(|id| Tokens { ids: vec![id], truncated: false });
        let results = model.embed(&texts.each_ref()).unwrap();
        let faults: Vec<bool> = results.iter().map(Result::is_err).collect();
        assert_eq!(faults, [false, true, false, true, true]);
        assert_eq!(results[1].as_ref().unwrap_err().class, Class::NonFiniteVector);
        assert_eq!(results[2].as_ref().unwrap().dense, [0.6, 0.8]);
        // Each output is looked at, and named.
        for (id, said) in [(15, "sparse: weight 0 is NaN"), (16, "multi: 2 numbers instead of 0 rows")] {
            let text = Tokens { ids: vec![id], truncated: false };
            let fault = model.embed(&[&text]).unwrap().remove(0).unwrap_err();
            assert_eq!(fault.class, Class::NonFiniteVector);
            assert!(fault.to_string().contains(said) && fault.to_string().contains("alone"), "{fault}");
        }
        let panics = Tokens { ids: vec![10], truncated: false };
        assert_eq!(model.embed(&[&panics]), Err(EmbedError::Panicked("as told".into())));
    }
}

#[test]
fn a05_settings_that_cannot_be_honoured_say_what_to_set() {
    let message = |settings: Settings| check_settings(&settings).unwrap_err().to_string();
    let unknown = message(Settings { compute: "int8".into(), ..settings() });
    assert!(
        unknown.contains("model.compute = \"int8\"") && unknown.contains("f32, i16, f16 or bf16"),
        "{unknown}"
    );
    let i16 = message(Settings { compute: "i16".into(), device: "cuda:1".into(), ..settings() });
    assert!(i16.contains("model.compute = \"i16\"") && i16.contains("set model.device = \"cpu\""), "{i16}");
    let plain = message(Settings { compute: "i16".into(), kernel: "candle".into(), ..settings() });
    assert!(plain.contains("set model.kernel = \"auto\""), "{plain}");
    let half = message(Settings { compute: "f16".into(), ..settings() });
    assert!(half.contains("model.compute = \"f16\"") && half.contains("f32"), "{half}");
    let sparse = message(Settings { outputs: vec!["sparse".into()], ..settings() });
    assert!(sparse.contains("set model.outputs = [\"dense\", \"sparse\"]"), "{sparse}");
    assert!(message(Settings { truncation: "maybe".into(), ..settings() }).contains("truncate or bury"));
    assert!(message(Settings { pass_tokens: 0, ..settings() }).contains("at least 1"));
    assert!(message(Settings { threads: 20_000, ..settings() }).contains("model.threads = 20000"));
}
