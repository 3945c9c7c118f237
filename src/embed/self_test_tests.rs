use super::*;
use crate::{
    chunk::Embedding,
    embed::{Capacity, expect::Family, local::LocalModel, local::tests::settings},
    testkit::tiny,
};

/// A tiny model that computes wrongly in one way.
struct Bent {
    inner: LocalModel,
    way: Way,
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Right,
    /// By the number of texts in the pass.
    Company(f32),
    Collapsed,
    Norm,
    NotANumber,
    Ids,
    Fails,
}

impl Embed for Bent {
    fn identity(&self) -> &Identity {
        self.inner.identity()
    }
    fn dim(&self) -> usize {
        self.inner.dim()
    }
    fn max_length(&self) -> usize {
        self.inner.max_length()
    }
    fn count(&self, text: &str) -> usize {
        self.inner.count(text)
    }
    fn tokenize(&self, text: &str) -> Result<Tokens, Fault> {
        let mut tokens = self.inner.tokenize(text)?;
        if self.way == Way::Ids {
            tokens.ids.swap(1, 2);
        }
        Ok(tokens)
    }
    fn tokenize_query(&self, text: &str) -> Result<Tokens, Fault> {
        self.inner.tokenize_query(text)
    }
    fn capacity(&self) -> Capacity {
        self.inner.capacity()
    }
    fn embed(&self, batch: &[&Tokens]) -> Result<Vec<Result<Embedding, Fault>>, EmbedError> {
        if self.way == Way::Fails {
            return Err(EmbedError::Failed("as told".into()));
        }
        let mut vectors = self.inner.embed(batch)?;
        for vector in vectors.iter_mut().map(|vector| &mut vector.as_mut().unwrap().dense) {
            match self.way {
                Way::Company(by) if batch.len() > 1 => {
                    vector[0] += by;
                    let norm = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
                    vector.iter_mut().for_each(|x| *x /= norm);
                }
                Way::Collapsed => {
                    vector.fill(0.0);
                    vector[0] = 1.0;
                }
                Way::Norm => vector.iter_mut().for_each(|x| *x *= 1.1),
                Way::NotANumber => vector[3] = f32::NAN,
                _ => {}
            }
        }
        Ok(vectors)
    }
    fn golden(&self) -> Tokens {
        self.inner.golden()
    }
}

fn bent(way: Way, changed: impl FnOnce(&mut Settings)) -> Bent {
    let folder = tempfile::tempdir().unwrap();
    let expect = tiny::write(folder.path(), Family::XlmRoberta, 7).unwrap();
    let mut settings = settings();
    changed(&mut settings);
    Bent { inner: LocalModel::open(folder.path(), &expect, &settings).unwrap(), way }
}

fn golden_of(model: &dyn Embed) -> Vec<Golden> {
    let one = |text: &&str| {
        let tokens = model.tokenize(text).unwrap();
        let dense = model.embed(&[&tokens]).unwrap().remove(0).unwrap().dense;
        Golden { text: (*text).to_owned(), ids: tokens.ids, dense }
    };
    TEXTS.iter().map(one).collect()
}

fn found(way: Way) -> Result<SelfTest, Wrong> {
    test(&bent(way, |_| {}), &[], cosine_min("f32"))
}

#[test]
fn a_sound_model_passes_with_and_without_a_reference() {
    let model = bent(Way::Right, |_| {});
    let plain = test(&model, &[], 0.9999).unwrap();
    assert!(plain.cosine > 0.99999 && plain.texts == 5 && plain.golden == 0, "{plain:?}");
    let held = test(&model, &golden_of(&model), 0.9999).unwrap();
    assert!(held.cosine > 0.99999 && held.golden == 5, "{held:?}");
}

#[test]
fn whatever_is_wrong_is_found_by_name() {
    assert!(matches!(found(Way::Company(0.05)), Err(Wrong::Company { at: 0, .. })));
    assert!(found(Way::Company(0.000_1)).is_ok(), "the last digits may differ");
    assert!(matches!(found(Way::Collapsed), Err(Wrong::Collapsed(0, 1, _))));
    assert!(matches!(found(Way::Norm), Err(Wrong::Norm { at: 0, norm }) if norm > 1.05));
    assert!(matches!(found(Way::NotANumber), Err(Wrong::Norm { .. })));
    assert!(matches!(found(Way::Fails), Err(Wrong::Pass(_))));
    let model = bent(Way::Right, |_| {});
    let mut golden = golden_of(&model);
    assert_eq!(test(&bent(Way::Ids, |_| {}), &golden, 0.9999), Err(Wrong::Ids { at: 0 }));
    golden[2].dense[0] += 0.1;
    assert!(matches!(test(&model, &golden, 0.9999), Err(Wrong::Reference { at: 2, .. })));
    golden[2].dense[0] = f32::NAN;
    assert!(matches!(test(&model, &golden, 0.9999), Err(Wrong::Reference { at: 2, .. })));
}

#[test]
fn a_short_limit_is_tested_with_what_fits() {
    let model = bent(Way::Right, |_| {});
    let golden = golden_of(&model);
    let cut = test(&bent(Way::Right, |settings| settings.max_length = 12), &golden, 0.9999).unwrap();
    assert!(cut.texts == 5 && cut.golden < 5, "{cut:?}");
    let strict = |settings: &mut Settings| {
        settings.max_length = 3;
        settings.truncation = "bury".into();
    };
    let one = test(&bent(Way::Right, strict), &[], 0.9999).unwrap();
    assert!(one.texts >= 1 && one.golden == 0, "{one:?}");
}

#[test]
fn a_refusal_says_what_to_type() {
    let refusal = |way, changed: &dyn Fn(&mut Settings)| {
        let mut settings = settings();
        changed(&mut settings);
        self_test(&bent(way, |_| {}), &settings).unwrap_err().to_string()
    };
    let fast = refusal(Way::Company(0.5), &|_| {});
    assert!(fast.contains("the self-test of tiny failed: golden text 0 alone and together"), "{fast}");
    assert!(fast.contains("forebay check --deep") && fast.contains("model.kernel=candle"), "{fast}");
    let plain = refusal(Way::Fails, &|settings| settings.kernel = "candle".into());
    assert!(plain.contains("forebay model verify tiny"), "{plain}");
    let none = self_test(&bent(Way::Fails, |_| {}), &Settings { name: "instant".into(), ..settings() });
    assert_eq!(none, Ok(None));
}
