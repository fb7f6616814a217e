"""Writes tars of every kind that the readers of ours have to agree on with the webdataset package.

usage: make_tars.py FOLDER SEED COUNT

COUNT tars come from random names, kinds and formats; a quarter as many again are such tars damaged at random. A few
fixed ones are written besides: by GNU tar in each of its formats, and by webdataset's own writers.
"""

import bz2
import gzip
import io
import lzma
import os
import random
import subprocess
import sys
import tarfile

import webdataset

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
STEMS = ["a", "b", "0001", "img_7", "sub/a", "sub/b", "./c", "../up", "/abs", "deep/er/still/d", "sp ace", "é", "日本", "x//y"]
ODD_STEMS = ["", ".", "sub/", "s.b/a", "s.b/", "a.b/c.d/", "__", "__a", "__meta__", "__m__/a", "sub/__m__", "n\nl", "n\nl/s.t/a", "\udcff\udcfe", "..", "a\x01"]
FIELDS = ["jpg", "JPG", "cls", "json", "seg.png", "Seg.PNG", "txt", "", "ΣΑΣ", "İ", "ǅ", "b.in", "__x__"]
ODD_FIELDS = ["__key__", "__url__", "__bad__", "__BAD__", "j\npg", "jpg\n", "\udce9t", " ", ".", "..x"]


def member(rng, odd):
    """A random name."""
    if rng.random() < odd:
        return rng.choice(["__meta__", "__a.b__", "____", "___", "__", "__m__/x.jpg", "__a__\n", "__a.jpg", "noext", ".hid",
                           "sub/.hid", "s.t/.hid", "s.t/u/.hid", "./.hid", "dir/", "a..jpg", "sub/..x", "a.", "__a__.jpg"])
    stem = rng.choice(ODD_STEMS if rng.random() < odd else STEMS)
    if rng.random() < 0.1:
        stem = "/".join(["long" * rng.randrange(1, 30)] * rng.randrange(1, 6)) + "/" + stem.strip("/")
    field = rng.choice(ODD_FIELDS if rng.random() < odd else FIELDS)
    return stem + "." + field


def random_tar(rng):
    form = rng.choice(FORMATS)
    odd = rng.choice([0, 0, 0.05, 0.3])
    out = io.BytesIO()
    pax = {}
    if rng.random() < 0.2:
        pax = {"comment": "c" * rng.randrange(600)}
    tar = tarfile.open(fileobj=out, mode="w", format=form, pax_headers=pax, errors="surrogateescape")
    names = []
    key = None
    for _ in range(rng.randrange(12)):
        name = member(rng, odd)
        if key is not None and rng.random() < 0.5:
            name = key + "." + rng.choice(FIELDS)
        if name in names and rng.random() < 0.8:
            continue
        names.append(name)
        key = name.split(".")[0]
        info = tarfile.TarInfo(name)
        data = b""
        kind = rng.random()
        if kind < 0.8:
            size = rng.choice([0, 1, 100, 511, 512, 513, 1024, rng.randrange(5000)])
            data = rng.randbytes(size)
            if kind < 0.05:
                info.type = rng.choice([tarfile.CONTTYPE, tarfile.AREGTYPE])
        else:
            info.type = rng.choice([tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, b"V", b"Z"])
            info.linkname = rng.choice(["a.jpg", "l" * 150])
            if info.type in (b"V", b"Z"):
                data = rng.randbytes(700)
        info.size = len(data)
        info.mtime = rng.choice([0, 1700000000, 1700000000.25]) if form == tarfile.PAX_FORMAT else 1700000000
        if form == tarfile.GNU_FORMAT and rng.random() < 0.3:
            info.mtime, info.uid = -5, 1 << 40
        if form == tarfile.PAX_FORMAT and rng.random() < 0.2:
            info.pax_headers = {"comment": "=\n" * rng.randrange(9), "SCHILY.xattr.user.x": "y"}
            if rng.random() < 0.3:
                info.pax_headers["size"] = str(len(data))
            if rng.random() < 0.3:
                info.pax_headers["path"] = member(rng, odd) + rng.choice(["", "/"])
        try:
            head = info.tobuf(form, "utf-8", "surrogateescape")
        except ValueError:
            continue
        # Kinds that tarfile would not write with data get their blocks here.
        tar.fileobj.write(head + data + bytes(-len(data) % 512))
        tar.offset += len(head) + len(data) + (-len(data) % 512)
    tar.close()
    whole = out.getvalue()
    end = rng.random()
    if end < 0.1:
        whole = whole[: tar.offset]
    elif end < 0.2:
        whole += rng.randbytes(1000)
    elif end < 0.25:
        whole += whole
    elif end < 0.3:
        whole = whole.rstrip(b"\0")
    return whole


