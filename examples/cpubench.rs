#![allow(unsafe_code, clippy::all, unused_crate_dependencies)]
use forebay::{embed::{Embed, Settings, Tokens, expect::Family, local::LocalModel}, testkit::tiny};
fn cpu() -> f64 { let mut t = libc::timespec{tv_sec:0,tv_nsec:0}; unsafe{libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID,&mut t);} t.tv_sec as f64+t.tv_nsec as f64/1e9 }
fn main() {
    let threads: usize = std::env::args().nth(1).unwrap().parse().unwrap();
    let reps: usize = std::env::args().nth(2).unwrap().parse().unwrap();
    let s = Settings{name:"x".into(),dir:String::new(),device:"cpu".into(),compute:"f32".into(),max_length:0,outputs:vec!["dense".into()],truncation:"truncate".into(),pass_tokens:4096,threads};
    let dir = std::path::PathBuf::from("/tmp/cpubench-model");
    let _ = std::fs::create_dir_all(&dir);
    let like = tiny::Like { shape: tiny::BGE_M3_OF_6, ..tiny::Like::XLM_ROBERTA };
    let expect = tiny::write_like(&dir, &like, 1).unwrap();
    let _ = Family::Bert;
    let model = LocalModel::open(&dir, &expect, &s).unwrap();
    let mut r = fastrand::Rng::with_seed(7);
    let mut texts: Vec<Tokens> = vec![]; let mut sum = 0;
    while sum < 3000 { let n = (8 + r.usize(0..18).pow(2)).min(512); texts.push(Tokens{ids:(0..n).map(|_| r.u32(5..40)).collect(),truncated:false}); sum += n; }
    let lengths: Vec<usize> = texts.iter().map(|t| t.ids.len()).collect();
    for _ in 0..reps {
        let (c, w) = (cpu(), std::time::Instant::now());
        for pass in model.plan(&lengths) { let b: Vec<&Tokens> = pass.iter().map(|at| &texts[*at]).collect(); assert!(model.embed(&b).unwrap().iter().all(Result::is_ok)); }
        let (c, w) = (cpu()-c, w.elapsed().as_secs_f64());
        // flops: per token per layer 2*12*1024^2
        println!("threads {threads}: {sum} tokens, cpu {c:.2}s wall {w:.2}s  {:.0} tok/cpu-s  {:.1} GFLOP/cpu-s", sum as f64/c, sum as f64*6.0*2.0*12.0*1048576.0/c/1e9);
    }
}
