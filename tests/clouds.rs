//! Shards in object stores: read and served as those on this machine are, with the credentials that users of those stores have,
//! and without a byte written.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_system::clouds::{Azurite, S3};
use forebay_system::program::{self, Finished, PATIENCE, Running, Server};
use forebay_system::scratch::Scratch;
use forebay_system::tars::{self, Shards, Sizes};
use serde_json::Value;

const ORDER: [&str; 7] = ["--shuffle", "full", "--seed", "7", "--digest", "--json", "--memory=64MiB"];
/// A name whose characters mean something in URLs, patterns' or signatures' texts.
const ODD: &str = "a b%2F+&é=.tar";
const FIGURES: [&str; 4] = ["samples", "bytes", "order_digest", "set_digest"];

type Environment = [(&'static str, String)];

/// A user: a home that is empty at first, and an environment that says nothing of stores.
struct User {
    scratch: Scratch,
    home: PathBuf,
    data: PathBuf,
}

impl User {
    fn new(name: &str, shards: usize, samples: usize) -> User {
        let scratch = Scratch::new(name);
        let (home, data) = (scratch.join("home"), scratch.join("data"));
        fs::create_dir_all(home.join("tmp")).expect("a folder");
        fs::create_dir(&data).expect("a folder");
        tars::write(&data, &Shards { shards, samples, sizes: Sizes::ImageNet, seed: 3 }, |_| {}).expect("written");
        User { scratch, home, data }
    }

    fn command(&self, environment: &Environment) -> Command {
        let mut command = Command::new(program::forebay());
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| ["AWS_", "AZURE_", "XDG_"].iter().any(|start| name.starts_with(start)))
            {
                command.env_remove(name);
            }
        }
        command.env("HOME", &self.home).env("TMPDIR", self.home.join("tmp")).current_dir(self.home.join("tmp"));
        // Nobody is asked for credentials who may be at this address on the machine that runs the tests.
        command.env("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9");
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        command
    }

    fn run(&self, environment: &Environment, arguments: &[&str]) -> Finished {
        let mut command = self.command(environment);
        command.args(arguments);
        Running::start(command).finish(PATIENCE)
    }

    fn read(&self, environment: &Environment, shards: &str) -> Value {
        json(&self.run(environment, &[&["read", shards], &ORDER[..]].concat()))
    }

    fn serve(&self, environment: &Environment, shards: &str) -> Server {
        let mut command = self.command(environment);
        Server::arguments(&mut command, &[("d", shards)], &self.scratch.join("state"), &[]);
        let mut server = Server::watch(command);
        server.running.line(PATIENCE, |line| line == "ready: d");
        server
    }

    /// What is in the home, the temporary folder and the one that programs are started in.
    fn written(&self) -> Vec<PathBuf> {
        files(&self.home)
    }

    /// What reading the files themselves gives. Leaves nothing in the home.
    fn expected(&self) -> Value {
        let cache = ("XDG_CACHE_HOME", self.scratch.join("cache").display().to_string());
        self.read(&[cache], self.data.to_str().expect("UTF-8"))
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("there").flatten() {
        match entry.path() {
            path if path.is_dir() => found.append(&mut files(&path)),
            path => found.push(path),
        }
    }
    found.sort();
    found
}

fn json(finished: &Finished) -> Value {
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    serde_json::from_slice(&finished.stdout).expect("JSON")
}

fn same(found: &Value, expected: &Value, way: &str) {
    for figure in FIGURES {
        assert_eq!(found[figure], expected[figure], "{figure} of {way}");
    }
}

fn with(environment: &Environment, more: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
    let kept = environment.iter().filter(|(name, _)| !more.iter().any(|(other, _)| other == name));
    kept.cloned().chain(more.iter().map(|(name, value)| (*name, (*value).to_owned()))).collect()
}

#[test]
fn a_bucket_is_read_and_served_and_nothing_is_written() {
    let user = User::new("clouds-s3", 3, 120);
    let s3 = S3::start(&user.data, "bucket", "sets/d/");
    let (environment, expected) = (s3.environment(), user.expected());
    assert_eq!(expected["samples"], 120);
    same(&user.read(&environment, "s3://bucket/sets/d/"), &expected, "a prefix");
    same(&user.read(&environment, "s3://bucket/sets/d/*.tar"), &expected, "a pattern");
    same(&user.read(&environment, "s3://bucket/sets/d/shard-{000000..000002}.tar"), &expected, "a brace list");
    let got = user.run(&environment, &["get", "s3://bucket/sets/d/", "--sample", "5", "--field", "jpg"]);
    let local = user.run(&environment, &["get", user.data.to_str().expect("UTF-8"), "--sample", "5", "--field", "jpg"]);
    assert!(got.code == Some(0) && !got.stdout.is_empty() && got.stdout == local.stdout, "{}", got.stderr);
    fs::remove_dir_all(user.home.join(".cache")).expect("of the files on this machine, which are indexed there");
    let listed = json(&user.run(&environment, &["ls", "s3://bucket/sets/d/", "--json"]));
    assert_eq!(listed["samples"], 120);

    let server = user.serve(&environment, "s3://bucket/sets/d/");
    same(&json(&server.client("read", "d", &ORDER).finish(PATIENCE)), &expected, "a server");
    assert_eq!(user.written(), [] as [PathBuf; 0], "on the machines that train");
    // A server keeps what it needs to start again, which is no data.
    let state = files(&user.scratch.join("state"));
    let bytes: u64 = state.iter().map(|path| fs::metadata(path).expect("there").len()).sum();
    assert!(bytes < 64 << 10, "{bytes} bytes in {state:?}");
}

#[test]
fn credentials_are_found_where_the_tools_of_aws_have_them() {
    let user = User::new("clouds-profiles", 1, 20);
    let s3 = S3::start(&user.data, "bucket", "");
    let S3 { endpoint, key, secret, .. } = &s3;
    let place = |more: &[(&'static str, &str)]| with(&[], &[&[("AWS_REGION", "us-east-1")], more].concat());
    let aws = user.home.join(".aws");
    fs::create_dir(&aws).expect("a folder");
    let credentials = format!(
        "[default]\naws_access_key_id = AKIANOBODY\naws_secret_access_key = wrong\n\n\
         [team]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
    );
    fs::write(aws.join("credentials"), credentials).expect("written");
    fs::write(aws.join("config"), format!("[profile team]\nregion = us-east-1\nendpoint_url = {endpoint}\n"))
        .expect("written");
    let ls = ["ls", "s3://bucket/", "--json"];
    // Keys, region and endpoint of the profile that is named.
    let finished = user.run(&with(&[], &[("AWS_PROFILE", "team")]), &ls);
    assert_eq!(json(&finished)["samples"], 20);
    // The default profile's keys, which nobody knows.
    let finished = user.run(&place(&[("AWS_ENDPOINT_URL", endpoint)]), &ls);
    assert!(finished.code == Some(2) && finished.stderr.contains("InvalidAccessKeyId"), "{}", finished.stderr);
    // Files that lie elsewhere.
    let moved = user.scratch.join("credentials");
    fs::rename(aws.join("credentials"), &moved).expect("moved");
    let more = [("AWS_PROFILE", "team"), ("AWS_SHARED_CREDENTIALS_FILE", moved.to_str().expect("UTF-8"))];
    assert_eq!(json(&user.run(&with(&[], &more), &ls))["samples"], 20);
    // The environment comes first, and its keys are not mixed with the files'.
    let own = [("AWS_PROFILE", "team"), ("AWS_ACCESS_KEY_ID", key.as_str()), ("AWS_SECRET_ACCESS_KEY", "wrong")];
    let finished = user.run(&with(&[], &[&own[..], &more[1..]].concat()), &ls);
    assert!(finished.code == Some(2) && finished.stderr.contains("SignatureDoesNotMatch"), "{}", finished.stderr);
    // A profile there is not.
    let finished = user.run(&place(&[("AWS_PROFILE", "nobody"), ("AWS_ENDPOINT_URL", endpoint)]), &ls);
    assert!(finished.code == Some(2) && finished.stderr.contains("profile nobody"), "{}", finished.stderr);
}

#[test]
fn what_is_wrong_with_a_bucket_is_said() {
    let user = User::new("clouds-wrong", 1, 20);
    let mut s3 = S3::start(&user.data, "bucket", "d/");
    let environment = s3.environment();
    let wrong = with(&environment, &[("AWS_SECRET_ACCESS_KEY", "wrong")]);
    let nobody = [("AWS_ENDPOINT_URL", s3.endpoint.clone())];
    let nowhere = with(&environment, &[("AWS_ENDPOINT_URL", "http://127.0.0.1:9")]);
    for (environment, shards, part) in [
        (&environment, "s3://nosuch/d/", "NoSuchBucket"),
        (&environment, "s3://nosuch/d/a.tar", "no such object"),
        (&environment, "s3://bucket/d/a.tar", "no such object"),
        (&environment, "s3://bucket/other/", "nothing matches s3://bucket/other/"),
        (&wrong, "s3://bucket/d/", "SignatureDoesNotMatch"),
        (&wrong, "s3://bucket/d/shard-000000.tar", "403"),
        (&nowhere, "s3://bucket/d/", "refused"),
        (&nobody.to_vec(), "s3://bucket/d/", "no credentials are in the environment"),
        (&vec![], "az://container/d/", "AZURE_STORAGE_ACCOUNT_NAME"),
    ] {
        let finished = user.run(environment, &["ls", shards]);
        assert!(finished.code.is_some_and(|code| code == 1 || code == 2), "{shards}: {:?}", finished.code);
        assert!(finished.stderr.contains(part) && finished.stderr.contains(shards), "{shards}: {}", finished.stderr);
        assert!(finished.stderr.lines().count() <= 3, "{}", finished.stderr);
    }
    // An object that changes under a server: whatever was not read yet is not mixed with what is there now.
    let server = user.serve(&environment, "s3://bucket/d/");
    json(&server.client("read", "d", &ORDER).finish(PATIENCE));
    let path = user.data.join("shard-000000.tar");
    let mut bytes = fs::read(&path).expect("there");
    bytes[700] ^= 1;
    fs::write(&path, bytes).expect("written");
    s3.upload();
    let finished = server.client("read", "d", &ORDER).finish(PATIENCE);
    assert!(finished.code == Some(4) && finished.stderr.contains("changed"), "{:?} {}", finished.code, finished.stderr);
}

#[test]
fn an_index_in_the_bucket_spares_reading_the_shards() {
    let user = User::new("clouds-index", 3, 90);
    fs::rename(user.data.join("shard-000000.tar"), user.data.join(ODD)).expect("renamed");
    let mut s3 = S3::start(&user.data, "bucket", "d/");
    let (environment, expected) = (s3.environment(), user.expected());
    let index = user.scratch.join("d.fbi");
    let text = index.to_str().expect("UTF-8");
    let finished = user.run(&environment, &["index", "s3://bucket/d/"]);
    assert!(finished.code == Some(2) && finished.stderr.contains("--output"), "{}", finished.stderr);
    let made = json(&user.run(&environment, &["index", "s3://bucket/d/", "--output", text, "--json"]));
    assert!(made["bytes_read"].as_u64() > expected["bytes"].as_u64(), "{made}");
    // Again: nothing is read.
    let made = json(&user.run(&environment, &["index", "s3://bucket/d/", "--output", text, "--json"]));
    assert_eq!(made["bytes_read"], 0);

    let said = |arguments: &[&str]| {
        let finished = user.run(&environment, &[&["read"], arguments, &ORDER[..]].concat());
        same(&json(&finished), &expected, arguments[0]);
        finished.stderr
    };
    assert!(said(&["s3://bucket/d/"]).contains("were read to index"), "there is none in the bucket yet");
    assert_eq!(said(&["s3://bucket/d/", "--index", text]), "");
    let verified = json(&user.run(&environment, &["verify", "s3://bucket/d/", "--index", text, "--json"]));
    let size: u64 = files(&user.data).iter().map(|path| fs::metadata(path).expect("there").len()).sum();
    assert_eq!((&verified["found"], &verified["bytes"]), (&0.into(), &size.into()));

    fs::rename(&index, user.data.join("d.fbi")).expect("moved");
    let shards: Vec<_> =
        files(&user.data).into_iter().filter(|path| path.extension().is_some_and(|e| e == "tar")).collect();
    // Uploading the shards again would make them newer than the index knows.
    let aside: Vec<_> = shards.iter().map(|path| user.scratch.path().join(path.file_name().expect("a name"))).collect();
    shards.iter().zip(&aside).for_each(|(path, aside)| fs::rename(path, aside).expect("moved"));
    s3.upload();
    for way in ["s3://bucket/d/", "s3://bucket/d/*.tar", "s3://bucket/d/d.fbi"] {
        assert_eq!(said(&[way]), "", "{way}");
    }
    let server = user.serve(&environment, "s3://bucket/d/d.fbi");
    same(&json(&server.client("read", "d", &ORDER).finish(PATIENCE)), &expected, "a server");
    let verified = json(&user.run(&environment, &["verify", "--index", "s3://bucket/d/d.fbi", "--json"]));
    assert_eq!(verified["found"], 0);

    // One shard rots in the bucket: it is found, by key and offset.
    let mut bytes = fs::read(&aside[1]).expect("there");
    bytes[2000] ^= 1;
    fs::write(&shards[1], bytes).expect("written");
    s3.upload();
    let finished = user.run(&environment, &["verify", "--index", "s3://bucket/d/d.fbi", "--json"]);
    let verified: Value = serde_json::from_slice(&finished.stdout).expect("JSON");
    assert_eq!((finished.code, &verified["found"]), (Some(5), &1.into()), "{}", finished.stderr);
    assert_eq!(verified["rot"][0]["shard"], "shard-000001.tar");
    // What is read is of the shard as it is now: it is indexed again, in memory.
    assert!(user.run(&environment, &["read", "s3://bucket/d/d.fbi"]).stderr.contains("were read to index"));
    assert_eq!(user.written(), [] as [PathBuf; 0]);
}

#[test]
fn a_container_of_azure_is_read_and_served() {
    let user = User::new("clouds-azure", 2, 60);
    fs::rename(user.data.join("shard-000000.tar"), user.data.join("a b+é=.tar")).expect("renamed");
    let Some(azurite) = Azurite::start(&user.data, "container", "sets/d/") else { return };
    let (environment, expected) = (azurite.environment(), user.expected());
    same(&user.read(&environment, "az://container/sets/d/"), &expected, "a prefix");
    same(&user.read(&environment, "azure://container/sets/d/{a b+é=,shard-000001}.tar"), &expected, "a brace list");
    let server = user.serve(&environment, "az://container/sets/d/*.tar");
    same(&json(&server.client("read", "d", &ORDER).finish(PATIENCE)), &expected, "a server");
    let wrong = with(&environment, &[("AZURE_STORAGE_ACCOUNT_KEY", "d3Jvbmc=")]);
    for (environment, shards, part) in [
        (&environment, "az://nosuch/d/", "ContainerNotFound"),
        (&environment, "az://container/d/a.tar", "no such object"),
        (&wrong, "az://container/sets/d/", "403"),
    ] {
        let finished = user.run(environment, &["ls", shards]);
        assert!(finished.stderr.contains(part) && finished.stderr.contains(shards), "{shards}: {}", finished.stderr);
    }
    assert_eq!(user.written(), [] as [PathBuf; 0]);
}
