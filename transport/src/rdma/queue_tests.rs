//! Two connected queues, both here. They need a device, as `device_tests` say.
#![allow(unsafe_code)]

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use super::device_tests::{is_here, resources, slab};
use super::frame::Target;
use super::manager::{ConnectError, Id};
use super::memory::{Domain, Piece, Registration, Rights, Window};
use super::queue::{Depths, Done, Fault, Full, Queue, Work};
use crate::pool::{Account, Lease, Slab};

/// The number of the server's first receive, unlike any of what it sends.
const RECEIVES: u32 = 100;
const DEPTHS: Depths = Depths { sends: 16, receives: 8, pieces: 4 };

/// Runs a test's body, where there is a device.
fn run<F: Future<Output = ()>>(body: impl FnOnce() -> F) {
    if !is_here() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    // The manager opens each device once, and for good.
    drop(runtime.block_on(Id::resolve(([10, 7, 0, 1], 1).into())).expect("a way"));
    let before = resources();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), body()).await.expect("in time") });
    assert_eq!(resources(), before, "all is given back");
}

/// One end: a connected queue, and memory.
pub(super) struct End {
    // In the order in which they must go.
    pub(super) queue: Queue,
    pub(super) id: Id,
    pub(super) lease: Lease,
    registration: Arc<Registration>,
    slab: Slab,
}

impl End {
    pub(super) fn new(id: Id, rights: Rights, writable: bool) -> End {
        let domain = Domain::open(&id.device().expect("a device")).expect("a domain");
        let slab = slab(4 << 20);
        let registration = Registration::new(&domain, &slab, rights).expect("memory to register");
        let lease = slab.try_lease(&Account::new("test", 2 << 20), 2 << 20).expect("a lease");
        let mut queue = Queue::new(&domain, DEPTHS, writable).expect("a queue");
        id.prepare(&mut queue).expect("a queue that is prepared");
        End { queue, id, lease, registration, slab }
    }

    pub(super) fn piece(&self, from: usize, len: usize) -> Piece {
        self.registration.piece(&raw const self.lease[from..from + len]).expect("of the slab")
    }

    pub(super) fn target(&mut self, from: usize, len: usize) -> Target {
        let key = self.registration.remote_key();
        Target { address: self.lease[from..].as_ptr() as u64, key, capacity: len as u64 }
    }

    pub(super) fn add(&mut self, id: u64, work: Work<'_>, told: bool) -> Result<(), Full> {
        // SAFETY: tests look at memory when the work is done.
        unsafe { self.queue.add(id, work, told) }
    }

    pub(super) fn receive(&mut self, id: u32, piece: Option<Piece>) {
        // SAFETY: as above.
        unsafe { self.queue.receive(id, piece) }.expect("a receive that is posted");
    }

