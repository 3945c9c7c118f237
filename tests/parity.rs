//! Vectors against the reference.

#[test]
#[ignore = "writes the tiny models for tests/golden/make.py"]
fn dump() {
    let out = std::env::var("FOREBAY_TINY_OUT").expect("FOREBAY_TINY_OUT names a folder");
    for family in [forebay::embed::expect::Family::Bert, forebay::embed::expect::Family::XlmRoberta] {
        let folder = std::path::Path::new(&out).join(family.as_str());
        forebay::testkit::tiny::write(&folder, family, 7).unwrap();
    }
}
