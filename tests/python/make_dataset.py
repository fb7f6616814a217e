#!/usr/bin/env python3
"""Makes a realistic data set: real JPEGs with ImageNet's sizes, packed as WebDataset tars.

The photographs are those that scikit-image carries with it: nothing is downloaded. Each image is a random crop of one of
them, rescaled and encoded so that its file hits a size drawn from a log-normal with a tail to 2.5 MB, with a mean of about
115 KB, as in ImageNet's training set. A few thousand are encoded and used again with another comment segment inside the
JPEG, so that no two samples hold the same bytes. A sample's `json` holds its ordinal and the SHA-256 of its `jpg`.

A folder made before with the same options is left alone.
"""

import argparse
import hashlib
import io
import json
import multiprocessing
import os
import random
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import time

PHOTOS = (
    "astronaut.png camera.png chelsea.png coffee.png hubble_deep_field.jpg rocket.jpg motorcycle_left.png "
    "motorcycle_right.png retina.jpg ihc.png coins.png gravel.png grass.png brick.png moon.png"
).split()
DISTINCT = 4096
CLASSES = 1000
LARGEST = 2_500_000

_photos = []


def load_photos():
    """Decodes the photographs once for each worker process."""
    import skimage.data
    from PIL import Image

    folder = os.path.dirname(skimage.data.__file__)
    for name in PHOTOS:
        path = os.path.join(folder, name)
        if os.path.exists(path):
            _photos.append((name, Image.open(path).convert("RGB")))
    if not _photos:
        raise SystemExit(f"no photographs found in {folder}: is scikit-image complete?")


def draw_size(rng):
    if rng.random() < 0.003:
        return int(rng.uniform(400_000, LARGEST))
    return min(LARGEST, max(2_000, int(rng.lognormvariate(11.533, 0.55))))


def encode(job):
    """One JPEG of about `target` bytes: each encoding corrects what the one before got wrong."""
    from PIL import Image

    seed, target = job
    rng = random.Random(seed)
    name, photo = rng.choice(_photos)
    quality = rng.choice((85, 90, 95))
    share = rng.uniform(0.5, 1.0)
    crop_w, crop_h = int(photo.width * share), int(photo.height * rng.uniform(0.5, 1.0))
    left, top = rng.randint(0, photo.width - crop_w), rng.randint(0, photo.height - crop_h)
    crop = photo.crop((left, top, left + crop_w, top + crop_h))
    if rng.random() < 0.5:
        crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = target * 2.5
    for _ in range(3):
        scale = (pixels / (crop.width * crop.height)) ** 0.5
        size = (max(16, int(crop.width * scale)), max(16, int(crop.height * scale)))
        out = io.BytesIO()
        crop.resize(size, Image.Resampling.BILINEAR).save(out, "JPEG", quality=quality)
        jpeg = out.getvalue()
        if 0.85 < len(jpeg) / target < 1.15:
            break
        pixels = size[0] * size[1] * (target / len(jpeg)) ** 1.25
    return name, size, jpeg


def with_comment(jpeg, text):
    """The same picture with a comment segment after the start marker: other bytes, still a JPEG for everyone."""
    payload = text.encode()
    return jpeg[:2] + b"\xff\xfe" + struct.pack(">H", len(payload) + 2) + payload + jpeg[2:]


def make_images(distinct, seed):
    rng = random.Random(seed)
    jobs = [(rng.getrandbits(48), draw_size(rng)) for _ in range(distinct)]
    workers = min(os.cpu_count() or 1, 16)
    if distinct < 64 or workers == 1:
        if not _photos:
            load_photos()
        return [encode(job) for job in jobs]
    with multiprocessing.Pool(workers, initializer=load_photos) as pool:
        return pool.map(encode, jobs, chunksize=16)


def samples(images, count, seed, long_names):
    """Yields (key, fields); ends after `count`."""
    rng = random.Random(seed + 1)
    for ordinal in range(count):
        name, size, jpeg = images[ordinal % len(images)]
        label = rng.randrange(CLASSES)
        jpg = with_comment(jpeg, f"sample {ordinal} of seed {seed}")
        key = f"n{label:08d}/img_{ordinal:07d}"
        if long_names and ordinal % 2 == 0:
            # Over the 100 bytes of a ustar name in two ways: one long component, and beyond ASCII.
            key = f"n{label:08d}/" + "long-" * 24 + f"\u00e9t\u00e9_{ordinal:07d}"
        about = {"ordinal": ordinal, "sha256": hashlib.sha256(jpg).hexdigest(), "photo": name, "size": size}
        yield key, {"jpg": jpg, "cls": str(label).encode(), "json": json.dumps(about).encode()}


