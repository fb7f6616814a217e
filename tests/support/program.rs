//! The `forebay` program as its users meet it: started, watched, ended.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take that should take a moment. Generous: the machine may be busy with other tests.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The program, built with the profile that this test or bench was built with.
///
/// Cargo tells only a package's own tests where its programs are, so this asks cargo to build it: a moment when it is
/// there already, and never a stale one.
///
/// # Panics
/// When it does not build.
pub fn forebay() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let me = std::env::current_exe().expect("our own path");
        let folder = me.ancestors().nth(2).expect("target/PROFILE/deps/us");
        let mut cargo = cargo("build");
        cargo.args(["--quiet", "--bin", "forebay"]);
        let status = cargo.status().expect("cargo runs");
        assert!(status.success(), "forebay does not build: {status}");
        folder.join("forebay")
    })
}

/// `cargo WHAT --workspace`, for the profile and the target folder that this test or bench was built with.
fn cargo(what: &str) -> Command {
    let me = std::env::current_exe().expect("our own path");
    let folder = me.ancestors().nth(2).expect("target/PROFILE/deps/us");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args([what, "--workspace", "--target-dir"]).arg(folder.parent().expect("target"));
    cargo.current_dir(crate::root());
    if folder.file_name() == Some(OsStr::new("release")) {
        cargo.arg("--release");
    }
    // What cargo told us about our own package would look to build scripts (ring's, for one) like a change: they would
    // run again now, and once more for the next build outside, and all that depends on them be compiled anew each time.
    for (name, _) in std::env::vars_os() {
        let told = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_", "CARGO_BIN_"];
        if told.iter().any(|told| name.as_encoded_bytes().starts_with(told.as_bytes())) {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// The programs of a package's own tests, by the name of their target (the library's own is the crate's name): built like
/// [`forebay`], for tests that run them elsewhere than here.
///
/// # Panics
/// When they do not build.
pub fn test_programs(package: &str) -> Vec<(String, PathBuf)> {
    let mut cargo = cargo("test");
    cargo.args(["--no-run", "--quiet", "--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
    let output = cargo.output().expect("cargo runs");
    assert!(output.status.success(), "the tests do not build: {}", output.status);
    let text = String::from_utf8(output.stdout).expect("cargo prints JSON");
    let messages = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let theirs = |message: &serde_json::Value| {
        let id = message["package_id"].as_str().unwrap_or_default();
        id.contains(&format!("#{package}@")) && message["profile"]["test"] == true
    };
    let program = |message: serde_json::Value| {
        let name = message["target"]["name"].as_str()?.to_owned();
        Some((name, PathBuf::from(message["executable"].as_str()?)))
    };
    messages.filter(theirs).filter_map(program).collect()
}

/// A loopback address that is free and stays so between two servers that use it one after the other: its port is below those
/// that the system gives to sockets without one.
///
/// # Panics
/// When a thousand ports in a row are taken.
pub fn lasting_address() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = std::process::id() as u16 % 16_000;
    (0..1000)
        .map(|_| 12_000 + (start + NEXT.fetch_add(1, Ordering::Relaxed)) % 16_000)
        .map(|port| format!("127.0.0.1:{port}"))
        .find(|address| std::net::UdpSocket::bind(address).is_ok())
        .expect("a free port")
}

/// What a finished run of the program left.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Finished {
    /// Standard output as text.
    ///
    /// # Panics
    /// When it is not UTF-8.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("UTF-8 output")
    }
}

/// Runs `forebay` with these arguments to its end, which must come within [`PATIENCE`].
///
/// # Panics
/// When it does not start or does not end.
pub fn run<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(arguments: I) -> Finished {
    start(arguments).finish(PATIENCE)
}

/// Starts `forebay` with these arguments.
pub fn start<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(arguments: I) -> Running {
    let mut command = Command::new(forebay());
    command.args(arguments).env_remove("FOREBAY_TRUST").env_remove("FOREBAY_CA");
    Running::start(command)
}

/// A program that runs. Killed when dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    lines: Mutex<Receiver<String>>,
    stdout: Option<thread::JoinHandle<Vec<u8>>>,
    stderr: Arc<Mutex<String>>,
    stderr_reader: Option<thread::JoinHandle<()>>,
}

impl Running {
    /// Starts any program, with its output watched.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(mut command: Command) -> Running {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (send, lines) = channel();
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let stdout = thread::spawn(move || {
            let mut all = Vec::new();
            loop {
                let before = all.len();
                match output.read_until(b'\n', &mut all) {
                    Ok(0) | Err(_) => return all,
                    Ok(_) => drop(send.send(String::from_utf8_lossy(&all[before..]).trim_end().to_owned())),
                }
            }
        });
        let stderr = Arc::new(Mutex::new(String::new()));
        let (mut complaints, kept) = (child.stderr.take().expect("piped"), Arc::clone(&stderr));
        let stderr_reader = thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = complaints.read(&mut buffer) {
                kept.lock().expect("no panics").push_str(&String::from_utf8_lossy(&buffer[..length]));
            }
        });
        Running { child, lines: Mutex::new(lines), stdout: Some(stdout), stderr, stderr_reader: Some(stderr_reader) }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it wrote to standard error so far.
    pub fn stderr(&self) -> String {
        self.stderr.lock().expect("no panics").clone()
    }

    /// The next line of standard output for which `wanted` holds; others are passed over.
    ///
    /// # Panics
    /// When it ends, or `patience` does, before there is one.
    pub fn line(&mut self, patience: Duration, wanted: impl Fn(&str) -> bool) -> String {
        let until = Instant::now() + patience;
        loop {
            match self.lines.get_mut().expect("no panics").recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                Ok(line) if wanted(&line) => return line,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => panic!("no such line within {patience:?}\n{}", self.stderr()),
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait();
                    panic!("ended ({status:?}) without such a line\n{}", self.stderr())
                }
            }
        }
    }

    /// Sends a signal by name: `TERM`, `INT`, `STOP`, `CONT`.
    ///
    /// # Panics
    /// When it cannot be sent.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.id().to_string()).status();
        assert!(status.expect("kill runs").success(), "kill -{name} {}", self.id());
    }

    /// Bytes that it has read from files so far, cached or not. What arrives over the network does not count.
    ///
    /// # Panics
    /// When it has ended.
    pub fn bytes_read(&self) -> u64 {
        let path = format!("/proc/{}/io", self.id());
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let figure = text.lines().find_map(|line| line.strip_prefix("rchar: ")).expect("rchar");
        figure.trim().parse().expect("a number")
    }

    /// Its status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("our own child")
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When that takes longer than `patience`.
    pub fn finish(mut self, patience: Duration) -> Finished {
        let until = Instant::now() + patience;
        let status = loop {
            if let Some(status) = self.ended() {
                break status;
            }
            assert!(Instant::now() < until, "still runs after {patience:?}\n{}", self.stderr());
            thread::sleep(Duration::from_millis(5));
        };
        let stdout = self.stdout.take().map(|reader| reader.join().expect("no panics")).unwrap_or_default();
        if let Some(reader) = self.stderr_reader.take() {
            reader.join().expect("no panics");
        }
        Finished { code: status.code(), stdout, stderr: self.stderr() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `forebay serve` on a free port of loopback.
#[derive(Debug)]
pub struct Server {
    pub running: Running,
    /// `https://127.0.0.1:PORT`
    pub url: String,
    /// `SHA256:…`, as `--trust` wants it.
    pub trust: String,
}

impl Server {
    /// Starts it and waits until all of `datasets` (name, shards) are ready.
    ///
    /// # Panics
    /// When one does not become ready.
    pub fn start(datasets: &[(&str, &str)], state: &Path, extra: &[&str]) -> Server {
        let mut server = Server::start_unready(datasets, state, extra);
        for (name, _) in datasets {
            let ready = format!("ready: {name}");
            server.running.line(PATIENCE, |line| line == ready);
        }
        server
    }

    /// Starts it and waits until it listens.
    ///
    /// # Panics
    /// When it does not.
    pub fn start_unready(datasets: &[(&str, &str)], state: &Path, extra: &[&str]) -> Server {
        let mut command = Command::new(forebay());
        Server::arguments(&mut command, datasets, state, extra);
        Server::watch(command)
    }

    /// What `forebay serve` is called with: a free port, unless `extra` says where to listen.
    pub fn arguments(command: &mut Command, datasets: &[(&str, &str)], state: &Path, extra: &[&str]) {
        command.args(["serve", "--state-dir"]).arg(state).args(extra);
        if !extra.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        command.args(datasets.iter().map(|(name, shards)| format!("{name}={shards}")));
    }

    /// Starts a command that runs `forebay serve` in the end, and waits until it listens.
    ///
    /// # Panics
    /// When it does not.
    pub fn watch(command: Command) -> Server {
        let mut running = Running::start(command);
        let line = running.line(PATIENCE, |line| line.starts_with("listening on "));
        let url = line["listening on ".len()..].trim().to_owned();
        let line = running.line(PATIENCE, |line| line.contains("SHA256:"));
        let trust = line[line.find("SHA256:").expect("just seen")..].split_whitespace().next().expect("not empty");
        let trust = trust.to_owned();
        Server { running, url, trust }
    }

    /// `https://127.0.0.1:PORT/NAME`
    pub fn dataset(&self, name: &str) -> String {
        format!("{}/{name}", self.url)
    }

    /// Runs a client command against a dataset of this server: `verb URL/NAME --trust … extra…`.
    pub fn client(&self, verb: &str, name: &str, extra: &[&str]) -> Running {
        let url = self.dataset(name);
        start([verb, &url, "--trust", &self.trust].into_iter().chain(extra.iter().copied()))
    }
}
