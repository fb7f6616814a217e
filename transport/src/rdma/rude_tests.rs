//! Clients and servers that misbehave, over real queue pairs. They need a device, as `device_tests` say.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::BytesMut;

use super::frame::{CONTROL_SLOT, Frame, HEAD, Head, Imm, Op, Target};
use super::hello::{Hello, Reason, Rejection, Ticket, Welcome};
use super::link_tests::{Bench, Running, run, until};
use super::manager::{ConnectError, Id};
use super::memory::Rights;
use super::queue::{Done, Fault, Work};
use super::queue_tests::{End, listener};
use super::table;
use crate::link::{Entry, LinkError, Status};
use crate::sim::Content;
use crate::wire::FetchRequest;

/// What a client of eight credits and no manners sends.
struct Rude {
    end: End,
    content: Content,
}

/// Where its leases begin, and its tables.
const LEASE: usize = 1 << 20;
const TABLE: usize = 64 << 10;

impl Rude {
    async fn connect(server: &Running, content: &Content) -> Rude {
        let mut end = End::new(Id::resolve(server.address).await.expect("a way"), Rights::RemoteWrite, true);
        (0..8).for_each(|id| end.receive(id, None));
        let said =
            end.id.connect(&mut end.queue, &Hello::new(server.ticket(), 8).encode()).await.expect("a connection");
        assert_eq!(Welcome::decode(&said).expect("a welcome").credits, 8);
        Rude { end, content: content.clone() }
    }

    /// A fetch of one sample that is as it should be, but for what `change` does to its head.
    fn fetch(&mut self, slot: u16, change: impl FnOnce(&mut Head)) -> Vec<u8> {
        let mut body = BytesMut::new();
        let mut head = Head {
            op: Op::Fetch,
            slot,
            generation: 0,
            lease: self.end.target(LEASE, 4096),
            table: self.end.target(TABLE, 4096),
        };
        change(&mut head);
        let (version, capacity) = (self.content.version, head.lease.capacity);
        let remaining = Duration::from_secs(1);
        let request = FetchRequest { version, capacity, remaining, fields: &[0], ordinals: &[1] };
        request.encode(&mut body).expect("a request");
        self.frame(head, &body)
    }

    fn heartbeat(&mut self) -> Vec<u8> {
        let table = self.end.target(TABLE, 4096);
        let head = Head { op: Op::Heartbeat, slot: CONTROL_SLOT, generation: 1, lease: Target::default(), table };
        self.frame(head, &[])
    }

    fn frame(&self, head: Head, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEAD + body.len()];
        Frame { head, body }.encode(&mut bytes).expect("a frame");
        bytes
    }

    /// Sends this as it is.
    async fn send(&mut self, bytes: &[u8]) {
        let place = &mut self.end.lease.as_mut_slice()[..bytes.len()];
        place.copy_from_slice(bytes);
        let piece = self.end.piece(0, bytes.len());
        self.end.add(1, Work::Send(piece), true).expect("room");
        self.end.queue.post().expect("posted");
        // It must be gone before the place is used again; what else is done meanwhile is answers.
        loop {
            let done = self.end.done(1).await;
            if done.iter().any(|done| matches!(done, Done::Sent { .. } | Done::Failed { .. })) {
                break;
            }
        }
    }

    /// Waits until the server has ended the connection.
    async fn is_shown_out(&mut self, why: &str) {
        let ended = async { while !self.end.id.event().await.expect("an event").is_end() {} };
        tokio::time::timeout(Duration::from_secs(5), ended)
            .await
            .unwrap_or_else(|_| panic!("{why}: it is still served"));
    }
}

/// A frame with other bytes at `at`, and a checksum that is right.
fn with(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame[48..52].fill(0);
    let crc = crc32c::crc32c(&frame);
    frame[48..52].copy_from_slice(&crc.to_le_bytes());
    frame
}

