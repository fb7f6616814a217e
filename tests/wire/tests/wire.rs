//! The wire is as it was said to be, for TCP and UDP as the kernel sends them.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use forebay_wire::{Burst, Carried, Settings, Wire, WireError};

const MS: Duration = Duration::from_millis(1);
const ANY: (Ipv4Addr, u16) = (Ipv4Addr::UNSPECIFIED, 0);
const NEAR: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// Times are measured here: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// `None` on machines where there can be no wire, which is said.
fn wire(settings: Settings) -> Option<(Wire, MutexGuard<'static, ()>)> {
    let alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    match Wire::new(settings) {
        Ok(wire) => Some((wire, alone)),
        Err(error @ (WireError::Ip { .. } | WireError::Tun(_))) if !rustix::process::getuid().is_root() => {
            println!("!! SKIPPED: a wire between namespaces takes root: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A connection from the far end to the near one, and how long it took to make.
fn connect(wire: &Wire) -> (TcpStream, TcpStream, Duration) {
    let listener = wire.near().inside(|| TcpListener::bind((NEAR, 0))).unwrap().unwrap();
    let address = listener.local_addr().unwrap();
    let begun = Instant::now();
    let timeout = Duration::from_secs(10);
    let far = wire.far().inside(|| TcpStream::connect_timeout(&address, timeout)).unwrap().unwrap();
    let elapsed = begun.elapsed();
    let near = listener.accept().unwrap().0;
    for stream in [&near, &far] {
        stream.set_read_timeout(Some(timeout)).unwrap();
        stream.set_write_timeout(Some(timeout)).unwrap();
    }
    (near, far, elapsed)
}

/// Sends `bytes` from the far end to the near one, compares them, and says how long they took.
fn pour((mut near, mut far): (TcpStream, TcpStream), bytes: usize) -> Duration {
    let content: Vec<u8> = (0..bytes).map(|n| (n * 7 + n / 251) as u8).collect();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| far.write_all(&content));
        let mut got = vec![0; bytes];
        near.read_exact(&mut got).unwrap();
        sending.join().unwrap().unwrap();
        assert!(got == content, "other bytes than were sent");
    });
    begun.elapsed()
}

#[test]
fn a_round_trip_takes_what_was_said() {
    let Some((wire, _alone)) = wire(Settings { delay: 40 * MS, ..Settings::default() }) else { return };
    let (mut near, mut far, connecting) = connect(&wire);
    assert!(connecting >= 80 * MS, "{connecting:?}");
    let echo = |far: &mut TcpStream, near: &mut TcpStream| -> io::Result<Duration> {
        let begun = Instant::now();
        far.write_all(b"x")?;
        near.read_exact(&mut [0])?;
        near.write_all(b"y")?;
        far.read_exact(&mut [0])?;
        Ok(begun.elapsed())
    };
    // The least of some: other processes have their turns too.
    let least = (0..20).map(|_| echo(&mut far, &mut near).unwrap()).min().unwrap();
    assert!((80 * MS..85 * MS).contains(&least), "{least:?}");
}

#[test]
fn a_rate_is_kept_and_the_queue_overflows_instead() {
    let settings = Settings { delay: 5 * MS, rate: Some(100_000_000), ..Settings::default() };
    let Some((wire, _alone)) = wire(settings) else { return };
    let (near, far, _) = connect(&wire);
    let bytes = 20_000_000;
    let took = pour((near, far), bytes).as_secs_f64();
    let [_, carried] = wire.carried();
    // By what went over the wire: packets that were sent again too.
    let rate = carried.bytes as f64 * 8.0 / took;
    assert!((0.6..1.02).contains(&(rate / 100e6)), "{rate} bits per second: {carried:?}");
    assert_eq!(carried.lost, 0);
}

/// Segments that the kernel left together are lost one by one, and come late one by one; TCP puts it right.
#[test]
fn bytes_survive_whatever_the_wire_does_to_their_segments() {
    let settings = Settings {
        delay: 2 * MS,
        jitter: MS,
        loss: 0.01,
        burst: Some(Burst { start: 0.001, mean: 4.0 }),
        reorder: 0.01,
        ..Settings::default()
    };
    let Some((wire, _alone)) = wire(settings) else { return };
    let (near, far, _) = connect(&wire);
    pour((near, far), 10_000_000);
    let [_, Carried { segments, lost, late, .. }] = wire.carried();
    let (lost, late) = (lost as f64 / segments as f64, late as f64 / segments as f64);
    assert!(segments > 5000 && (0.005..0.03).contains(&lost) && (0.005..0.02).contains(&late), "{lost} {late}");
}

/// Datagrams arrive as they were sent, but for those that are lost.
#[test]
fn datagrams_are_lost_one_by_one() {
    let Some((wire, _alone)) = wire(Settings { delay: 10 * MS, loss: 0.1, ..Settings::default() }) else { return };
    let near = wire.near().inside(|| UdpSocket::bind((NEAR, 0))).unwrap().unwrap();
    let far = wire.far().inside(|| UdpSocket::bind(ANY)).unwrap().unwrap();
    near.set_read_timeout(Some(200 * MS)).unwrap();
    let address: SocketAddr = near.local_addr().unwrap();
    let count = 2000u32;
    let (mut got, mut buffer) = (Vec::new(), [0; 2000]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..count {
                far.send_to(&[&n.to_be_bytes()[..], &[n as u8; 1000]].concat(), address).unwrap();
                if n % 50 == 0 {
                    std::thread::sleep(MS);
                }
            }
        });
        // The socket holds no more than some hundred of them.
        while let Ok(len) = near.recv(&mut buffer) {
            let n = u32::from_be_bytes(buffer[..4].try_into().unwrap());
            assert!(len == 1004 && buffer[4..len].iter().all(|&byte| byte == n as u8), "{n}");
            got.push(n);
        }
    });
    assert!(got.is_sorted(), "in order");
    let [_, carried] = wire.carried();
    assert_eq!((got.len() as u64, carried.segments + carried.lost), (carried.segments, count.into()), "{carried:?}");
    assert!((100..300).contains(&carried.lost), "{carried:?}");
}

