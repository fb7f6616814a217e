//! The delay line between real sockets: how late, in which order, how much of it, and how it ends.

use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use forebay_transport::sim::delay::{DelayConfig, DelayLine};

const PATIENCE: Duration = Duration::from_secs(5);

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket
}

/// Sends back whatever comes, until a datagram of one byte.
fn echo() -> (SocketAddr, thread::JoinHandle<()>) {
    let socket = socket();
    let addr = socket.local_addr().expect("an address");
    let thread = thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            if length == 1 {
                break;
            }
            socket.send_to(&buffer[..length], from).expect("an echo");
        }
    });
    (addr, thread)
}

#[test]
fn datagrams_come_back_a_round_trip_later_in_order() {
    let (target, thread) = echo();
    let rtt = Duration::from_millis(50);
    let line = DelayLine::start(target, DelayConfig::round_trip(rtt)).expect("a delay line");
    let client = socket();
    let mut times = Vec::new();
    for _ in 0..5 {
        let sent = Instant::now();
        client.send_to(b"once", line.addr()).expect("sent");
        client.recv_from(&mut [0; 64]).expect("an answer");
        times.push(sent.elapsed());
    }
    assert!(times.iter().all(|time| *time >= rtt), "{times:?}: faster than the path");
    let best = times.iter().min().expect("five times");
    assert!(*best < rtt + Duration::from_millis(10), "{times:?}: the line adds more than it should");

    let started = Instant::now();
    for number in 0..200_u32 {
        client.send_to(&number.to_le_bytes(), line.addr()).expect("sent");
    }
    let mut buffer = [0; 64];
    let order: Vec<u32> = (0..200)
        .map(|_| {
            let (length, _) = client.recv_from(&mut buffer).expect("every datagram comes back");
            u32::from_le_bytes(buffer[..length].try_into().expect("four bytes"))
        })
        .collect();
    assert!(order.is_sorted(), "{order:?}");
    assert!(started.elapsed() < 10 * rtt, "they travel side by side, not one after another: {:?}", started.elapsed());
    let (there, back) = line.stats();
    assert_eq!((there.forwarded, back.forwarded), (205, 205));
    client.send_to(b"!", target).expect("sent");
    thread.join().expect("the echo");
}

#[test]
fn two_clients_get_their_own_answers() {
    let (target, thread) = echo();
    let line = DelayLine::start(target, DelayConfig::default()).expect("a delay line");
    let (one, two) = (socket(), socket());
    for (client, text) in [(&one, b"one"), (&two, b"two")] {
        client.send_to(text, line.addr()).expect("sent");
    }
    for (client, text) in [(&one, b"one"), (&two, b"two")] {
        let mut buffer = [0; 64];
        let (length, from) = client.recv_from(&mut buffer).expect("an answer");
        assert_eq!((&buffer[..length], from), (&text[..], line.addr()));
    }
    one.send_to(b"!", target).expect("sent");
    thread.join().expect("the echo");
}

#[test]
fn losses_are_counted_and_nothing_else_is_missing() {
    let target = socket();
    let config = DelayConfig { loss: 0.2, seed: 4, ..DelayConfig::default() };
    let line = DelayLine::start(target.local_addr().expect("an address"), config).expect("a delay line");
    target.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
    // Read while they come: how much the kernel keeps for a slow reader is not what is tested.
    let reader = thread::spawn(move || std::iter::from_fn(|| target.recv_from(&mut [0; 64]).ok()).count() as u64);
    let client = socket();
    for number in 0..500_u32 {
        client.send_to(&number.to_le_bytes(), line.addr()).expect("sent");
        thread::sleep(Duration::from_micros(50));
    }
    let arrived = reader.join().expect("the reader");
    let (there, _) = line.stats();
    assert_eq!((there.forwarded, there.forwarded + there.lost), (arrived, 500));
    assert!((60..140).contains(&there.lost), "{there:?}");
}

#[test]
fn dropping_it_ends_it_at_once_and_frees_the_port() {
    let target = socket();
    let config = DelayConfig::round_trip(Duration::from_secs(60));
    let line = DelayLine::start(target.local_addr().expect("an address"), config).expect("a delay line");
    let addr = line.addr();
    socket().send_to(b"still travelling", addr).expect("sent");
    thread::sleep(Duration::from_millis(20));
    let started = Instant::now();
    drop(line);
    assert!(started.elapsed() < Duration::from_millis(500), "{:?}", started.elapsed());
    UdpSocket::bind(addr).expect("the port is free again");
}

/// Not a promise, a reading: what the line carries must be well above what is measured through it.
#[test]
#[ignore = "prints the line's ceiling on this machine; run in release, alone"]
fn a_delay_line_has_room() {
    let target = socket();
    let addr = target.local_addr().expect("an address");
    let line = DelayLine::start(addr, DelayConfig::round_trip(Duration::from_millis(50))).expect("a delay line");
    let state = quinn_udp::UdpSocketState::new((&target).into()).expect("offloads");
    target.set_nonblocking(false).expect("blocking");
    target.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
    let to = line.addr();
    let sender = thread::spawn(move || {
        let client = socket();
        let offload = quinn_udp::UdpSocketState::new((&client).into()).expect("offloads");
        client.set_nonblocking(false).expect("blocking");
        let contents = vec![7; 1452 * 10];
        let until = Instant::now() + Duration::from_secs(3);
        while Instant::now() < until {
            let (segment_size, contents) = (Some(1452), &contents[..]);
            let transmit = quinn_udp::Transmit { destination: to, ecn: None, contents, segment_size, src_ip: None };
            let _ = offload.try_send((&client).into(), &transmit);
        }
    });
    let (mut buffer, mut bytes, mut first, mut last) = (vec![0; 1 << 16], 0, None, Instant::now());
    let mut meta = [quinn_udp::RecvMeta::default()];
    while state.recv((&target).into(), &mut [std::io::IoSliceMut::new(&mut buffer)], &mut meta).is_ok() {
        bytes += meta[0].len;
        last = Instant::now();
        first.get_or_insert(last);
    }
    sender.join().expect("the sender");
    let seconds = (last - first.expect("something arrived")).as_secs_f64();
    println!("the delay line carried {:.0} MB/s; {:?}", bytes as f64 / seconds / 1e6, line.stats().0);
}
