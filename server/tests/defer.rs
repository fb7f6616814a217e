//! Served after a look at the headers: what is known then, and how it becomes all.

#[allow(dead_code)]
#[path = "catalog/support.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay_server::catalog::{BuildError, Depth, headers_of, resolve};
use forebay_server::local::LocalFabric;
use forebay_server::publish::{Publish, PublishError, complete, publish};
use forebay_server::serve::{Registry, Served, State};
use forebay_server::store::PreadConfig;
use forebay_transport::Version;
use forebay_transport::link::{Fetch, Link, LinkError, Status, Tag};
use forebay_transport::pool::{Account, Slab, SlabConfig};

use support::{Place, samples};

fn work(place: &Place) -> Publish {
    Publish {
        name: "d".into(),
        sources: resolve(place.data().to_str().expect("UTF-8")).expect("shards"),
        index: place.index(),
        in_memory: false,
        portable: None,
        skip_damaged: false,
        defer: Some(1 << 40),
    }
}

fn enter(registry: &Registry, work: &Publish) -> Version {
    publish(registry, work, &PreadConfig { threads: 1, files: 8 }.into(), &|_| {}, &AtomicBool::new(false))
        .expect("intact shards")
        .version
}

fn served(registry: &Registry) -> Arc<Served> {
    match registry.get("d") {
        Some(State::Ready(served)) => served,
        other => panic!("{other:?}"),
    }
}

/// A field's bytes and its CRC.
type Read = (Vec<u8>, Option<u32>);

/// Reads samples 0 to 9 under this version, as an epoch that is running does.
fn read(fabric: &LocalFabric, version: Version) -> Result<Vec<Read>, LinkError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("a runtime");
    let slab = Slab::new(SlabConfig { lock: false, ..SlabConfig::new(1 << 20) }).expect("a slab");
    let account = Account::new("test", slab.capacity());
    let mut link = fabric.link(runtime.handle().clone());
    let fetch = Fetch {
        tag: Tag(1),
        dataset: "d".into(),
        version,
        ordinals: (0..10).collect(),
        fields: [0, 1].into(),
        lease: slab.try_lease(&account, 1 << 19).expect("free"),
        entries: Vec::new(),
        deadline: Duration::from_secs(10),
    };
    link.submit(fetch).expect("room");
    loop {
        let Poll::Ready(completion) = link.poll(&mut Context::from_waker(Waker::noop())) else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let entries = completion.result?;
        let field = |entry: &forebay_transport::link::Entry| {
            assert_eq!(entry.status, Status::Ok);
            (completion.lease[entry.offset as usize..][..entry.len as usize].to_vec(), entry.crc)
        };
        return Ok(entries.iter().map(field).collect());
    }
}

#[test]
fn a_provisional_version_becomes_final_under_those_who_read_it() {
    let place = Place::new();
    let _ = ["a", "b"].map(|name| place.put(&format!("{name}.tar"), &samples(name, 20, 5000)));
    let (registry, work) = (Arc::new(Registry::new()), work(&place));
    let provisional = enter(&registry, &work);
    assert!(provisional.is_provisional());
    assert_eq!(registry.list()[0].version, Some(provisional.to_string()));
    let fabric = LocalFabric::new("here", registry.clone()).expect("a page");
    let before = read(&fabric, provisional).expect("it is served");
    assert!(before.iter().all(|(_, crc)| crc.is_none()));

    let completed =
        complete(&registry, &work, &|_| {}, &AtomicBool::new(false)).expect("intact").expect("there was more");
    let truth = Place::new();
    let _ = ["a", "b"].map(|name| truth.put(&format!("{name}.tar"), &samples(name, 20, 5000)));
    assert_eq!(completed.version, truth.build().expect("intact").dataset.version(), "that of the content");
    // Who asks now learns the final version; who reads under the other goes on, and gets checksums.
    assert_eq!(registry.list()[0].version, Some(completed.version.to_string()));
    for version in [provisional, completed.version] {
        let after = read(&fabric, version).expect("both are served");
        assert!(after.iter().zip(&before).all(|(after, before)| after.0 == before.0));
        assert!(after.iter().all(|(bytes, crc)| *crc == Some(crc32c::crc32c(bytes))));
    }
    assert!(matches!(complete(&registry, &work, &|_| {}, &AtomicBool::new(false)), Ok(None)), "nothing is left");

    // A server that is started again, with or without the flag, still knows whom it promised what.
    for defer in [None, work.defer] {
        let registry = Registry::new();
        assert_eq!(enter(&registry, &Publish { defer, ..work.clone() }), completed.version);
        assert!(served(&registry).is(provisional) && served(&registry).dataset.depth() == Depth::Content);
    }
    assert!(headers_of(&work.index).exists());
}

/// What ends early is kept, and nothing is lost of what is served.
#[test]
fn a_content_pass_that_ends_early_leaves_what_there_was() {
    let place = Place::new();
    let _ = ["a", "b"].map(|name| place.put(&format!("{name}.tar"), &samples(name, 20, 5000)));
    let (registry, work) = (Arc::new(Registry::new()), work(&place));
    let provisional = enter(&registry, &work);
    let cancelled = complete(&registry, &work, &|_| {}, &AtomicBool::new(true));
    assert!(matches!(cancelled, Err(PublishError::Build(BuildError::Cancelled { .. }))));
    assert_eq!(served(&registry).dataset.version(), provisional);
}

/// Shards that change between the two passes are not what was promised.
#[test]
fn shards_that_change_in_between_end_the_provisional_version() {
    let place = Place::new();
    place.put("a.tar", &samples("a", 20, 5000));
    let (registry, work) = (Arc::new(Registry::new()), work(&place));
    let provisional = enter(&registry, &work);
    let fabric = LocalFabric::new("here", registry.clone()).expect("a page");
    std::thread::sleep(Duration::from_millis(30));
    place.put("a.tar", &samples("a", 20, 5000));
    let error = complete(&registry, &work, &|_| {}, &AtomicBool::new(false)).expect_err("another file");
    assert!(matches!(error, PublishError::Build(BuildError::Changed { .. })), "{error}");
    assert!(matches!(registry.get("d"), Some(State::Changed { .. })));
    assert!(matches!(read(&fabric, provisional), Err(LinkError::DatasetChanged(_))));
    // And the next start begins with what there is now.
    assert_ne!(enter(&registry, &work), provisional);
}
