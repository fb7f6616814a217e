//! Several processes, and processes that die.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use forebay_server::catalog::{BuildError, BuildRequest, resolve};

use super::support::{Place, quiet, samples, watched};

const DATA: &str = "FOREBAY_TEST_DATA";
const INDEX: &str = "FOREBAY_TEST_INDEX";
const STOP_AT: &str = "FOREBAY_TEST_STOP_AT";

/// Not a test of its own: what the child processes of the others run. It builds, and once it has read so many bytes it says
/// so and waits for a line.
#[test]
fn child_process() {
    let Ok(data) = std::env::var(DATA) else { return };
    let index = std::env::var(INDEX).expect("set together");
    let stop_at: u64 = std::env::var(STOP_AT).expect("set together").parse().expect("a number");
    let mut request = BuildRequest::new("test", resolve(&data).expect("shards"), index.into());
    request.threads = 1;
    let once = std::sync::Once::new();
    let built = watched(&request, &|progress| {
        if progress.bytes_done >= stop_at {
            once.call_once(|| {
                println!("\nwaiting");
                let mut line = String::new();
                std::io::stdin().read_line(&mut line).expect("the parent writes or goes");
            });
        }
    });
    match built {
        Ok(built) => println!("\nbuilt {}", built.bytes_read),
        Err(error) => println!("\nfailed {error}"),
    }
}

fn child(place: &Place, shell: &str, stop_at: u64) -> Child {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("{shell} exec \"$0\" \"$@\"")).arg(program);
    command.args(["processes::child_process", "--exact", "--nocapture", "--test-threads=1"]);
    command.env(DATA, place.data()).env(INDEX, place.index()).env(STOP_AT, stop_at.to_string());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().expect("it starts")
}

fn wait_for(child: &mut Child, what: &str) {
    let output = BufReader::new(child.stdout.as_mut().expect("piped"));
    assert!(output.lines().any(|line| line.expect("text") == what), "the child never said {what:?}");
}

fn rest(mut child: Child) -> String {
    let mut text = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut text).expect("text");
    child.wait().expect("it ends");
    text
}

fn fill(place: &Place) -> u64 {
    for name in ["a", "b", "c", "d"] {
        place.put(&format!("{name}.tar"), &samples(name, 50, 50_000));
    }
    std::fs::metadata(place.data().join("a.tar")).expect("there").len()
}

#[test]
fn a_second_builder_waits_or_says_who_builds() {
    let place = Place::new();
    let size = fill(&place);
    let mut child = child(&place, "", size);
    wait_for(&mut child, "waiting");

    let mut request = place.request();
    request.lock_wait = Some(Duration::from_millis(120));
    let error = quiet(&request).expect_err("the child has the lock");
    assert!(matches!(error, BuildError::Locked { .. }), "{error}");
    assert!(error.to_string().contains(&format!("process {} is building it", child.id())), "{error}");

    request.lock_wait = None;
    let waiting = std::thread::spawn(move || quiet(&request).expect("the child is done").bytes_read);
    std::thread::sleep(Duration::from_millis(100));
    assert!(!waiting.is_finished(), "it waits for the child");
    child.stdin.as_mut().expect("piped").write_all(b"go on\n").expect("it listens");
    let said = rest(child);
    assert!(said.contains(&format!("built {}", 4 * size)), "{said}");
    assert_eq!(waiting.join().expect("no panic"), 0, "the child's index was used");
}

#[test]
fn a_build_that_is_killed_leaves_the_way_free() {
    let place = Place::new();
    let size = fill(&place);
    let mut child = child(&place, "", 2 * size);
    wait_for(&mut child, "waiting");
    child.kill().expect("SIGKILL");
    child.wait().expect("it ends");
    let mut request = place.request();
    request.lock_wait = Some(Duration::from_secs(5));
    let built = quiet(&request).expect("nothing is in the way");
    // It died in the second of four shards: the first is not read again.
    assert_eq!((built.bytes_read, built.dataset.samples()), (3 * size, 200));
    let fresh = Place::new();
    fill(&fresh);
    assert_eq!(built.dataset.version(), fresh.build().expect("intact shards").dataset.version());
    let state = std::fs::read_dir(place.index().parent().expect("a folder")).expect("there");
    assert_eq!(state.count(), 2, "the index and its lock, no remains");
}

/// No room for the new index (here: the process may write no larger file): the old one is as it was.
#[test]
fn a_full_disk_leaves_the_old_index() {
    let place = Place::new();
    let path = place.put("a.tar", &samples("a", 3, 10));
    let version = place.build().expect("intact shards").dataset.version();
    let before = std::fs::read(place.index()).expect("there");
    place.put("b.tar", &samples("b", 2000, 10));
    let said = rest(child(&place, "trap '' XFSZ; ulimit -f 100;", u64::MAX));
    assert!(said.contains("failed dataset test: cannot write its index"), "{said}");
    assert_eq!(std::fs::read(place.index()).expect("there"), before);
    assert!(!Path::new(&format!("{}.tmp", place.index().display())).exists());
    let mut request = place.request();
    request.sources.retain(|source| source.place == path.as_path().into());
    let built = quiet(&request).expect("still good");
    assert_eq!((built.bytes_read, built.dataset.version()), (0, version));
}
