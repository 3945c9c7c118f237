//! `model pull`, as a user meets it: the hub (a small server here that answers as it does, faults included), a
//! package mirror, a folder, a bundle; and what is left after each way to fail. No test needs a network.

#[path = "model_pull/cases.rs"]
mod cases;
#[path = "model_pull/fake_hub.rs"]
mod fake_hub;
#[path = "model_pull/from_bundle.rs"]
mod from_bundle;
#[path = "model_pull/from_folder.rs"]
mod from_folder;
#[path = "model_pull/from_hub.rs"]
mod from_hub;
#[path = "model_pull/from_hub_faults.rs"]
mod from_hub_faults;
#[path = "model_pull/from_wheel.rs"]
mod from_wheel;
#[path = "model_pull/scene.rs"]
mod scene;
