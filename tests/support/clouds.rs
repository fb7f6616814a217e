//! Object stores of others, over a folder's files: servers that behave like S3 and like Azure Blob Storage.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::program::{PATIENCE, Running};
use crate::python;

/// moto's S3 server, which checks signatures. Ended when dropped.
#[derive(Debug)]
pub struct S3 {
    running: Running,
    /// `http://127.0.0.1:PORT`
    pub endpoint: String,
    pub key: String,
    pub secret: String,
}

impl S3 {
    /// Starts it with one bucket, in which the folder's files are, with `prefix` before their names.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(folder: &Path, bucket: &str, prefix: &str) -> S3 {
        let mut command = Command::new(python::interpreter());
        command.arg(crate::root().join("tests/python/s3_server.py")).arg(folder).args([bucket, prefix]);
        let mut running = Running::start(command);
        let line = running.line(PATIENCE, |line| line.starts_with('{'));
        let told: Value = serde_json::from_str(&line).expect("JSON");
        let text = |name: &str| told[name].as_str().expect("text").to_owned();
        let endpoint = format!("http://127.0.0.1:{}", told["port"]);
        S3 { endpoint, key: text("key"), secret: text("secret"), running }
    }

    /// Uploads the folder's files as they are now.
    ///
    /// # Panics
    /// When it does not say that it did.
    pub fn upload(&mut self) {
        self.running.signal("HUP");
        self.running.line(PATIENCE, |line| line == "uploaded");
    }

    /// What a user of this store has in the environment.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ACCESS_KEY_ID", self.key.clone()),
            ("AWS_SECRET_ACCESS_KEY", self.secret.clone()),
            ("AWS_ENDPOINT_URL", self.endpoint.clone()),
            ("AWS_REGION", "us-east-1".to_owned()),
        ]
    }
}

/// Azurite. Ended when dropped.
#[derive(Debug)]
pub struct Azurite {
    _running: Running,
    /// `http://127.0.0.1:PORT`
    pub endpoint: String,
}

impl Azurite {
    /// The account that every Azurite has, and its key, which is public.
    pub const ACCOUNT: &str = "devstoreaccount1";
    pub const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

    /// Starts it with one container, in which the folder's files are, with `prefix` before their names. `None`, said
    /// loudly, where it cannot be installed.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(folder: &Path, container: &str, prefix: &str) -> Option<Azurite> {
        let installed = Command::new(crate::root().join("scripts/azurite")).stderr(Stdio::inherit()).output();
        let Some(main) = installed.ok().filter(|output| output.status.success()) else {
            // Not by a macro, whose output nobody sees when the test passes.
            let _ = writeln!(std::io::stderr(), "!! SKIPPED: az://: scripts/azurite cannot install Azurite here");
            return None;
        };
        let main = String::from_utf8(main.stdout).expect("a path");
        let mut command = Command::new("node");
        command.arg(main.trim()).args(["--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence"]);
        command.args(["--skipApiVersionCheck", "--disableTelemetry"]);
        let mut running = Running::start(command);
        let line = running.line(PATIENCE, |line| line.contains("listens on http://"));
        let endpoint = line[line.find("http://").expect("just seen")..].trim().to_owned();
        let arguments = [&endpoint, Azurite::ACCOUNT, Azurite::KEY, container, prefix];
        let arguments = arguments.map(std::ffi::OsStr::new).into_iter().chain([folder.as_os_str()]);
        python::run("azure_put.py", arguments);
        Some(Azurite { _running: running, endpoint })
    }

    /// What a user of this store has in the environment.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AZURE_STORAGE_ACCOUNT_NAME", Azurite::ACCOUNT.to_owned()),
            ("AZURE_STORAGE_ACCOUNT_KEY", Azurite::KEY.to_owned()),
            ("AZURE_STORAGE_ENDPOINT", format!("{}/{}", self.endpoint, Azurite::ACCOUNT)),
            ("AZURE_ALLOW_HTTP", "true".to_owned()),
        ]
    }
}
