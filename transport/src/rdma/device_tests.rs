//! What needs a device. Only where `FOREBAY_RDMA_TESTS=1` says that there is one, `rd0` with address 10.7.0.1: a guest of
//! `tests/guest` sets it.

use std::io::Write;
use std::sync::Arc;

use super::device::Error;
use super::memory::{Domain, Registration, Rights, Window};
use crate::pool::{Account, Slab, SlabConfig};

/// Whether there is a device here; said loudly if not.
pub(super) fn is_here() -> bool {
    let here = std::env::var_os("FOREBAY_RDMA_TESTS").is_some_and(|value| value == "1");
    if !here {
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        // Past what keeps the output of tests that pass.
        let _ = writeln!(
            std::io::stderr(),
            "!! SKIPPED: {test}: FOREBAY_RDMA_TESTS=1 does not say that there is RDMA here"
        );
    }
    here
}

pub(super) fn slab(capacity: usize) -> Slab {
    Slab::new(SlabConfig { lock: false, ..SlabConfig::new(capacity) }).expect("a small slab")
}

/// How many of each kind the kernel has: `rdma resource show`.
pub(super) fn resources() -> String {
    let shown = std::process::Command::new("rdma").args(["resource", "show"]).output().expect("rdma runs");
    String::from_utf8(shown.stdout).expect("text")
}

#[test]
fn memory_is_registered_and_given_back() {
    if !is_here() {
        return;
    }
    let before = resources();
    let slab = slab(8 << 20);
    let domain = Domain::open("rd0").expect("a domain");
    let all = [Rights::Local, Rights::RemoteWrite, Rights::Windows]
        .map(|rights| Registration::new(&domain, &slab, rights).expect("memory to register"));
    let lease = slab.try_lease(&Account::new("test", 1 << 20), 100).expect("a lease");
    let pieces = all.each_ref().map(|registration| registration.piece(&raw const *lease).expect("bytes of the slab"));
    assert!(pieces.iter().all(|piece| (piece.address, piece.len) == (lease.as_ptr() as u64, 100)), "{pieces:?}");
    assert!(pieces[0].key != pieces[1].key && pieces[1].key != pieces[2].key, "{pieces:?}");
    assert!(resources() != before, "{before}");
    drop((all, domain));
    assert_eq!(resources(), before, "all of it is given back");
}

#[test]
fn what_is_not_of_a_slab_is_no_piece_of_it() {
    if !is_here() {
        return;
    }
    let (slab, other) = (slab(1 << 20), slab(1 << 20));
    let domain = Domain::open("rd0").expect("a domain");
    let registration = Registration::new(&domain, &slab, Rights::Local).expect("memory to register");
    let (base, len) = slab.region();
    let part =
        |from: usize, len: usize| std::ptr::slice_from_raw_parts(base.as_ptr().wrapping_add(from).cast_const(), len);
    assert!(registration.piece(part(0, len)).is_some() && registration.piece(part(len, 0)).is_some());
    assert!(registration.piece(part(1, len)).is_none() && registration.piece(part(len + 1, 0)).is_none());
    assert!(registration.piece(part(usize::MAX, 1)).is_none());
    assert!(registration.piece(&raw const *b"elsewhere".as_slice()).is_none());
    assert!(registration.is_of(&slab) && !registration.is_of(&other));
}

#[test]
fn a_window_is_bound_once_and_to_what_has_windows() {
    if !is_here() {
        return;
    }
    let slab = slab(1 << 20);
    let lease = slab.try_lease(&Account::new("test", 1 << 20), 4096).expect("a lease");
    let domain = Domain::open("rd0").expect("a domain");
    let windows = Registration::new(&domain, &slab, Rights::Windows).expect("memory to register");
    let plain = Registration::new(&domain, &slab, Rights::RemoteWrite).expect("memory to register");
    let elsewhere = Domain::open("rd0").expect("a domain");
    let foreign = Registration::new(&elsewhere, &slab, Rights::Windows).expect("memory to register");
    let mut window = Window::new(&domain).expect("a window");
    assert!(
        window.binding(&plain, &raw const *lease).is_none() && window.binding(&foreign, &raw const *lease).is_none()
    );
    let mut keys = Vec::new();
    for _ in 0..3 {
        let binding = window.binding(&windows, &raw const *lease).expect("it is free");
        assert!(window.is_bound() && binding.key == window.key());
        assert!(window.binding(&windows, &raw const *lease).is_none(), "it is bound");
        keys.push(binding.key);
        window.ended();
    }
    assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys.iter().all(|key| key >> 8 == keys[0] >> 8), "{keys:x?}");
    let _binding = window.binding(&windows, &raw const *lease);
    let weak = Arc::downgrade(&windows);
    drop(windows);
    assert!(weak.upgrade().is_some(), "a window keeps what it is bound to");
    drop(window);
    assert!(weak.upgrade().is_none());
}

#[test]
fn who_may_pin_too_little_is_told_the_limit() {
    if !is_here() {
        return;
    }
    // Another user than root, with 64 KiB to lock: in a process of its own, since rights are a process's.
    if std::env::var_os("FOREBAY_RDMA_LIMITED").is_none() {
        let this = std::env::current_exe().expect("our own path");
        let script = format!(
            "chmod 666 /dev/infiniband/*; ulimit -l 64; FOREBAY_RDMA_LIMITED=1 exec setpriv --reuid 65534 --clear-groups \
             --inh-caps=-all --bounding-set=-all {} --exact rdma::device_tests::who_may_pin_too_little_is_told_the_limit",
            this.display()
        );
        let ran = std::process::Command::new("bash").args(["-c", &script]).output().expect("bash runs");
        let text = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && text.contains("1 passed"), "{text}\n{}", String::from_utf8_lossy(&ran.stderr));
        return;
    }
    let domain = Domain::open("rd0").expect("a domain");
    let error = Registration::new(&domain, &slab(4 << 20), Rights::Local).expect_err("more than 64 KiB");
    assert!(matches!(error, Error::Limit { bytes, .. } if bytes >= 4 << 20), "{error}");
    assert!(error.to_string().contains("ulimit -l"), "{error}");
}

#[test]
fn a_device_that_is_not_there_is_named() {
    if !is_here() {
        return;
    }
    let error = Domain::open("rd9").err().expect("there is no such device");
    assert!(error.to_string().contains("rd9"), "{error}");
}