#[test]
fn a_wire_that_is_cut_carries_again_when_it_is_mended() {
    let Some((wire, _alone)) = wire(Settings { delay: MS, ..Settings::default() }) else { return };
    let (near, far, _) = connect(&wire);
    wire.set_down(true);
    let mut cut = far.try_clone().unwrap();
    cut.write_all(b"lost at first").unwrap();
    let mut buffer = [0; 13];
    near.set_read_timeout(Some(300 * MS)).unwrap();
    assert!((&near).read(&mut buffer).is_err());
    wire.set_down(false);
    near.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    (&near).read_exact(&mut buffer).unwrap();
    assert_eq!(&buffer, b"lost at first");
}

#[test]
fn nothing_is_left_behind() {
    let Some((wire, _alone)) = wire(Settings::default()) else { return };
    let folder = Path::new("/run/netns");
    let names = [wire.near(), wire.far()].map(|end| folder.join(end.name()));
    assert!(names.iter().all(|name| name.exists()));
    drop(wire);
    assert!(names.iter().all(|name| !name.exists()));
}

#[test]
fn two_commands_find_each_other_at_the_ends() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if !rustix::process::getuid().is_root() {
        println!("!! SKIPPED: a wire between namespaces takes root");
        return;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_wire"));
    command.args(["--rtt", "20ms", "sleep 30 & wait", "test -d /sys/class/net/wire0 && exit 7"]);
    let begun = Instant::now();
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert!(said.contains("10.77.0.2 → 10.77.0.1") && begun.elapsed() < Duration::from_secs(20), "{said}");
}
