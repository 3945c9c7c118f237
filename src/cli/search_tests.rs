use super::*;

#[test]
fn weights_are_three_numbers() {
    assert_eq!(weights("0.4,0.2,0.4"), Ok(HYBRID));
    assert_eq!(weights(" 1, 0 ,.5"), Ok([1.0, 0.0, 0.5]));
    for bad in ["", "1", "1,2", "1,2,3,4", "1,2,x", "1,2,3,x", "-1,1,1", "0,0,0", "nan,1,1", "inf,1,1"] {
        assert!(weights(bad).unwrap_err().contains("0.4,0.2,0.4"), "{bad}");
    }
}

#[test]
fn each_mode_has_its_weights() {
    assert_eq!(weights_of(Mode::Sparse, None), Ok([0.0, 1.0, 0.0]));
    assert_eq!(weights_of(Mode::Hybrid, None), Ok([0.4, 0.2, 0.4]));
    assert_eq!(weights_of(Mode::Hybrid, Some([1.0, 2.0, 3.0])), Ok([1.0, 2.0, 3.0]));
    assert!(weights_of(Mode::Multi, Some(HYBRID)).unwrap_err().contains("--mode hybrid"));
}

#[test]
fn an_output_that_is_not_there_is_refused_with_what_to_type() {
    let list = |outputs: &[&str]| outputs.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let store = |outputs: &str| format!("bge-m3@5617a9f6/{outputs}-1024/f32/8192");
    let said = |weights, asked: &[&str], held: &str| are_there(weights, &list(asked), Some(&store(held)));
    let (sparse, hybrid) = ([0.0, 1.0, 0.0], HYBRID);
    assert_eq!(said(sparse, &["sparse", "dense"], "dense+sparse"), Ok(()));
    assert_eq!(said([0.7, 0.3, 0.0], &["dense", "sparse"], "dense+sparse"), Ok(()));
    assert_eq!(are_there(hybrid, &list(&OUTPUTS), None), Ok(()));

    let message = said(hybrid, &["dense"], "dense").unwrap_err();
    assert!(
        message.contains("no sparse and multi output (bge-m3@5617a9f6/dense-1024/f32/8192)"),
        "{message}"
    );
    assert!(message.ends_with("forebay run --reembed --set model.outputs=dense,sparse,multi"), "{message}");
    let message = said(sparse, &OUTPUTS, "dense+multi").unwrap_err();
    assert!(message.ends_with("--set model.outputs=dense,sparse,multi"), "nothing is lost: {message}");
    let message = said(sparse, &["dense"], "dense+sparse").unwrap_err();
    assert!(message.contains("[\"dense\"] has no sparse: type"), "{message}");
    assert!(message.ends_with("type --set model.outputs=dense,sparse"), "{message}");
}

#[cfg(feature = "testkit")]
#[test]
fn every_mode_finds_the_text_itself_first() {
    use crate::{
        chunk::{ChunkKey, Digest, chunk_id},
        config::Request,
        embed::{expect::Family, local::LocalModel},
        sink::{Row, open},
        testkit::tiny,
    };
    let folder = tempfile::tempdir().unwrap();
    let expect = tiny::write(folder.path(), Family::XlmRoberta, 7).unwrap();
    let request = Request { dir: folder.path().into(), ..Request::default() };
    let mut config = Config::load(&request).unwrap().config;
    (config.model.device, config.model.threads) = ("cpu".into(), 1);
    config.model.outputs = OUTPUTS.map(str::to_owned).to_vec();
    let model = LocalModel::open(folder.path(), &expect, &config.model).unwrap();
    let sink = open(&config.sink, folder.path()).unwrap();
    sink.preflight(model.identity(), model.dim(), "store", false).unwrap();
    let texts = ["the dam and the basin", "東京 水 мир", "stone er light ing"];
    let row = |(index, text): (u64, &&str)| {
        let (key, hash) = (ChunkKey::new("d", index), Digest::of(text.as_bytes()));
        let tokens = model.tokenize(text).unwrap();
        let embedding = model.embed(&[&tokens]).unwrap().remove(0).unwrap();
        let chunk_id = chunk_id(&key, &hash);
        let (text, source_hash, content_hash) = ((*text).to_owned(), hash, hash);
        Row { key, chunk_id, source_hash, content_hash, text, meta: None, embedding }
    };
    sink.accept(&(0..).zip(&texts).map(row).collect::<Vec<_>>()).unwrap();
    assert_eq!(sink.held().unwrap(), Some(model.identity().label.clone()));
    for mode in [Mode::Dense, Mode::Sparse, Mode::Multi, Mode::Hybrid] {
        for text in texts {
            let hits = find(&model, sink.as_ref(), text, weights_of(mode, None).unwrap(), 3).unwrap();
            assert_eq!(hits[0].text.as_deref(), Some(text), "{mode:?}: {hits:?}");
        }
    }
}
