"""Prints what the webdataset package reads from the tars given: a JSON line for each sample, bytes in hexadecimal."""

import json
import sys

import webdataset

for sample in webdataset.WebDataset(sys.argv[1:], shardshuffle=False, nodesplitter=None, workersplitter=None):
    fields = {name: value.hex() for name, value in sample.items() if not name.startswith("__")}
    print(json.dumps({"key": sample["__key__"], "fields": fields}))
