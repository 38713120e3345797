//! What the tests of the command share: a home of its own for each, and a web server that
//! misbehaves on demand.
#![allow(dead_code)]

use sha2::{Digest, Sha256};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A folder with a cache in it.
pub struct Home {
    pub folder: tempfile::TempDir,
}

impl Home {
    pub fn new() -> Home {
        Home { folder: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file and returns its path.
    pub fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// `paceline ARGS` with this home's cache and none of the user's settings.
    pub fn command<I: IntoIterator<Item: AsRef<std::ffi::OsStr>>>(&self, args: I) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
        for (name, _) in std::env::vars() {
            if ["PACELINE_", "PIP_", "HTTP", "http", "ALL_PROXY", "all_proxy"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
            {
                command.env_remove(name);
            }
        }
        command.env("PACELINE_CACHE", self.path("cache")).current_dir(self.folder.path());
        command.args(args);
        command
    }

    pub fn run<I: IntoIterator<Item: AsRef<std::ffi::OsStr>>>(&self, args: I) -> Ran {
        Ran::of(self.command(args).output().unwrap())
    }

    /// The names in the cache's folder of models, all of them.
    pub fn models(&self) -> Vec<String> {
        let Ok(folder) = std::fs::read_dir(self.path("cache/models")) else { return Vec::new() };
        let mut names: Vec<String> =
            folder.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// What a command did.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    pub fn of(output: Output) -> Ran {
        Ran {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    #[track_caller]
    pub fn succeeds(self) -> Ran {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// Asserts failure with code 1 and one line on stderr that holds each of `parts`.
    #[track_caller]
    pub fn fails_with(self, parts: &[&str]) -> Ran {
        self.ends_with_one_line(1, parts)
    }

    /// The same with code 2.
    #[track_caller]
    pub fn refused_with(self, parts: &[&str]) -> Ran {
        self.ends_with_one_line(2, parts)
    }

    #[track_caller]
    fn ends_with_one_line(self, code: i32, parts: &[&str]) -> Ran {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(self.out.is_empty(), "{self:?}");
        assert_eq!(self.err.lines().count(), 1, "not one line: {self:?}");
        for part in parts {
            assert!(self.err.contains(part), "{part:?} is not in {self:?}");
        }
        self
    }
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// How the server answers a path.
#[derive(Clone)]
pub enum Answer {
    /// The whole file.
    Whole(Vec<u8>),
    /// A header that promises more than comes before the connection is closed.
    Cut(Vec<u8>, usize),
    /// Some bytes, and then nothing.
    Stall(Vec<u8>, usize),
    /// A status line.
    Status(&'static str),
}

/// A web server on a port of its own, for the time of the test process.
pub struct Web {
    pub url: String,
    pub requests: Arc<AtomicUsize>,
    answer: Arc<Mutex<Answer>>,
}

impl Web {
    pub fn new(answer: Answer) -> Web {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(AtomicUsize::new(0));
        let answer = Arc::new(Mutex::new(answer));
        let shared = (requests.clone(), answer.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (requests, answer) = shared.clone();
                std::thread::spawn(move || {
                    requests.fetch_add(1, Ordering::SeqCst);
                    let answer = answer.lock().unwrap().clone();
                    // The client may go away at any time.
                    let _ = serve(stream, answer);
                });
            }
        });
        Web { url, requests, answer }
    }

    pub fn set(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }

    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

fn serve(mut stream: TcpStream, answer: Answer) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?);
    let (mut line, mut body_len) = (String::new(), 0);
    while lines.read_line(&mut line)? > 2 {
        let line = std::mem::take(&mut line).to_ascii_lowercase();
        if let Some(length) = line.strip_prefix("content-length:") {
            body_len = length.trim().parse().unwrap();
        }
    }
    // Closing a connection with unread bytes would cut off the answer.
    std::io::copy(&mut lines.take(body_len), &mut std::io::sink())?;
    let head = |length: usize| {
        format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n")
    };
    match answer {
        Answer::Whole(bytes) => {
            stream.write_all(head(bytes.len()).as_bytes())?;
            stream.write_all(&bytes)
        }
        Answer::Cut(bytes, promised) => {
            stream.write_all(head(promised).as_bytes())?;
            stream.write_all(&bytes)
        }
        Answer::Stall(bytes, promised) => {
            stream.write_all(head(promised).as_bytes())?;
            stream.write_all(&bytes)?;
            std::thread::sleep(std::time::Duration::from_secs(30));
            Ok(())
        }
        Answer::Status(status) => {
            write!(stream, "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        }
    }
}

/// Writes `NAME-1.0-py3-none-any.whl` with one file in it.
pub fn write_wheel(folder: &Path, name: &str, inside: &str, bytes: &[u8]) {
    use zip::write::SimpleFileOptions;
    std::fs::create_dir_all(folder).unwrap();
    let snake = name.replace('-', "_");
    let file = std::fs::File::create(folder.join(format!("{snake}-1.0-py3-none-any.whl"))).unwrap();
    let mut wheel = zip::ZipWriter::new(file);
    let mut add = |path: String, bytes: &[u8]| {
        wheel.start_file(path, SimpleFileOptions::default()).unwrap();
        wheel.write_all(bytes).unwrap();
    };
    let info = format!("{snake}-1.0.dist-info");
    add(inside.to_owned(), bytes);
    add(
        format!("{info}/METADATA"),
        format!("Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n").as_bytes(),
    );
    add(
        format!("{info}/WHEEL"),
        b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    );
    add(format!("{info}/RECORD"), b"");
    wheel.finish().unwrap();
}