    /// The next `count` that are done.
    pub(super) async fn done(&mut self, count: usize) -> Vec<Done> {
        let mut done = Vec::new();
        while done.len() < count {
            poll_fn(|cx: &mut Context<'_>| self.queue.poll_done(cx, &mut done)).await.expect("completions");
        }
        done
    }
}

pub(super) async fn listener() -> (Id, SocketAddr) {
    let id = Id::listen("10.7.0.1:0".parse().expect("an address")).expect("a listener");
    let address = ([10, 7, 0, 1], id.port()).into();
    (id, address)
}

/// A client, whose memory has `rights`, and a server, with receives posted at both.
async fn connected(rights: Rights) -> (End, End) {
    let (listener, address) = listener().await;
    let connecting = async {
        let mut end = End::new(Id::resolve(address).await.expect("a way"), rights, true);
        (0..8).for_each(|id| end.receive(id, None));
        let said = end.id.connect(&mut end.queue, b"may I").await.expect("a connection");
        assert!(said.starts_with(b"you may"), "{said:?}");
        end
    };
    let accepting = async {
        let (id, said) = listener.incoming().await.expect("somebody");
        assert!(said.starts_with(b"may I"), "{said:?}");
        let mut end = End::new(id, Rights::Local, false);
        for at in 0..8 {
            let piece = end.piece(at << 12, 4096);
            end.receive(RECEIVES + at as u32, Some(piece));
        }
        end.id.accept(&mut end.queue, b"you may").expect("a connection");
        assert!(!end.id.event().await.expect("an event").is_end(), "established");
        end
    };
    tokio::join!(connecting, accepting)
}

#[test]
fn messages_and_writes_arrive_before_what_tells_of_them() {
    run(|| async {
        let (mut client, mut server) = connected(Rights::RemoteWrite).await;
        for round in 0..200_u32 {
            client.lease.as_mut_slice()[..11].copy_from_slice(b"the request");
            let piece = client.piece(0, 11);
            client.add(7, Work::Send(piece), true).expect("room");
            client.queue.post().expect("posted");
            let id = match server.done(1).await[..] {
                [Done::Received { id, len: 11, imm: None }] => id as usize - RECEIVES as usize,
                ref other => panic!("{other:?}"),
            };
            assert_eq!(&server.lease[id << 12..][..11], b"the request");
            assert_eq!(client.done(1).await, [Done::Sent { id: 7 }]);

            // Two writes of several pieces each, that are not told of, and one that is.
            let fill = round as u8;
            server.lease.as_mut_slice()[1 << 20..].fill(fill);
            let pieces = [server.piece(1 << 20, 1000), server.piece((1 << 20) + 5000, 3000)];
            let table = server.piece(1 << 20, 64);
            let (one, two) = (client.target(1 << 20, 4000), client.target(1_500_000, 4000));
            client.lease.as_mut_slice()[1 << 20..].fill(!fill);
            server.add(1, Work::Write { from: &pieces, to: one }, false).expect("room");
            server.add(2, Work::Write { from: &pieces, to: two }, false).expect("room");
            let to = client.target(4096, 64);
            server.add(3, Work::WriteImm { from: table, to, imm: 0x0102_0304 + round }, true).expect("room");
            server.queue.post().expect("posted");
            let told = client.done(1).await;
            assert!(matches!(told[..], [Done::Received { len: 64, imm: Some(imm), .. }] if imm == 0x0102_0304 + round));
            assert!(client.lease[1 << 20..][..4000].iter().all(|&byte| byte == fill), "round {round}");
            assert!(client.lease[1_500_000..][..4000].iter().all(|&byte| byte == fill), "round {round}");
            assert_eq!(client.lease[1_500_000 + 4000], !fill, "and no more");
            assert_eq!(server.done(3).await, [1, 2, 3].map(|id| Done::Sent { id }));
            let Done::Received { id: told, .. } = told[0] else { panic!("{told:?}") };
            client.receive(told as u32, None);
            let piece = server.piece(id << 12, 4096);
            server.receive(RECEIVES + id as u32, Some(piece));
        }
    });
}

#[test]
fn a_window_lets_writes_in_until_it_is_invalidated() {
    run(|| async {
        let (mut client, mut server) = connected(Rights::Windows).await;
        let mut window = Window::new(client.registration.domain()).expect("a window");
        let binding = window.binding(&client.registration, &raw const client.lease[8192..12288]).expect("free");
        client.add(1, Work::Bind(binding), true).expect("room");
        client.queue.post().expect("posted");
        assert_eq!(client.done(1).await, [Done::Sent { id: 1 }]);
        let to = Target { key: window.key(), ..client.target(8192, 4096) };
        server.lease.as_mut_slice()[..4096].fill(0xaa);
        let from = [server.piece(0, 4096)];
        server.add(2, Work::Write { from: &from, to }, true).expect("room");
        server.queue.post().expect("posted");
        assert_eq!(server.done(1).await, [Done::Sent { id: 2 }]);
        assert!(client.lease[8192..12288].iter().all(|&byte| byte == 0xaa));

        client.add(3, Work::Invalidate { key: window.key() }, true).expect("room");
        client.queue.post().expect("posted");
        assert_eq!(client.done(1).await, [Done::Sent { id: 3 }]);
        window.ended();
        // Bound anew, it has another key.
        let binding = window.binding(&client.registration, &raw const client.lease[8192..12288]).expect("free");
        client.add(4, Work::Bind(binding), true).expect("room");
        client.queue.post().expect("posted");
        assert_eq!(client.done(1).await, [Done::Sent { id: 4 }]);
        assert_ne!(window.key(), to.key);
        server.lease.as_mut_slice()[..4096].fill(0xbb);
        server.add(5, Work::Write { from: &from, to }, true).expect("room");
        server.queue.post().expect("posted");
        assert_eq!(server.done(1).await[0], Done::Failed { id: 5, fault: Fault::REMOTE_ACCESS });
        assert!(client.lease[8192..12288].iter().all(|&byte| byte == 0xaa), "nothing came in by the old key");
        client.queue.stop(&mut Vec::new());
        drop(window);
    });
}

/// That a window's bounds hold is for hardware to show: soft-RoCE of Linux 6.1 checks its key and the registration's bounds.
#[test]
fn a_registration_with_windows_is_not_writable_by_its_own_key() {
    run(|| async {
        let (mut client, mut server) = connected(Rights::Windows).await;
        let to = client.target(8192, 100);
        client.lease.as_mut_slice().fill(0);
        server.lease.as_mut_slice().fill(0xcc);
        let from = [server.piece(0, 100)];
        server.add(9, Work::Write { from: &from, to }, true).expect("room");
        server.queue.post().expect("posted");
        assert_eq!(server.done(1).await[0], Done::Failed { id: 9, fault: Fault::REMOTE_ACCESS });
        client.queue.close().expect("closed");
        assert!(client.lease.iter().all(|&byte| byte == 0), "nothing arrived");
    });
}

#[test]
fn nobody_writes_to_a_queue_that_is_not_writable() {
    run(|| async {
        let (mut client, mut server) = connected(Rights::RemoteWrite).await;
        // As if the server's key were known, and its memory writable by it.
        let open = Registration::new(server.registration.domain(), &server.slab, Rights::RemoteWrite).expect("memory");
        let to = Target { key: open.remote_key(), ..server.target(8192, 100) };
        server.lease.as_mut_slice().fill(0);
        let from = [client.piece(0, 100)];
        client.lease.as_mut_slice().fill(0xdd);
        client.add(1, Work::Write { from: &from, to }, true).expect("room");
        client.queue.post().expect("posted");
        assert!(matches!(client.done(1).await[0], Done::Failed { id: 1, .. }));
        server.queue.close().expect("closed");
        assert!(server.lease.iter().all(|&byte| byte == 0), "nothing arrived");
    });
}

#[test]
fn a_queue_takes_what_there_is_room_for_and_tells_of_all_in_order() {
    run(|| async {
        let (mut client, mut server) = connected(Rights::RemoteWrite).await;
        let to = client.target(0, 64);
        let from = [server.piece(0, 64)];
        let mut next = 0;
        for _ in 0..20 {
            let mut added = 0;
            while server.add(next, Work::Write { from: &from, to }, false) == Ok(()) {
                (next, added) = (next + 1, added + 1);
            }
            assert_eq!((added > 0, server.queue.room()), (true, 0));
            server.queue.post().expect("posted");
            // Half of them at least tell, though none was asked to.
            let done = server.done(8).await;
            let first = next - 16;
            let expected: Vec<Done> = (first..first + done.len() as u64).map(|id| Done::Sent { id }).collect();
            assert_eq!(done, expected);
            while server.queue.room() < 16 {
                let left = 16 - server.queue.room();
                assert_eq!(server.done(left).await.len(), left);
            }
        }
    });
}

#[test]
fn closing_tells_of_all_that_was_under_way() {
    run(|| async {
        let (mut client, mut server) = connected(Rights::RemoteWrite).await;
        let to = client.target(0, 1 << 20);
        let from = [server.piece(0, 1 << 20)];
        for id in 0..6 {
            server.add(id, Work::Write { from: &from, to }, id % 2 == 0).expect("room");
        }
        server.queue.post().expect("posted");
        for id in 6..9 {
            server.add(id, Work::Write { from: &from, to }, true).expect("room");
        }
        let mut done = Vec::new();
        server.queue.stop(&mut done);
        let ids = |wanted: std::ops::Range<u64>| {
            let id = |done: &Done| match *done {
                Done::Sent { id } | Done::Failed { id, fault: Fault::FLUSHED } | Done::Received { id, .. } => id,
                other => panic!("{other:?}"),
            };
            let mut ids: Vec<u64> = done.iter().map(id).filter(|id| wanted.contains(id)).collect();
            ids.sort_unstable();
            ids
        };
        assert_eq!(ids(0..9), (0..9).collect::<Vec<u64>>());
        assert_eq!(ids(100..200), (100..108).collect::<Vec<u64>>());
        assert!(server.queue.has_failed() && server.add(1, Work::Write { from: &from, to }, true) == Err(Full));
        server.queue.close().expect("closed");
        server.queue.close().expect("once is enough");
        // The other end's manager is told.
        drop(server);
        assert!(client.id.event().await.expect("an event").is_end());
    });
}

#[test]
fn a_message_without_a_receive_fails_after_a_few_tries() {
    run(|| async {
        let (mut client, mut server) = connected(Rights::Local).await;
        let piece = client.piece(0, 10);
        for id in 0..9 {
            client.add(id, Work::Send(piece), true).expect("room");
        }
        client.queue.post().expect("posted");
        let done = client.done(9).await;
        assert_eq!(done[..8], [0, 1, 2, 3, 4, 5, 6, 7].map(|id| Done::Sent { id }));
        assert_eq!(done[8], Done::Failed { id: 8, fault: Fault::NO_RECEIVE });
        assert_eq!(server.done(8).await.len(), 8);
    });
}

#[test]
fn who_is_not_let_in_is_told_why() {
    run(|| async {
        let (listener, address) = listener().await;
        let connecting = async {
            let mut end = End::new(Id::resolve(address).await.expect("a way"), Rights::Local, true);
            match end.id.connect(&mut end.queue, b"may I").await {
                Err(ConnectError::Rejected { said }) => said,
                other => panic!("{other:?}"),
            }
        };
        let rejecting = async {
            let (id, _) = listener.incoming().await.expect("somebody");
            id.reject(b"you may not");
        };
        let (said, ()) = tokio::join!(connecting, rejecting);
        assert!(said.starts_with(b"you may not"), "{said:?}");
        // Nobody there at all.
        drop(listener);
        let mut end = End::new(Id::resolve(address).await.expect("a way"), Rights::Local, true);
        let refused = end.id.connect(&mut end.queue, b"may I").await.expect_err("nobody listens");
        assert!(matches!(refused, ConnectError::Rejected { .. }), "{refused:?}");
        // No device leads to this machine's own loopback address.
        let error = Id::resolve(([127, 0, 0, 1], 1).into()).await.err().expect("no way");
        assert!(error.to_string().contains("127.0.0.1"), "{error}");
    });
}
