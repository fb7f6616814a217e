"""Prints the members of tars as Python's own tarfile reads them, grouped into samples by the plain rule.

usage: dump_tarfile.py SHARD...

A sample is a run of files with the same name up to the first dot after the last slash. Prints what h3_get.py prints, without
ordinals. For tars with ordinary names only: dump_webdataset.py knows the exceptions.
"""

import hashlib
import json
import sys
import tarfile


def main():
    sample = None
    for shard in sys.argv[1:]:
        with tarfile.open(shard) as tar:
            for member in tar:
                if not member.isfile():
                    continue
                folder, slash, name = member.name.rpartition("/")
                stem, _, field = name.partition(".")
                key = folder + slash + stem
                if sample is None or sample["key"] != key:
                    if sample is not None:
                        print(json.dumps(sample))
                    sample = {"key": key, "fields": {}}
                data = tar.extractfile(member).read()
                sample["fields"][field.lower()] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    print(json.dumps(sample))


main()