def shard_sizes(count, shards):
    return [count // shards + (1 if index < count % shards else 0) for index in range(shards)]


def write_webdataset(made, sizes, pattern):
    import webdataset

    for index, size in enumerate(sizes):
        # ShardWriter numbers and names shards itself; one writer for each keeps the shards' sizes exact.
        limits = {"maxcount": size + 1, "maxsize": 1 << 50}
        with webdataset.ShardWriter(pattern, start_shard=index, verbose=0, **limits) as writer:
            for _ in range(size):
                key, fields = next(made)
                about, label = json.loads(fields["json"]), int(fields["cls"])
                writer.write({"__key__": key, "jpg": fields["jpg"], "cls": label, "json": about})


def write_tarfile(made, sizes, pattern):
    for index, size in enumerate(sizes):
        with tarfile.open(pattern % index, "w", format=tarfile.PAX_FORMAT) as tar:
            for _ in range(size):
                key, fields = next(made)
                for field, data in fields.items():
                    member = tarfile.TarInfo(f"{key}.{field}")
                    member.size, member.mtime = len(data), 1_700_000_000.25  # a fraction: PAX stores it as a record
                    tar.addfile(member, io.BytesIO(data))


def write_gnutar(made, sizes, pattern):
    for index, size in enumerate(sizes):
        with tempfile.TemporaryDirectory(dir=os.path.dirname(pattern)) as folder:
            for _ in range(size):
                key, fields = next(made)
                os.makedirs(os.path.join(folder, os.path.dirname(key)), exist_ok=True)
                for field, data in fields.items():
                    with open(os.path.join(folder, f"{key}.{field}"), "wb") as out:
                        out.write(data)
            tar = ["tar", "--format=gnu", "--sort=name", "-cf", pattern % index, "-C", folder, "."]
            subprocess.run(tar, check=True)


WRITERS = {"webdataset": write_webdataset, "tarfile": write_tarfile, "gnutar": write_gnutar}


def parse_size(text):
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number = text.rstrip("iB")
    unit = units.get(number[-1:].upper(), 1)
    return int(float(number[:-1] if unit > 1 else number) * unit)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="made if need be; shards are called PREFIX-000000.tar and so on")
    amount = parser.add_mutually_exclusive_group(required=True)
    amount.add_argument("--count", type=int, help="samples in all")
    amount.add_argument("--bytes", type=parse_size, help="at least so many bytes in all (2GiB, 512MiB)")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prefix", default="shard")
    parser.add_argument("--writer", choices=WRITERS, default="webdataset")
    parser.add_argument("--distinct", type=int, default=DISTINCT, help="pictures to encode; further samples reuse them")
    parser.add_argument("--long-names", action="store_true", help="every other sample gets a name that ustar cannot hold")
    options = parser.parse_args()

    wanted = {name: value for name, value in vars(options).items() if name != "folder"}
    stamp = os.path.join(options.folder, f"{options.prefix}.made.json")
    if os.path.exists(stamp):
        with open(stamp, encoding="utf-8") as file:
            made = json.load(file)
        pattern = os.path.join(options.folder, f"{options.prefix}-%06d.tar")
        if made["options"] == wanted and all(os.path.exists(pattern % index) for index in range(options.shards)):
            print(json.dumps(made["summary"]))
            return
        os.remove(stamp)

    os.makedirs(options.folder, exist_ok=True)
    for name in os.listdir(options.folder):
        if name.startswith(options.prefix + "-") and name.endswith(".tar"):
            os.remove(os.path.join(options.folder, name))
    started = time.monotonic()
    count = options.count
    if count is None:
        images = make_images(min(options.distinct, max(16, options.bytes // 100_000)), options.seed)
        mean = sum(len(jpeg) for _, _, jpeg in images) / len(images)
        count = max(1, -(-options.bytes // int(mean)))
    else:
        images = make_images(min(options.distinct, count), options.seed)
    encoded = time.monotonic()
    expected = sum(len(images[index % len(images)][2]) for index in range(count))
    free = shutil.disk_usage(options.folder).free
    if free < expected * 1.1 + (64 << 20):
        raise SystemExit(f"{options.folder}: {expected >> 20} MiB are needed and {free >> 20} MiB are free")

    sizes = shard_sizes(count, options.shards)
    pattern = os.path.join(os.path.abspath(options.folder), f"{options.prefix}-%06d.tar")
    WRITERS[options.writer](samples(images, count, options.seed, options.long_names), sizes, pattern)
    total = sum(os.path.getsize(pattern % index) for index in range(options.shards))
    lengths = sorted(len(images[index % len(images)][2]) for index in range(count))
    summary = {
        "samples": count,
        "shards": options.shards,
        "bytes": total,
        "jpg_mean": sum(lengths) // count,
        "jpg_p50": lengths[count // 2],
        "jpg_p99": lengths[count * 99 // 100],
        "jpg_max": lengths[-1],
    }
    with open(stamp, "w", encoding="utf-8") as file:
        json.dump({"options": wanted, "summary": summary}, file)
    print(f"encoded in {encoded - started:.1f} s, written in {time.monotonic() - encoded:.1f} s", file=sys.stderr)
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
