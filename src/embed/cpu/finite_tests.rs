//! That integers overflow nowhere where f32 does not: what the promise of a second try in f32 comes to in i16.

use std::path::Path;

use proptest::prelude::*;

use super::{
    finish::Then,
    kernel::Pair,
    packed::Packed,
    product::{Linear, Side, Weights as Form},
    *,
};
use crate::{
    embed::{Embed, Tokens, expect::Family, local, local::LocalModel},
    error::Class,
    testkit::tiny,
};

/// `rows · weightsᵀ` in both forms.
fn products<I: Isa<MR, NR>, const MR: usize, const NR: usize>(
    isa: I,
    (rows, weights): (&[f32], &[f32]),
    width: usize,
) -> [Vec<f32>; 2] {
    let out = weights.len() / width;
    [Form::F32(Packed::new(weights, width)), Form::I16(Packed::<Pair, NR>::new(weights, width))].map(|form| {
        let linear: Linear<NR> = Linear { weights: form, bias: vec![0.0; out] };
        let mut result = vec![0.0; rows.len() / width * out];
        isa.product(rows, &linear, 0..linear.panels(), Then::Keep, &mut result, &mut Side::default());
        result
    })
}

/// Numbers of every size up to 2⁵⁶ (7·10¹⁶), and some that are nothing: one of them may stand among the smallest.
fn numbers(count: usize) -> impl Strategy<Value = Vec<f32>> {
    let number = (-140..=56_i32, -1.0_f32..1.0).prop_map(|(exponent, part)| part * 2.0_f32.powi(exponent));
    prop::collection::vec(prop_oneof![9 => number, 1 => Just(0.0)], count)
}

fn same_are_finite<I: Isa<MR, NR>, const MR: usize, const NR: usize>(
    isa: Option<I>,
    numbers: (&[f32], &[f32]),
    width: usize,
) -> Result<(), TestCaseError> {
    let Some(isa) = isa else { return Ok(()) };
    let [exact, integers] = products(isa, numbers, width);
    for (exact, integer) in exact.iter().zip(&integers) {
        prop_assert!(exact.is_finite() && integer.is_finite(), "{exact} and {integer} with {}", I::NAME);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Beyond this size f32 fails by itself: a normalisation squares its numbers, and 2⁶⁴ squared is none any more.
    #[test]
    fn a_product_of_finite_numbers_is_finite(
        (rows, weights, width) in (1_usize..14, 1_usize..40, 1_usize..600)
            .prop_flat_map(|(n, out, width)| (numbers(n * width), numbers(out * width), Just(width))),
    ) {
        same_are_finite(Some(Portable), (&rows, &weights), width)?;
        #[cfg(target_arch = "x86_64")]
        {
            same_are_finite(avx::Avx2::detect(), (&rows, &weights), width)?;
            same_are_finite(avx::Avx512::detect(), (&rows, &weights), width)?;
            same_are_finite(amx::Amx::detect(), (&rows, &weights), width)?;
        }
    }
}

/// Changes the numbers of tensors in a file of weights, by name.
fn change(file: &Path, mut change: impl FnMut(&str, &mut [f32])) {
    let mut bytes = std::fs::read(file).unwrap();
    let (length, rest) = bytes.split_at_mut(8);
    let length = usize::try_from(u64::from_le_bytes(length.try_into().unwrap())).unwrap();
    let (header, data) = rest.split_at_mut(length);
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(header).unwrap();
    for (name, about) in header {
        let end = |at: usize| usize::try_from(about["data_offsets"][at].as_u64().unwrap()).unwrap();
        let tensor = data[end(0)..end(1)].as_chunks_mut::<4>().0;
        let mut numbers: Vec<f32> = tensor.iter().map(|number| f32::from_le_bytes(*number)).collect();
        change(&name, &mut numbers);
        tensor.iter_mut().zip(numbers).for_each(|(to, number)| *to = number.to_le_bytes());
    }
    std::fs::write(file, bytes).unwrap();
}

/// A model whose weights were changed, in both forms.
fn models(changed: impl FnMut(&str, &mut [f32])) -> [LocalModel; 2] {
    let folder = tempfile::tempdir().unwrap();
    let expect = tiny::write(folder.path(), Family::XlmRoberta, 7).unwrap();
    change(&folder.path().join("model.safetensors"), changed);
    ["f32", "i16"].map(|compute| {
        let settings = Settings { compute: compute.into(), ..local::tests::settings() };
        LocalModel::open(folder.path(), &expect, &settings).unwrap()
    })
}

/// What became of each text: its vector, or the class of its fault.
fn outcomes(model: &LocalModel, texts: &[Tokens]) -> Vec<Result<Vec<f32>, Class>> {
    let results = model.embed(&texts.iter().collect::<Vec<_>>()).unwrap();
    results.into_iter().map(|one| one.map(|one| one.dense).map_err(|fault| fault.class)).collect()
}

fn texts(model: &LocalModel) -> Vec<Tokens> {
    ["water", "the gate and the river", "light stone basin flow of the dam", "水 and 東京"]
        .map(|text| model.tokenize(text).unwrap())
        .into()
}

#[test]
fn outliers_that_f32_holds_are_held_in_i16() {
    // One weight of each matrix, or all of them; half precision ends at 6·10⁴.
    for (every, size) in [(97, 1e3), (97, 1e6), (97, 1e12), (1, 1e6), (1, 1e12)] {
        let [exact, integers] = models(|name, numbers| {
            if name.ends_with("dense.weight") {
                numbers.iter_mut().step_by(every).for_each(|number| *number *= size);
            }
        });
        let texts = texts(&exact);
        for (exact, integer) in outcomes(&exact, &texts).into_iter().zip(outcomes(&integers, &texts)) {
            assert!(exact.is_ok() && integer.is_ok(), "{size}: {exact:?} and {integer:?}");
        }
    }
}

#[test]
fn what_is_not_finite_in_i16_is_not_in_f32_either_and_is_buried() {
    let [exact, integers] = models(|name, numbers| {
        if name == "encoder.layer.0.intermediate.dense.weight" {
            numbers.iter_mut().for_each(|number| *number = number.signum() * 3e38);
        }
    });
    let texts_of = texts(&exact);
    for model in [&exact, &integers] {
        assert_eq!(outcomes(model, &texts_of), vec![Err(Class::NonFiniteVector); texts_of.len()]);
    }
    // The word of one token: its texts alone.
    let word = texts(&exact)[0].ids[1];
    for nothing in [f32::NAN, f32::INFINITY] {
        for model in models(|name, numbers| {
            if name == "embeddings.word_embeddings.weight" {
                numbers[word as usize * 32] = nothing;
            }
        }) {
            let faults: Vec<Option<Class>> =
                outcomes(&model, &texts(&model)).into_iter().map(Result::err).collect();
            assert_eq!(faults, [Some(Class::NonFiniteVector), None, None, None]);
        }
    }
}
