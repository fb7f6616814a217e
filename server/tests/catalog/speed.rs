//! Figures, by hand: `cargo test --release -p forebay-server --test catalog speed -- --ignored --nocapture --test-threads=1`.

use std::fs::File;
use std::io::Read;
use std::time::Instant;

use super::support::{Place, quiet, tar};

/// Builds on one thread, and next to it what the same reads, CRC-32C and BLAKE3 cost without any format.
fn compare(members: usize, size: usize, shards: usize) {
    let place = Place::new();
    for shard in 0..shards {
        let data: Vec<u8> = (0..size).map(|at| (at * 31 + shard) as u8).collect();
        let members: Vec<_> = (0..members).map(|i| (format!("{shard}/{i:06}.jpg"), &data)).collect();
        place.put(&format!("{shard}.tar"), &tar(&members));
    }
    let mut request = place.request();
    request.threads = 1;
    let mut buffer = vec![0; 2 << 20];
    for _ in 0..3 {
        let begun = Instant::now();
        let mut bytes = 0;
        for source in &request.sources {
            let (mut file, mut hasher, mut crc) =
                (File::open(source.place.file().expect("a file")).expect("there"), blake3::Hasher::new(), 0);
            loop {
                let read = file.read(&mut buffer).expect("readable");
                if read == 0 {
                    break;
                }
                hasher.update(&buffer[..read]);
                crc = crc32c::crc32c_append(crc, &buffer[..read]);
                bytes += read;
            }
            std::hint::black_box((hasher.finalize(), crc));
        }
        let bare = begun.elapsed().as_secs_f64();
        let _ = std::fs::remove_file(place.index());
        let begun = Instant::now();
        let built = quiet(&request).expect("intact shards");
        let ours = begun.elapsed().as_secs_f64();
        assert_eq!(built.bytes_read, bytes as u64);
        let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
        let samples = (members * shards) as f64;
        println!(
            "{size} B × {samples}: {:.2} GB/s, bare {:.2} GB/s, ratio {:.2}, {:.0} samples/s",
            rate(ours),
            rate(bare),
            bare / ours,
            samples / ours
        );
    }
}

#[test]
#[ignore = "writes 2 GB and prints figures"]
fn large_samples() {
    compare(2_000, 115_000, 8);
}

#[test]
#[ignore = "writes 2 GB and prints figures"]
fn tiny_samples() {
    compare(200_000, 400, 8);
}
