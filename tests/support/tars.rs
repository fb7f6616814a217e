//! Shards made in a moment: ustar archives with random bytes of realistic sizes, for when the pictures do not matter.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

const BLOCK: usize = 512;

/// What to make.
#[derive(Clone, Debug)]
pub struct Shards {
    pub shards: usize,
    pub samples: usize,
    /// Size of each sample's `jpg`, in order.
    pub sizes: Sizes,
    pub seed: u64,
}

#[derive(Clone, Debug)]
pub enum Sizes {
    /// As ImageNet's: log-normal with a mean of about 115 KB.
    ImageNet,
    Fixed(usize),
    /// These, again and again.
    Cycle(Vec<usize>),
}

impl Sizes {
    /// The size of sample `ordinal`.
    pub fn draw(&self, ordinal: usize, random: &mut fastrand::Rng) -> usize {
        match self {
            Sizes::ImageNet => {
                // Twelve uniform numbers make a normal one, near enough.
                let normal: f64 = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
                ((98_900.0_f64.ln() + 0.55 * normal).exp() as usize).clamp(2_000, 2_500_000)
            }
            Sizes::Fixed(size) => *size,
            Sizes::Cycle(sizes) => sizes[ordinal % sizes.len()],
        }
    }
}

/// One sample that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    pub key: String,
    pub jpg: Vec<u8>,
    pub cls: Vec<u8>,
}

/// Writes `shard-000000.tar` and so on into `folder`, hands each sample to `each`, and returns the paths.
pub fn write(folder: &Path, what: &Shards, mut each: impl FnMut(Written)) -> io::Result<Vec<PathBuf>> {
    let mut random = fastrand::Rng::with_seed(what.seed);
    let mut paths = Vec::new();
    for shard in 0..what.shards {
        let path = folder.join(format!("shard-{shard:06}.tar"));
        let mut tar = BufWriter::with_capacity(1 << 20, File::create(&path)?);
        for ordinal in what.samples * shard / what.shards..what.samples * (shard + 1) / what.shards {
            let mut jpg = vec![0; what.sizes.draw(ordinal, &mut random)];
            random.fill(&mut jpg);
            let cls = random.u32(0..1000).to_string().into_bytes();
            let key = format!("n{ordinal:07}/img");
            member(&mut tar, &format!("{key}.cls"), &cls)?;
            member(&mut tar, &format!("{key}.jpg"), &jpg)?;
            each(Written { key, jpg, cls });
        }
        tar.write_all(&[0; 2 * BLOCK])?;
        tar.flush()?;
        paths.push(path);
    }
    Ok(paths)
}

/// Appends one ustar member: header, data, padding.
pub fn member(tar: &mut impl Write, name: &str, data: &[u8]) -> io::Result<()> {
    assert!(name.len() <= 100, "{name}: longer than a ustar header holds");
    let mut header = [0; BLOCK];
    header[..name.len()].copy_from_slice(name.as_bytes());
    for (at, text) in [
        (100, "0000644\0".to_owned()),
        (108, "0000000\0".to_owned()),
        (116, "0000000\0".to_owned()),
        (124, format!("{:011o}\0", data.len())),
        (136, "00000000000\0".to_owned()),
        (148, "        ".to_owned()),
        (156, "0".to_owned()),
        (257, "ustar\x0000".to_owned()),
    ] {
        header[at..at + text.len()].copy_from_slice(text.as_bytes());
    }
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    tar.write_all(&header)?;
    tar.write_all(data)?;
    tar.write_all(&[0; BLOCK][..data.len().next_multiple_of(BLOCK) - data.len()])
}
