"""Prints what the webdataset package yields from tars, one JSON document per line.

usage: dump_webdataset.py [--together] SHARD...

Without --together each shard is a dataset of its own; with it, all are one, in the order given. Nothing is shuffled and
nothing is decoded. A sample's line has "shard", "key" (for people), "key_hex", and "fields": a list sorted by name with
"name", "name_hex", "bytes", "crc32c" and "sha256". A shard that ends in an exception ends in a line with "shard" and
"error".
"""

import hashlib
import json
import sys
import zlib  # noqa: F401  (tarfile needs it; its absence should fail here)

import webdataset

TABLE = []
for number in range(256):
    for _ in range(8):
        number = (number >> 1) ^ (0x82F63B78 if number & 1 else 0)
    TABLE.append(number)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def raw(text):
    return text.encode("utf-8", "surrogateescape")


def shown(text):
    return raw(text).decode("utf-8", "replace")


def dump(shards, name):
    dataset = webdataset.WebDataset(shards, shardshuffle=False, empty_check=False)
    try:
        for sample in dataset:
            fields = []
            for field, data in sample.items():
                if field in ("__key__", "__url__", "__local_path__"):
                    continue
                fields.append(
                    {
                        "name": shown(field),
                        "name_hex": raw(field).hex(),
                        "bytes": len(data),
                        "crc32c": "%08x" % crc32c(data),
                        "sha256": hashlib.sha256(data).hexdigest(),
                    }
                )
            fields.sort(key=lambda field: bytes.fromhex(field["name_hex"]))
            key = sample["__key__"]
            line = {"shard": sample["__url__"], "key": shown(key), "key_hex": raw(key).hex(), "fields": fields}
            print(json.dumps(line))
    except Exception as error:  # whatever it is, a training loop would see it
        print(json.dumps({"shard": name, "error": ascii(error)}))


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["--together"]:
        dump(arguments[1:], "all")
    else:
        for shard in arguments:
            dump([shard], shard)


main()
