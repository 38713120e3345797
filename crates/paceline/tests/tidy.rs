//! The walls between the rooms, as tests: who may depend on whom, where `unsafe` and the
//! environment may be touched, how long a file may grow.

use std::path::{Path, PathBuf};

/// Each crate and the workspace crates that it may depend on.
const EDGES: [(&str, &[&str]); 4] = [
    ("kernels", &[]),
    ("model", &["kernels"]),
    ("engine", &["model"]),
    ("paceline", &["kernels", "model", "engine"]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a source folder") {
        let path = entry.expect("a folder entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn every_source(mut check: impl FnMut(&str, &str)) {
    let mut paths = Vec::new();
    sources(&root().join("crates"), &mut paths);
    assert!(paths.len() > 20, "the sources were not found");
    for path in paths {
        let name = path.strip_prefix(root()).expect("below the root").display().to_string();
        check(&name, &std::fs::read_to_string(&path).expect("a readable source"));
    }
}

#[test]
fn crates_depend_one_way() {
    for (name, allowed) in EDGES {
        let manifest = root().join("crates").join(name).join("Cargo.toml");
        let manifest = std::fs::read_to_string(manifest).expect("a manifest");
        for (other, _) in EDGES.into_iter().filter(|&(other, _)| other != name) {
            let depends =
                manifest.lines().any(|line| line.starts_with(&format!("paceline-{other}")));
            assert!(!depends || allowed.contains(&other), "{name} must not depend on {other}");
        }
    }
}

#[test]
fn unsafe_stays_in_its_rooms() {
    every_source(|name, text| {
        let allowed = name.starts_with("crates/kernels/")
            || name == "crates/model/src/file/mmap.rs"
            || name.ends_with("tidy.rs");
        assert!(
            allowed || !text.contains("allow(unsafe_code)"),
            "{name} must not allow unsafe code"
        );
    });
}

#[test]
fn only_the_binary_reads_the_environment() {
    every_source(|name, text| {
        let library = ["kernels", "model", "engine"]
            .iter()
            .any(|library| name.starts_with(&format!("crates/{library}/src/")));
        assert!(!library || !text.contains("env::var"), "{name} must not read the environment");
    });
}

#[test]
fn no_instruction_set_is_fixed_at_compile_time() {
    every_source(|name, text| {
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let found = code.filter(|line| line.contains("cfg(target_feature")).count();
        assert!(found == 0 || name.ends_with("tidy.rs"), "{name} fixes an instruction set");
    });
}

#[test]
fn files_stay_short() {
    every_source(|name, text| {
        let len = text.lines().count();
        assert!(len <= 700, "{name} has {len} lines: split it");
    });
}
