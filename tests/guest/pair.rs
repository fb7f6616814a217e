//! Two guests on one wire: `forebay serve` in one, `forebay read` in the other.

use std::path::Path;
use std::time::Duration;

use forebay_system::guest::{alone, pair};
use forebay_system::program::{Finished, run};
use forebay_system::scratch::Scratch;
use forebay_system::tars::{Shards, Sizes};
use forebay_system::world::shards;
use serde_json::Value;

/// Shards that both guests see where this machine has them, and what reading them in shuffled order yields.
pub(super) struct World {
    scratch: Scratch,
    pattern: String,
}

impl World {
    pub(super) fn new(name: &str, samples: usize, sizes: Sizes) -> World {
        let scratch = Scratch::new(name);
        let (_, pattern) = shards(&scratch.join("data"), &Shards { shards: 4, samples, sizes, seed: 5 });
        std::fs::create_dir(scratch.join("share")).expect("a folder to share");
        World { scratch, pattern }
    }

    /// The summary of `forebay read … FLAGS --seed 7 --shuffle full --digest`, without a server or a network.
    pub(super) fn expected(&self, flags: &[&str]) -> Value {
        let data = self.scratch.join("data");
        let cache = self.scratch.join("index.fbi");
        let made = run(["index".as_ref(), data.as_os_str(), "--output".as_ref(), cache.as_os_str()]);
        assert_eq!(made.code, Some(0), "{}", made.stderr);
        let mut arguments = vec!["read", data.to_str().expect("UTF-8"), "--index", cache.to_str().expect("UTF-8")];
        arguments.extend(["--shuffle", "full", "--seed", "7", "--digest", "--json"]);
        let read = run(arguments.iter().chain(flags));
        assert_eq!(read.code, Some(0), "{}", read.stderr);
        serde_json::from_str(read.text()).expect("a summary")
    }

    /// Runs a script in each guest. In both, `read_set NAME FLAGS…` reads as [`World::expected`] does, from the server of
    /// the other, into /run/guest/NAME.
    pub(super) fn run(&self, limit: u64, a: &str, b: &str) -> Option<Finished> {
        let (a, b) = (self.script(a), self.script(b));
        let finished = pair(Duration::from_secs(limit), &self.share(), &a, &b)?;
        assert_eq!(finished.code, Some(0), "{}\n{}", finished.text(), finished.stderr);
        Some(finished)
    }

    /// The same of a script in a guest by itself.
    pub(super) fn run_alone(&self, limit: u64, script: &str) -> Option<Finished> {
        let finished = alone(Duration::from_secs(limit), &self.share(), &self.script(script))?;
        assert_eq!(finished.code, Some(0), "{}\n{}", finished.text(), finished.stderr);
        Some(finished)
    }

    fn script(&self, script: &str) -> String {
        let begin = "set -e; read_set() { local to=/run/guest/$1; shift; \"$FOREBAY_PROGRAM\" read $URL/set --shuffle full \
                     --seed 7 --digest --json \"$@\" >$to; }; ";
        format!("{begin}SHARDS='{}'; {script}", self.pattern)
    }

    pub(super) fn share(&self) -> std::path::PathBuf {
        self.scratch.join("share")
    }

    /// What a `read_set NAME` said in the end.
    pub(super) fn summary(&self, name: &str) -> Value {
        summary(&self.share().join(name))
    }
}

fn summary(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}: {text}", path.display()))
}

/// Every sample exactly once, in the same order, with the same bytes.
pub(super) fn assert_same(got: &Value, expected: &Value) {
    for what in ["samples", "bytes", "order_digest", "set_digest"] {
        assert_eq!(got[what], expected[what], "{what}\n got {got}\n expected {expected}");
    }
}

#[test]
fn an_epoch_comes_over_the_wire_and_over_a_bad_one() {
    let world = World::new("wire", 192, Sizes::ImageNet);
    let a = r#"serve set="$SHARDS"; hear plain 120; netem delay 50ms loss 1%; say bad; hear done 400"#;
    // A third of the samples over the bad wire: 64, each a batch's.
    let b =
        "served; read_set plain; say plain; hear bad; read_set bad --rank 1 --world-size 3 --batch-size 8; say done";
    let Some(_) = world.run(400, a, b) else { return };
    assert_same(&world.summary("plain"), &world.expected(&[]));
    let bad = world.summary("bad");
    assert_eq!(bad["samples"], 64);
    assert_same(&bad, &world.expected(&["--rank", "1", "--world-size", "3", "--batch-size", "8"]));
}
