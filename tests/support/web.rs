//! Web servers of others, over a folder.

use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use forebay_transport::h3::tls::Identity;

use crate::program::{PATIENCE, Running};

/// nginx over a folder, which it also lists. Ended when dropped.
#[derive(Debug)]
pub struct Nginx {
    running: Running,
    port: u16,
    log: PathBuf,
    /// What to trust it by, of one that speaks TLS: the path of its certificate.
    pub certificate: Option<PathBuf>,
}

/// What an nginx does besides.
#[derive(Clone, Copy, Debug, Default)]
pub struct NginxOptions {
    /// Speak TLS, with a certificate of its own.
    pub tls: bool,
    /// Note requests, for [`Nginx::requests`].
    pub log: bool,
}

impl Nginx {
    /// Starts it on a free port of loopback; `scratch` is for its own files.
    ///
    /// # Panics
    /// When it is not installed, or does not answer.
    pub fn start(folder: &Path, scratch: &Path) -> Nginx {
        Nginx::with(folder, scratch, NginxOptions::default())
    }

    /// The same, with more.
    ///
    /// # Panics
    /// When it is not installed, or does not answer.
    pub fn with(folder: &Path, scratch: &Path, options: NginxOptions) -> Nginx {
        std::fs::create_dir_all(scratch).expect("a folder for nginx");
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port();
        let (own, folder) = (scratch.display(), folder.display());
        // As root its workers would be nobody, who may not look into our folders.
        let root = std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
        let user = if root { "user root;" } else { "" };
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|what| format!("{what}_temp_path {own}/{what};\n"))
            .collect();
        let log = scratch.join("requests.log");
        let noted = match options.log {
            true => format!("log_format plain '$request_method $uri $http_range'; access_log {} plain;", log.display()),
            false => "access_log off;".to_owned(),
        };
        let (mut tls, mut certificate) = (String::new(), None);
        if options.tls {
            Identity::self_signed(scratch, &["127.0.0.1".to_owned()]).expect("a certificate");
            tls = format!(" ssl; ssl_certificate {own}/identity.pem; ssl_certificate_key {own}/identity.pem");
            certificate = Some(scratch.join("certificate.pem"));
        }
        let config = format!(
            "{user}\ndaemon off; worker_processes 1; pid {own}/pid; error_log stderr;\nevents {{ worker_connections 1024; }}\n\
             http {{ {noted} sendfile on; keepalive_requests 100000;\n{temporary}\
             server {{ listen 127.0.0.1:{port}{tls}; root {folder}; autoindex on; }} }}\n"
        );
        let file = scratch.join("nginx.conf");
        std::fs::write(&file, config).expect("a configuration");
        // Debian keeps it where only root's path leads.
        let installed = Path::new("/usr/sbin/nginx");
        let mut command = Command::new(if installed.exists() { installed } else { Path::new("nginx") });
        command.arg("-p").arg(scratch).arg("-c").arg(file).arg("-e").arg("stderr");
        let mut nginx = Nginx { running: Running::start(command), port, log, certificate };
        let until = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(nginx.running.ended().is_none(), "nginx ended: {}", nginx.running.stderr());
            assert!(Instant::now() < until, "nginx does not answer: {}", nginx.running.stderr());
            thread::sleep(Duration::from_millis(10));
        }
        nginx
    }

    /// `http://127.0.0.1:PORT/path`, or `https://…` where that is what it speaks.
    pub fn url(&self, path: &str) -> String {
        let scheme = if self.certificate.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}/{path}", self.port)
    }

    /// The requests so far: method, path, and the range asked for (`-` without one).
    ///
    /// # Panics
    /// When they are not noted.
    pub fn requests(&self) -> Vec<(String, String, String)> {
        let text = std::fs::read_to_string(&self.log).expect("requests are noted");
        let mut requests = Vec::new();
        for line in text.lines() {
            let mut words = line.split(' ').map(str::to_owned);
            let mut word = || words.next().unwrap_or_default();
            requests.push((word(), word(), word()));
        }
        requests
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Its workers end with it only when it is asked.
        self.running.signal("TERM");
        let until = Instant::now() + Duration::from_secs(5);
        while self.running.ended().is_none() && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// `tests/python/rude_server.py` over a folder. Ended when dropped.
#[derive(Debug)]
pub struct Rude {
    _running: Running,
    port: u16,
}

impl Rude {
    /// # Panics
    /// When it does not start.
    pub fn start(folder: &Path) -> Rude {
        let mut command = Command::new("python3");
        command.arg(crate::root().join("tests/python/rude_server.py")).arg(folder);
        let mut running = Running::start(command);
        let port = running.line(PATIENCE, |_| true).trim().parse().expect("a port");
        Rude { _running: running, port }
    }

    /// The URL of a file, to be answered in the given mode.
    pub fn url(&self, mode: &str, name: &str) -> String {
        format!("http://127.0.0.1:{}/{mode}/{name}", self.port)
    }
}