#[test]
fn a_client_that_misbehaves_loses_its_connection_and_nobody_elses() {
    run(Content::new(1, 100, 1000, 2000), |server, source| async move {
        let mut good = Bench::new(&server, 1 << 20, true).await;
        type Sends = fn(&mut Rude) -> Vec<u8>;
        let cases: [(&str, Sends); 12] = [
            ("too little for a frame", |_| vec![1; 10]),
            ("noise", |_| (0..500_u32).map(|i| (i * 7) as u8).collect()),
            ("more than a frame may have", |_| vec![1; 20 << 10]),
            ("another version", |rude| with(rude.fetch(0, |_| ()), 0, &[9])),
            ("an operation that there is not", |rude| with(rude.fetch(0, |_| ()), 1, &[9])),
            ("a checksum that is wrong", |rude| {
                let mut frame = rude.fetch(0, |_| ());
                frame[60] ^= 1;
                frame
            }),
            ("a slot beyond the credits", |rude| rude.fetch(8, |_| ())),
            ("a lease larger than any memory", |rude| {
                let frame = rude.fetch(0, |_| ());
                with(frame, 16, &(1_u64 << 50).to_le_bytes())
            }),
            ("a lease beyond the end of all addresses", |rude| {
                let frame = rude.fetch(0, |_| ());
                with(frame, 8, &u64::MAX.to_le_bytes())
            }),
            ("another capacity in the body", |rude| with(rude.fetch(0, |_| ()), HEAD + 40, &9999_u64.to_le_bytes())),
            ("a table larger than was agreed on", |rude| rude.fetch(0, |head| head.table.capacity = 1 << 20)),
            ("a key that opens nothing", |rude| rude.fetch(0, |head| head.lease.key ^= 0x5500)),
        ];
        let mut before = 0;
        for (why, frame) in cases {
            let mut rude = Rude::connect(&server, &source.content).await;
            let bytes = frame(&mut rude);
            rude.send(&bytes).await;
            rude.is_shown_out(why).await;
            before += 1;
            until(why, || server.counters.misbehaved.load(Ordering::Relaxed) == before).await;
            good.submit(vec![before % 100], 4096);
            let completion = good.completion().await;
            good.check(&completion);
        }
    });
}

#[test]
fn a_client_that_asks_for_more_than_it_has_credits_is_shown_out() {
    run(Content::new(1, 100, 1000, 2000), |server, source| async move {
        source.stall.store(true, Ordering::SeqCst);
        let mut rude = Rude::connect(&server, &source.content).await;
        // The same slot twice.
        for _ in 0..2 {
            let frame = rude.fetch(3, |_| ());
            rude.send(&frame).await;
        }
        rude.is_shown_out("a slot used twice").await;
        let mut rude = Rude::connect(&server, &source.content).await;
        for slot in 0..8 {
            let frame = rude.fetch(slot, |_| ());
            rude.send(&frame).await;
        }
        let frame = rude.heartbeat();
        rude.send(&frame).await;
        rude.is_shown_out("nine frames of eight").await;
        until("both are counted", || server.counters.misbehaved.load(Ordering::Relaxed) == 2).await;
        // One that says nothing at all is lost, and not rude.
        let mut rude = Rude::connect(&server, &source.content).await;
        rude.is_shown_out("silence").await;
        until("it is counted", || server.counters.lost.load(Ordering::Relaxed) == 1).await;
    });
}

#[test]
fn greetings_that_make_no_sense_are_rejected() {
    run(Content::new(1, 100, 1000, 2000), |server, _| async move {
        let noise: Vec<u8> = (0..56).collect();
        let later = Hello { min: 7, max: 9, ..Hello::new(Ticket::new([1; 32]), 8) }.encode();
        for (say, reason) in
            [(noise.as_slice(), Reason::Malformed), (&[], Reason::Malformed), (&later, Reason::Version)]
        {
            let mut end = End::new(Id::resolve(server.address).await.expect("a way"), Rights::Local, true);
            let said = match end.id.connect(&mut end.queue, say).await {
                Err(ConnectError::Rejected { said }) => said,
                other => panic!("{other:?}"),
            };
            let rejection = Rejection::decode(&said);
            assert!(rejection.as_ref().is_ok_and(|rejection| rejection.reason == reason), "{rejection:?} {say:?}");
        }
        // It listened all the while.
        drop(server);
    });
}

/// What a server that misbehaves does with the one fetch that it gets: slot, generation, and where the answer belongs.
type Answers = fn(&mut End, &Head) -> Vec<(Vec<u8>, u32)>;

/// A table of one entry, as it should be.
fn good_table(head: &Head, change: impl FnOnce(&mut Entry)) -> Vec<u8> {
    let mut entry = Entry { status: Status::Ok, offset: 0, len: 100, crc: None };
    change(&mut entry);
    let mut bytes = vec![0; 4096];
    let head = table::Head { slot: head.slot, generation: head.generation };
    let len = table::encode_entries(head, &[entry], &mut bytes).expect("a table");
    bytes.truncate(len);
    bytes
}

fn good_imm(head: &Head) -> u32 {
    Imm::of_fetch(head.slot, head.generation, table::status::ENTRIES).encode()
}