def damage(rng, whole):
    whole = bytearray(whole)
    for _ in range(rng.choice([1, 1, 3])):
        at = rng.randrange(len(whole))
        how = rng.random()
        if how < 0.4:
            whole[at] ^= 1 << rng.randrange(8)
        elif how < 0.6:
            whole[at] = rng.choice(b"\0 /079\x80\xff")
        elif how < 0.8:
            # The end.
            del whole[at:]
            if not whole:
                break
        elif how < 0.9:
            del whole[at : at + rng.choice([1, 512])]
        else:
            # A header whose checksum is right whatever else it says.
            at -= at % 512
            block = whole[at : at + 512]
            if len(block) == 512 and any(block):
                start = rng.choice([0, 124, 124, 124, 136, 156, 156, 345])
                block[start : start + rng.choice([1, 8])] = rng.choice([b"9", b"7", b"\xff", b"\x80", b"x", b"L", b"g", b"S", b"       1"])
                block = block[:512]
                block[148:156] = b" " * 8
                block[148:156] = b"%06o\0 " % sum(block)
                whole[at : at + 512] = block
        if not whole:
            break
    return bytes(whole)


def files(folder):
    os.makedirs(os.path.join(folder, "sub", "deeper" * 20))
    for name, size in [("a.jpg", 3000), ("a.cls", 1), ("sub/b.JPG", 512), ("sub/b.txt", 0), ("sub/" + "deeper" * 20 + "/" + "n" * 120 + ".bin", 70)]:
        with open(os.path.join(folder, name), "wb") as file:
            file.write(random.Random(name).randbytes(size))
    os.symlink("a.jpg", os.path.join(folder, "link.jpg"))
    os.link(os.path.join(folder, "a.jpg"), os.path.join(folder, "z.jpg"))


def gnu_tar(folder, name, options, names):
    archive = os.path.join(folder, "gnu-" + name + ".tar")
    source = os.path.join(folder, "source")
    subprocess.run(["tar", "-C", source, "-cf", archive] + options + names, check=True, env={**os.environ, "LC_ALL": "C"})


def fixed(folder):
    source = os.path.join(folder, "source")
    files(source)
    for form in ["v7", "oldgnu", "gnu", "ustar", "pax"]:
        # These two have no room for long names.
        short = ["--exclude", "deeper*"] if form in ("v7", "ustar") else []
        names = ["a.jpg", "a.cls", "sub", "link.jpg", "z.jpg"]
        gnu_tar(folder, form, ["--format", form, "--sort=name"] + short, names)
    gnu_tar(folder, "incremental", ["--format=gnu", "--listed-incremental=" + os.path.join(folder, "snapshot")], ["."])
    gnu_tar(folder, "label", ["--label=a.label"], ["a.jpg"])
    with open(os.path.join(source, "holes.bin"), "wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 19)
        file.write(b"x")
    for form in ["gnu", "pax"]:
        gnu_tar(folder, "sparse-" + form, ["--format", form, "--sparse"], ["a.jpg", "holes.bin"])
    with open(os.path.join(folder, "gnu-pax.tar"), "rb") as file:
        whole = file.read()
    for packer in [gzip, bz2, lzma]:
        with open(os.path.join(folder, "packed-" + packer.__name__ + ".tar"), "wb") as file:
            file.write(packer.compress(whole))
    with webdataset.TarWriter(os.path.join(folder, "writer.tar")) as sink:
        for i in range(50):
            sink.write({"__key__": "sample%06d" % i, "cls": i, "json": {"i": i}, "txt": "text %d" % i, "pyd": [i]})
    with webdataset.ShardWriter(os.path.join(folder, "shards-%06d.tar"), maxcount=7, verbose=0) as sink:
        for i in range(20):
            # The last key of a shard begins the next.
            sink.write({"__key__": "k%d" % (i - (i % 7 == 0 and i > 0)), "cls": i, "bin": bytes(i)})


def main():
    folder, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    os.makedirs(folder, exist_ok=True)
    fixed(folder)
    for i in range(count + count // 4):
        whole = random_tar(rng)
        name = "random-%05d.tar" % i
        if i >= count:
            whole, name = damage(rng, whole or b"\0"), "damaged-%05d.tar" % i
        with open(os.path.join(folder, name), "wb") as file:
            file.write(whole)


main()
