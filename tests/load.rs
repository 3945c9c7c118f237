//! Loading holds the packed weights and little beside them at any moment: read tensor by tensor, packed, let go. So there
//! is no setting for a machine with little memory. In a process of its own, whose peak the kernel keeps.
#![cfg(feature = "testkit")]

use std::path::PathBuf;

use forebay::{
    chunk::Digest,
    embed::{Embed, Settings, expect::Expect, heap, local::LocalModel},
    testkit::tiny::{self, Like, Shape},
};

/// 38 million weights in twelve layers, as a model of a tenth of bge-m3's size has them.
const SHAPE: Shape = Shape { width: 512, inner: 2_048, layers: 12, heads: 8 };
const LIKE: Like = Like { shape: SHAPE, max_length: 512, ..Like::XLM_ROBERTA };

/// Highest resident bytes of this process so far; `None` without /proc.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? << 10)
}

#[test]
fn the_peak_while_loading_is_near_the_packed_size() {
    if peak().is_none() {
        println!("skipped: there is no /proc here");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // Written here, as that takes memory, too; the child only loads.
    tiny::write_like(folder.path(), &LIKE, 7).unwrap();
    for (compute, bytes) in [("f32", 4), ("i16", 2)] {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "child_loads"])
            .envs([("FOLDER", folder.path().as_os_str()), ("COMPUTE", compute.as_ref())])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout).into_owned();
        assert!(child.status.success(), "{said}{}", String::from_utf8_lossy(&child.stderr));
        let took = said.lines().find_map(|line| line.split_once("took: ")).expect(&said).1;
        let took: usize = took.trim().parse().unwrap();
        let packed = SHAPE.layers * (4 * SHAPE.width + 2 * SHAPE.inner) * SHAPE.width * bytes;
        println!("{compute}: {} MiB packed, {} MiB at the peak", packed >> 20, took >> 20);
        assert!(took > packed * 9 / 10, "{compute}: it was not loaded, or not measured: {took} bytes");
        assert!(took < packed * 11 / 10 + (4 << 20), "{compute}: {took} bytes for {packed}");
    }
}

#[test]
#[ignore = "run by the_peak_while_loading_is_near_the_packed_size, in a process of its own"]
fn child_loads() {
    heap::keep_flat();
    let folder = PathBuf::from(std::env::var_os("FOLDER").expect("the parent says where"));
    let compute = std::env::var("COMPUTE").expect("the parent says how");
    let expect = Expect {
        name: LIKE.name.into(),
        revision: "seed-7".into(),
        family: LIKE.family,
        pooling: LIKE.pooling,
        normalize: true,
        max_length: LIKE.max_length,
        dim: SHAPE.width,
        document_prefix: String::new(),
        query_prefix: String::new(),
        weights_sha256: Digest::of(b""),
        tokenizer_sha256: Digest::of(b""),
        sparse_head: None,
        multi_head: None,
    };
    let defaults: forebay::config::Config = toml::from_str(forebay::config::DEFAULTS).unwrap();
    let settings = Settings { device: "cpu".into(), threads: 2, compute, ..defaults.model };
    let before = peak().unwrap();
    let model = LocalModel::open(&folder, &expect, &settings).unwrap();
    let took = peak().unwrap() - before;
    assert!(model.embed(&[&model.golden()]).unwrap()[0].is_ok());
    println!("took: {took}");
}