#[test]
fn a_server_that_misbehaves_loses_the_connection_and_the_lease_comes_back() {
    let cases: [(&str, Answers); 9] = [
        ("an entry beyond the lease", |_, head| vec![(good_table(head, |entry| entry.offset = 4096), good_imm(head))]),
        ("an entry that is not aligned", |_, head| vec![(good_table(head, |entry| entry.offset = 3), good_imm(head))]),
        ("an entry without an end", |_, head| vec![(good_table(head, |entry| entry.len = u64::MAX), good_imm(head))]),
        ("another generation", |_, head| {
            let head = Head { generation: head.generation + 256, ..*head };
            vec![(good_table(&head, |_| ()), good_imm(&head))]
        }),
        ("noise", |_, head| vec![((0..200).collect(), good_imm(head))]),
        ("no table", |_, head| vec![(vec![0; 1], good_imm(head))]),
        ("a slot that asks nothing", |_, head| vec![(good_table(head, |_| ()), Imm::of_fetch(5, 0, 0).encode())]),
        ("a slot that there is not", |_, head| vec![(good_table(head, |_| ()), Imm::of_fetch(5000, 0, 0).encode())]),
        ("an answer to what was not asked", |_, head| {
            vec![(good_table(head, |_| ()), Imm::of_control(Op::Cancel, 0).encode())]
        }),
    ];
    for (why, answers) in cases {
        run(Content::new(1, 100, 100, 100), |server, source| async move {
            let (listening, address) = listener().await;
            let serving = async {
                let (id, said) = listening.incoming().await.expect("somebody");
                assert!(Hello::decode(&said).is_ok());
                let mut end = End::new(id, Rights::Local, false);
                for at in 0..8 {
                    let piece = end.piece(at * 4096, 4096);
                    end.receive(at as u32, Some(piece));
                }
                let heartbeat = Duration::from_secs(10);
                let welcome = Welcome { version: 1, credits: 8, frame: 4096, table: 4096, heartbeat };
                end.id.accept(&mut end.queue, &welcome.encode()).expect("a connection");
                end.id.event().await.expect("established");
                let (place, len) = match end.done(1).await[0] {
                    Done::Received { id, len, .. } => (id as usize * 4096, len as usize),
                    other => panic!("{other:?}"),
                };
                let head = Frame::decode(&end.lease[place..place + len]).expect("a frame").head;
                for (bytes, imm) in answers(&mut end, &head) {
                    let at = LEASE;
                    end.lease.as_mut_slice()[at..at + bytes.len()].copy_from_slice(&bytes);
                    let from = end.piece(at, bytes.len());
                    end.add(1, Work::WriteImm { from, to: head.table, imm }, true).expect("room");
                    end.queue.post().expect("posted");
                }
                while !end.id.event().await.expect("an event").is_end() {}
            };
            let asking = async {
                let mut bench = Bench::reaching(address, &source.content, server.ticket()).await;
                bench.submit(vec![1], 4096);
                let completion = bench.completion().await;
                assert!(matches!(completion.result, Err(LinkError::Closed(_))), "{why}: {:?}", completion.result);
                drop(completion);
                assert_eq!((bench.account.held(), bench.pool.usage().quarantined), (0, 0), "{why}");
                drop(bench);
            };
            tokio::join!(serving, asking);
        });
    }
}

#[test]
fn a_client_is_told_of_nothing_by_a_server_that_sends_messages() {
    run(Content::new(1, 100, 100, 100), |server, source| async move {
        let (listening, address) = listener().await;
        let serving = async {
            let (id, _) = listening.incoming().await.expect("somebody");
            let mut end = End::new(id, Rights::Local, false);
            for at in 0..8 {
                let piece = end.piece(at * 4096, 4096);
                end.receive(at as u32, Some(piece));
            }
            let heartbeat = Duration::from_secs(10);
            let welcome = Welcome { version: 1, credits: 8, frame: 4096, table: 4096, heartbeat };
            end.id.accept(&mut end.queue, &welcome.encode()).expect("a connection");
            end.id.event().await.expect("established");
            end.done(1).await;
            let piece = end.piece(LEASE, 100);
            end.add(9, Work::Send(piece), true).expect("room");
            end.queue.post().expect("posted");
            assert!(matches!(end.done(1).await[0], Done::Failed { id: 9, fault } if fault != Fault::FLUSHED));
        };
        let asking = async {
            let mut bench = Bench::reaching(address, &source.content, server.ticket()).await;
            bench.submit(vec![1], 4096);
            assert!(matches!(bench.completion().await.result, Err(LinkError::Closed(_))));
        };
        tokio::join!(serving, asking);
    });
}
